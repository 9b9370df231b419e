"""`encore analyze`: entropy and accuracy of every rule, and how the two go together."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from encore.cli.output import JsonOption, RunOption, compact_table, out, print_json, say, warn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from encore.correlation import Correlation
    from encore.statistics import RuleStats

RatingsArgument = Annotated[
    Path,
    typer.Argument(
        metavar="RATINGS",
        help="A study, a Parquet file, or a folder of them (with subfolders), with the columns "
        "pair_id, source, response (chosen or rejected), rule_id and rating (0 to 1, or null).",
    ),
]
JudgeOption = Annotated[
    str | None,
    typer.Option("--judge", metavar="NAME", help="Which judge, when there are several."),
]


def analyze(
    ratings: RatingsArgument,
    by_source: Annotated[
        bool,
        typer.Option("--by-source", help="Rows for each source, then for all sources together."),
    ] = False,
    run: RunOption = None,
    judge: JudgeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure each rule: the entropy of its ratings and its accuracy on people's preferences.

    Ties between chosen and rejected decide what accuracy means, so it is shown four ways: half (a
    tie counts one half), untied (ties left out), strict (a tie is a miss), inclusive (a hit). Read
    half and untied together. The null band is where the correlation r would lie, 95 % of the time,
    if the labels meant nothing.

    Exit code 3: the run is not complete; the figures are those of its finished shards.
    """
    from encore.analysis import analyze as analyze_ratings

    analysis = analyze_ratings(ratings, by_source=by_source, run=run, judge=judge)
    if as_json:
        print_json(analysis.as_dict())
    else:
        for source in dict.fromkeys(rule.source for rule in analysis.rules):
            _print_source(
                source,
                [rule for rule in analysis.rules if rule.source == source],
                [row for row in analysis.correlation if row.source == source],
            )
    for note in analysis.notes:
        say(f"note: {note}")
    exit_if_incomplete(analysis.num_missing_shards, analysis.num_shards)


def exit_if_incomplete(num_missing_shards: int, num_shards: int) -> None:
    """Warn and leave with code 3 when planned shards are not in the figures."""
    if num_missing_shards:
        warn(
            f"{num_missing_shards} of {num_shards} shards are missing, damaged or failed and not "
            "in these figures; `encore status` lists them, `encore rate` with the same parameters "
            "rates exactly these"
        )
        raise typer.Exit(code=3)


def number(value: float | None, *, digits: int = 3) -> str:
    """A figure for a table; a dash where there is none."""
    return "–" if value is None else f"{value:.{digits}f}"


def percent(value: float | None) -> str:
    """A share for a table; a dash where there is none."""
    return "–" if value is None else f"{value:.1%}"


def _print_source(
    source: str, rules: Sequence[RuleStats], correlation: Sequence[Correlation]
) -> None:
    where = "all sources" if source == "all" else f"source {source}"
    out.print(_spread_table(rules, where=where))
    out.print(_accuracy_table(rules, where=where))
    out.print(_correlation_table(correlation, where=where))


def _spread_table(rules: Sequence[RuleStats], *, where: str) -> Table:
    columns = ("rule", "entropy", "KDE entropy", "levels", "ratings", "nulls")
    rows = [
        (
            rule.rule_id,
            number(rule.entropy_nats),
            number(rule.differential_entropy_nats),
            rule.num_levels,
            rule.num_ratings,
            rule.num_unparsed,
        )
        for rule in rules
    ]
    return compact_table(columns, rows, title=f"Entropy of ratings in nats, {where}")


def _accuracy_table(rules: Sequence[RuleStats], *, where: str) -> Table:
    columns = ("rule", "half", "untied", "strict", "inclusive", "ties", "coverage")
    rows = [
        (
            rule.rule_id,
            percent(rule.accuracy.half),
            percent(rule.accuracy.untied),
            percent(rule.accuracy.strict),
            percent(rule.accuracy.inclusive),
            percent(rule.tie_rate),
            percent(rule.coverage),
        )
        for rule in rules
    ]
    return compact_table(columns, rows, title=f"Accuracy under four tie policies, {where}")


def _correlation_table(correlation: Sequence[Correlation], *, where: str) -> Table:
    columns = ("entropy, accuracy", "r", "p", "95 %", "Spearman", "null band")
    rows = [
        (
            f"{'KDE' if row.entropy == 'differential' else row.entropy}, {row.accuracy}",
            number(row.pearson_r),
            "–" if row.p_value is None else f"{row.p_value:.1g}",
            _interval(row.ci_low, row.ci_high),
            number(row.spearman_rho),
            _interval(row.null_low, row.null_high),
        )
        for row in correlation
    ]
    title = f"Correlation of entropy (+H) with accuracy over rules, {where}"
    return compact_table(columns, rows, title=title)


def _interval(low: float | None, high: float | None) -> str:
    return "–" if low is None or high is None else f"{low:.2f}…{high:.2f}"
