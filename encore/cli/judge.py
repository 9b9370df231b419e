"""`encore judge`: a language model as the judge of a benchmark's pairs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from encore.benchmarks.benchmark_config import JudgeBenchmarkConfig
from encore.cli.output import compact_table
from encore.cli.weights import warn_of_unused
from encore.options import JsonOption, command
from encore.terminal import out, print_json, say, terminal_reporter, visible, warn

if TYPE_CHECKING:
    from encore.benchmarks.judging.judge_report import JudgeReport
    from encore.benchmarks.metrics import Headline, SubsetScore


@command
def judge(config: JudgeBenchmarkConfig, *, json: JsonOption = False) -> None:
    """Have a language model judge a benchmark's pairs, each in both orders.

    What is reported: accuracy with its interval (no verdict counts one half, as in RewardBench),
    how often both orders agree, how often the first place wins, replies without a verdict. Run the
    same command again after a crash or Ctrl-C: only shards that are missing or damaged are judged.

    Examples: encore judge --judge ./my-judge --out judged --protocol verdict-only

    encore judge --judge ./my-judge --out judged --by rating --weights-from my-study
    """
    from encore.benchmarks.judging.judge_report import judge_benchmark
    from encore.weighting import load_scheme

    scheme = load_scheme(config.scheme or "encore")
    weighing = {name: getattr(config, name) for name in ("tau", "k", "rule")}
    if config.weights_from is not None:
        warn_of_unused(weighing, used=scheme.options, who=f"scheme {scheme.name}")
    with terminal_reporter() as reporter:
        report = judge_benchmark(config, reporter=reporter)
    if json:
        print_json(report.as_dict())
    else:
        _print_tables(report)
    if report.single_order_score is not None:
        single = report.single_order_score.headline
        say(f"with one order a pair, as RewardBench asks: {single.name} {single.score:.1%}")
    worth = "count one half"
    if report.score.headline.num_pairs != report.num_pairs:
        worth = "leave the choice they belong to a part of its credit"
    more = f", as do {report.num_unrated:,} without ratings on both sides"
    say(
        f"ties: {report.num_ties:,} of {report.num_pairs:,} pairs {worth}"
        f"{more if report.num_unrated else ''}"
    )
    for note in report.notes:
        warn(note)
    for part in report.synthetic:
        warn(f"synthetic: {part}; read these figures as an example, not as evidence")
    say(f"replies: {report.folder}")
    say(f"next: encore benchmark STUDY --results {report.results}")


def _print_tables(report: JudgeReport) -> None:
    """Accuracy by subset; by pair also how far the verdicts can be believed."""
    score = report.score
    partial = ", partial" if score.is_partial else ""
    heading = visible(f"{report.name} on {score.benchmark}{partial}")
    out.print(f"{heading}; no verdict and a tie count one half", soft_wrap=True)
    rows = [_cells(one.subset, one.accuracy, one) for one in score.subsets]
    rows.append(_cells(score.headline.name, score.headline.score, score.headline))
    if report.strict_score is not None:
        strict = report.strict_score.headline
        rows.append(_cells(f"{strict.name}, ties lost", strict.score, strict))
    out.print(compact_table(("subset", "pairs", "accuracy", "95 % interval"), rows, title=""))
    if not report.criteria:
        return
    out.print(
        "Of pairs: mean over all of them, whatever the benchmark counts. Consistent: both "
        "orders name the same answer; a coin does so in 50 %",
        soft_wrap=True,
    )
    columns = ("judged by", "of pairs", "consistent", "first place", "no verdict")
    verdicts = [
        (
            one.criterion_id,
            f"{one.accuracy:.1%}",
            *(
                "–" if share is None else f"{share:.1%}"
                for share in (one.consistency, one.share_first)
            ),
            f"{one.num_unparsed:,} of {2 * one.num_pairs:,}",
        )
        for one in report.criteria
    ]
    out.print(compact_table(columns, verdicts, title=""))


def _cells(name: str, value: float, one: SubsetScore | Headline) -> tuple[str, ...]:
    return (name, f"{one.num_pairs:,}", f"{value:.1%}", f"{one.ci_low:.1%} to {one.ci_high:.1%}")
