"""`encore analyze`: entropy and accuracy of every rule, and how the two go together."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from encore.cli.output import JsonOption, RunOption, out, print_json, say, warn, warn_of_synthetic

if TYPE_CHECKING:
    from encore.analysis.analyze import Analysis
    from encore.evidence.convergence import ConvergenceCurve
    from encore.evidence.retest import Retest

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
    by_judge: Annotated[
        bool,
        typer.Option(
            "--by-judge",
            help="The statistics of each judge that rated these pairs, and how far judges agree.",
        ),
    ] = False,
    convergence: Annotated[
        bool,
        typer.Option(
            "--convergence",
            help="Also: how many ratings are enough for ENCORE's weights? A curve of their error "
            "against sample size, with a recommendation.",
        ),
    ] = False,
    retest: Annotated[
        Path | None,
        typer.Option(
            "--retest",
            metavar="PATH",
            help="Also: is the judge stable? Compare with ratings of some of the same responses "
            "once more (another seed or order): a study or a table like RATINGS.",
        ),
    ] = None,
    retest_run: Annotated[
        str | None,
        typer.Option(
            "--retest-run", metavar="RUN_KEY", help="Which run of --retest, when it has several."
        ),
    ] = None,
    run: RunOption = None,
    judge: JudgeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure each rule: the entropy of its ratings and its accuracy on people's preferences.

    Ties between chosen and rejected decide what accuracy means, so it is shown four ways: half (a
    tie counts one half), untied (ties left out), strict (a tie is a miss), >= or inclusive (a
    hit). Read half and untied together: the other two are biased by ties. The null band is where
    the correlation r would lie, 95 % of the time, if the labels meant nothing. The verdict is
    "reproduced" or "not reproduced" only where r lies outside its null band, on the same side,
    under half and untied; otherwise "depends on ties".

    Example: encore analyze study --by-source --convergence

    Exit code 3: the run is not complete; the figures are those of its finished shards.
    """
    warn_of_synthetic(ratings, run=run)
    if by_judge:
        _refuse_with_by_judge(
            {"--run": run, "--judge": judge, "--retest": retest, "--convergence": convergence}
        )
        _print_judges(ratings, by_source=by_source, as_json=as_json)
        return
    if retest_run is not None and retest is None:
        raise typer.BadParameter("--retest-run names a run of --retest PATH, which is not given")
    from encore.analysis.analyze import analyze as analyze_ratings

    analysis = analyze_ratings(ratings, by_source=by_source, run=run, judge=judge)
    curve = _convergence(ratings, run=run, judge=judge) if convergence else None
    again = _retest(ratings, retest, retest_run, run=run, judge=judge) if retest else None
    if as_json:
        extra = {"convergence": curve, "retest": again}
        print_json(
            analysis.as_dict()
            | {name: found.as_dict() for name, found in extra.items() if found is not None}
        )
    else:
        _print_tables(analysis, curve, again)
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


def _refuse_with_by_judge(options: Mapping[str, object]) -> None:
    given = [name for name, value in options.items() if value]
    if given:
        raise typer.BadParameter(
            f"--by-judge looks at every judge on its own and does not go with {', '.join(given)}"
        )


def _convergence(ratings: Path, *, run: str | None, judge: str | None) -> ConvergenceCurve:
    from encore.evidence.convergence import convergence

    return convergence(ratings, run=run, judge=judge)


def _retest(
    ratings: Path, repeated: Path, repeated_run: str | None, *, run: str | None, judge: str | None
) -> Retest:
    from encore.evidence.retest import retest

    return retest(ratings, repeated, run=run, judge=judge, repeated_run=repeated_run)


def _print_tables(analysis: Analysis, curve: ConvergenceCurve | None, again: Retest | None) -> None:
    from encore.cli.analysis_tables import paper_table, source_tables
    from encore.cli.evidence_tables import convergence_table, retest_table

    for source in analysis.sources:
        out.print(source_tables(analysis, source))
    paper = paper_table(analysis.paper)
    if paper is not None:
        out.print(paper)
    if curve is not None:
        out.print(convergence_table(curve))
    if again is not None:
        out.print(retest_table(again))


def _print_judges(ratings: Path, *, by_source: bool, as_json: bool) -> None:
    from encore.analysis.judge_comparison import compare_judges
    from encore.cli.analysis_tables import judge_tables

    comparison = compare_judges(ratings, by_source=by_source)
    if as_json:
        print_json(comparison.as_dict())
    else:
        out.print(judge_tables(comparison))
    for note in comparison.notes:
        say(f"note: {note}")
    exit_if_incomplete(comparison.num_missing_shards, comparison.num_shards)
