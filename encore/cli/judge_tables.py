"""Tables of `encore judge`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from encore.cli.output import compact_table, out, visible

if TYPE_CHECKING:
    from rich.table import Table

    from encore.benchmarks.judging.report import JudgeReport
    from encore.benchmarks.metrics import Headline, SubsetScore


def print_judge_tables(report: JudgeReport) -> None:
    """Accuracy by subset; by pair and by rule also how far the verdicts can be believed."""
    partial = ", partial" if report.score.is_partial else ""
    heading = f"{report.name} on {report.score.benchmark}{partial}"
    out.print(f"{visible(heading)}; no verdict and a tie count one half", soft_wrap=True)
    out.print(_score_table(report))
    if report.criteria:
        out.print(
            "Of pairs: mean over all of them, whatever the benchmark counts. Consistent: both "
            "orders name the same answer; a coin does so in 50 %",
            soft_wrap=True,
        )
        out.print(_verdict_table(report))


def _score_table(report: JudgeReport) -> Table:
    """Every subset and the headline, with 95 % intervals."""
    score = report.score
    rows = [_score_row(one.subset, one.accuracy, one) for one in score.subsets]
    rows.append(_score_row(score.headline.name, score.headline.score, score.headline))
    if report.strict_score is not None:
        strict = report.strict_score.headline
        rows.append(_score_row(f"{strict.name}, ties lost", strict.score, strict))
    return compact_table(("subset", "pairs", "accuracy", "95 % interval"), rows, title="")


def _score_row(name: str, value: float, one: SubsetScore | Headline) -> tuple[str, ...]:
    interval = f"{one.ci_low:.1%} to {one.ci_high:.1%}"
    return (name, f"{one.num_pairs:,}", f"{value:.1%}", interval)


def _verdict_table(report: JudgeReport) -> Table:
    """How far the verdicts can be believed: one line a criterion."""
    columns = ("judged by", "of pairs", "consistent", "first place", "no verdict")
    rows = [
        (
            one.criterion_id,
            f"{one.accuracy:.1%}",
            _percent(one.consistency),
            _percent(one.share_first),
            f"{one.num_unparsed:,} of {2 * one.num_pairs:,}",
        )
        for one in report.criteria
    ]
    return compact_table(columns, rows, title="")


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.1%}"
