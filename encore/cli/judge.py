"""`encore judge`: a language model as the judge of a benchmark's pairs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from encore.benchmarks.benchmark_options import JudgeBenchmarkConfig
from encore.cli.output import (
    Renderable,
    compact_table,
    percent,
    show_result,
    span_of,
    warn_of_unused,
)
from encore.core.command_parser import JsonOption, command
from encore.core.model_files import refuse_missing_folder
from encore.core.terminal import say, say_next, terminal_reporter
from encore.judges.server_options import ServerOptions

if TYPE_CHECKING:
    from encore.benchmarks.judging.run_judge import JudgeReport
    from encore.benchmarks.metrics import Headline, SubsetScore


@command
def judge(config: JudgeBenchmarkConfig, how: ServerOptions, *, json: JsonOption = False) -> None:
    """Have a language model judge a benchmark's pairs, each in both orders.

    It reports the accuracy with its interval (a missing verdict counts one half, as in
    RewardBench), how often both orders agree, how often the first position wins, and replies
    without a verdict. After a crash or Ctrl-C, run the same command again: it judges only shards
    that are missing or damaged.

    Examples: encore judge --judge ./my-judge --out judged --protocol verdict-only

    encore judge --judge ./my-judge --out judged --by rating --weights-from my-study
    """
    if config.judge.backend != "http":
        refuse_missing_folder("judge", config.judge.model)
    from encore.benchmarks.judging.run_judge import judge_benchmark
    from encore.weighting.schemes import load_scheme

    scheme = load_scheme(config.scheme or "encore")
    weighing = {name: getattr(config, name) for name in ("tau", "k", "rule")}
    if config.weights_from is not None:
        warn_of_unused(weighing, used=scheme.options, who=f"scheme {scheme.name}")
    with terminal_reporter() as reporter:
        report = judge_benchmark(config, how, reporter=reporter)
    synthetic = report.synthetic
    show_result(report, _accuracy(report), report.notes, synthetic=synthetic, as_json=json)
    if report.single_order_score is not None:
        single = report.single_order_score.headline
        say(f"with one order per pair, as in RewardBench: {single.name} {single.score:.1%}")
    unrated = f"; {report.num_unrated:,} lack a rating" * bool(report.num_unrated)
    say(f"ties: {report.num_ties:,} of {report.num_pairs:,} pairs count one half{unrated}")
    say(f"replies: {report.folder}")
    say_next("benchmark", "STUDY", "--results", report.results)


def _accuracy(report: JudgeReport) -> Iterator[Renderable]:
    """Yield the accuracy by subset; by pair also a sentence on the verdicts."""
    score = report.score
    partial = ", partial" if score.is_partial else ""
    yield f"{report.name} on {score.benchmark}{partial}; ties and missing verdicts count one half"
    figures: list[tuple[str, SubsetScore | Headline]]
    figures = [(subset.subset, subset) for subset in score.subsets]
    figures.append((score.headline.name, score.headline))
    interval = span_of("ci")
    rows = [
        (name, figure.num_pairs, percent(figure.score), interval(figure))
        for name, figure in figures
    ]
    yield compact_table(("subset", "pairs", "accuracy", "95 % interval"), rows)
    if report.verdicts is not None:
        yield report.verdicts.reliability
