"""`encore demo`: show the shipped ratings, or run the recipe `demo` and explain each stage."""

from __future__ import annotations

import os
import sys
import textwrap
import time
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, Any

from encore.cli.output import (
    Renderable,
    TableColumns,
    column_tables,
    percent,
    percent_of,
    record_table,
    span,
    span_of,
)
from encore.core.command_parser import UsageError, command
from encore.core.config import option
from encore.core.extras import require_packages
from encore.core.number_text import number
from encore.core.terminal import out, say, terminal_reporter, warn
from encore.recipes.recipe import DemoConfig, changed, load_recipe

if TYPE_CHECKING:
    from encore.analysis.analyze import Analysis
    from encore.benchmarks.benchmark_table import TableLine
    from encore.benchmarks.run_benchmark import BenchmarkRun
    from encore.recipes.recipe_run import Work

_SYNTHETIC = "synthetic data: read these figures as an example, not as evidence"
_SHIPPED = (
    "ENCORE demo: 500 synthetic pairs, and the ratings that the small shipped judge gave them "
    "under nine rules; --full rates, trains and compares on a real engine"
)
#: Schemes of the second table, and the number of labels that the last one learns from.
_SCHEMES, _NUM_LABELS = ("uniform", "encore", "consensus", "shrunk"), 20
_EXPLANATIONS = {
    "rate": "the demo's judge rates responses under every rule",
    "judge": "for comparison: the judge's own ratings of the benchmark's pairs, ENCORE's weights",
    "initial-model": "a small reward model to start from, as the paper starts from a public one",
    "train": "training a reward model on these ratings: one head per rule",
    "train-bradley-terry-model": "for comparison: a Bradley–Terry model from the judge, on the "
    "preferences alone",
    "train-bradley-terry-model-initialised": "for comparison: the same from the initial reward "
    "model",
    "gate": "for comparison: a gate that weighs the heads by the prompt",
    "score": "scoring every response once under all heads; composing them is arithmetic from here",
    "benchmark": "the table: every scheme over the heads, and the models beside them, on the "
    "benchmark",
    "export-heads": "the model for other tools, a label for each rule: plain transformers gives "
    "the same scores",
    "export": "the same with ENCORE's weights folded in: one reward",
}
_NEXT_STEPS = {
    "analyze {study} --by-source": "the same for each source of pairs",
    "weights {study}": "ENCORE's weights of the rules",
    "browse {study}": "texts, replies and ratings in a browser",
    'sql {study} "from rules"': "every table of the study in SQL",
    "demo --full": "a real engine, training, benchmark; takes minutes",
    "ingest --help": "your own preference pairs",
}
_NEXT_STEPS_OF_ALL = {
    "analyze {ratings} --by-source": "the same for each source of pairs",
    "weights {ratings} --tau 0.5": "more weight for low-entropy rules",
    "compare {study}": "every row of the benchmark's table, sorted",
    "show {study} PAIR": "text, prompts, replies and ratings of one pair",
    "serve {export}": "its rewards over HTTP",
    "ingest --help": "your own preference pairs",
}
#: Planted facts that decide the second table (docs/index.md has all of them).
_WHY = """\
Why this order: ENCORE gives most weight where ratings vary least. Here the two rules of lowest \
entropy are the worst: one rates all responses alike and takes a fifth of the weight, one is \
against people. That was planted, as on the real pairs that were tried low entropy did not go \
along with accuracy either.
Consensus knows no label. Most of these rules want what people want, so the rule against people \
stands alone, and the two that say the same count once. Where most rules share something else, \
such as length, it loses; on real pairs no gain was sure.
Twenty labels choose between uniform weights and those of consensus, and correct them. Uniform \
weights count the rule against people like any other, and the double twice.
The intervals overlap: 500 pairs show which rules to trust, and hardly which weights are best.
"""
#: Shards of 60 pairs that an engine rates without --rate-all.
_NUM_RATED_SHARDS = 1
#: Rows whose significant differences are printed.
_COMPARED = ("uniform", "encore (τ 2)", "consensus (τ 2)", f"shrunk ({_NUM_LABELS} labels)")


class DemoCommandConfig(DemoConfig):
    """Options of `encore demo`."""

    full: bool = option(False)
    """Rate on a real engine, train, score, benchmark and export: minutes on a CPU."""


@command
def demo(config: DemoCommandConfig) -> None:
    """Show which rules to trust on shipped synthetic preference pairs and ratings, in seconds.

    Ingests the pairs, adds ratings that the small shipped judge gave them under nine rules, prints
    a verdict on each rule and four ways to weigh them, and writes a page. It needs no engine and no
    network, and leaves a study on which every other command works.

    With --full, the judge rates on a real vLLM engine: some pairs, to which the shipped ratings of
    the others are added, or all of them (--rate-all). A reward model with a head for every rule is
    trained on the ratings, scores every response and is exported for other tools. Last come every
    row of the paper's tables on a synthetic benchmark, beside two Bradley–Terry models, a gate and
    the judge itself, and a page.

    Pairs, judge and therefore every figure are synthetic: they show how the tool works and say
    nothing about the paper's claim.
    """
    if config.full:
        _run_recipe(config)
    elif config.backend is not None or config.rate_all:
        name = "--rate-all" if config.backend is None else f"--backend {config.backend}"
        raise UsageError(f"{name}: nothing is rated without --full; add --full")
    else:
        _show_shipped(config.study)


def _show_shipped(folder: Path) -> None:
    """Make the study from the shipped files, print the table of its rules, write its report."""
    from encore.analysis.analyze import analyze
    from encore.cli.analysis_tables import answer_tables
    from encore.cli.output import show_result
    from encore.recipes.shipped_demo import make_demo_study
    from encore.reports.write_report import page_of, report

    began = time.monotonic()
    study, run_dir = make_demo_study(folder)
    analysis = analyze(run_dir)
    say(_SHIPPED)
    tables = chain(answer_tables(analysis.answers), _weighing_tables(analysis))
    show_result(None, tables, as_json=False)
    out.print(_SYNTHETIC)
    say(f"all of it on a page: {report(analysis, page_of(run_dir)).page}")
    say(f"study {study.path}; done in {time.monotonic() - began:.0f} s; next:")
    _print_next(_NEXT_STEPS, study=folder)


def _weighing_tables(analysis: Analysis) -> Iterator[Renderable]:
    """Yield how well the rules agree with people together, under four kinds of weights, and why."""
    from encore.weighting.scheme_comparison import SchemeRow, compare_schemes
    from encore.weighting.scheme_options import SchemeOptions

    options = SchemeOptions(labels=_NUM_LABELS)
    comparison = compare_schemes(analysis, options=options, schemes=_SCHEMES)

    def accuracy(row: SchemeRow) -> float:
        """Return the share of pairs that the composed ratings rank as people do, held out."""
        return (row.held_out_accuracy or row.accuracy).half or 0.0

    def interval(row: SchemeRow) -> str:
        if row.held_out_accuracy is None:
            return span(row.accuracy_low, row.accuracy_high)
        return span(row.held_out_low, row.held_out_high)

    columns: TableColumns = {
        "weights": "label",
        "labels": lambda row: str(_NUM_LABELS if row.uses_labels else 0),
        "composed ratings agree": lambda row: percent(accuracy(row)),
        "95 %": interval,
    }
    rows = sorted(comparison.rows, key=accuracy, reverse=True)
    yield record_table(rows, columns, title="The nine rules together, weighed in four ways")
    weights = {row.vector.scheme: map(number, row.vector.weights) for row in comparison.rows}
    yield from column_tables(weights, title="The weights of each rule")
    yield "\n".join(textwrap.fill(line, out.width) for line in _WHY.splitlines())


def _run_recipe(config: DemoConfig) -> None:
    """Run the recipe `demo` with explanations, and write its report."""
    require_packages("torch", "transformers", work="encore demo --full")
    from encore.data.rating_runs import list_runs
    from encore.recipes.recipe_run import run_recipe
    from encore.recipes.shipped_demo import make_demo_study
    from encore.reports.write_report import page_of, report

    began, study = time.monotonic(), config.study
    say("ENCORE demo: everything in it is synthetic, made for this demo by a seeded script")
    backend = config.backend or "vllm"
    if config.backend is None and find_spec("vllm") is None:
        warn("vLLM is not installed; --backend transformers gives the same, several times slower")
        backend = "transformers"
    recipe = changed(load_recipe("demo"), {"rating": {"judge": {"backend": backend}}})
    if backend == "vllm" and not config.rate_all:  # the shipped ratings are of this engine
        make_demo_study(study, num_shards_left_out=_NUM_RATED_SHARDS)
        say("a real engine rates some of the pairs; the other ratings are shipped (--rate-all)")
    seconds: dict[str, float] = {}

    def timed(stage: str, work: Work) -> Any:
        """Run a stage, and keep the seconds that it took."""
        stage_began = time.monotonic()
        stage_result = _explained(stage, work)
        seconds[stage] = time.monotonic() - stage_began
        return stage_result

    result = run_recipe(recipe, study, call=timed)
    page = timed("report", lambda _: report(result.run_dir, page_of(result.run_dir)).page)
    say(f"all of it on a page: {page}")
    say("seconds: " + ", ".join(f"{stage} {duration:.0f}" for stage, duration in seconds.items()))
    if not result.done_now:
        say("nothing was rated, trained or scored: all of it was there")
    say(f"done in {time.monotonic() - began:.0f} s; next:")
    has_others = len(list_runs(result.run_dir.parent)) > 1  # e.g. the shipped ratings
    ratings = f"{study} --run {result.run_dir.name}" if has_others else study
    _print_next(_NEXT_STEPS_OF_ALL, study=study, ratings=ratings, export=result.export)


def _print_next(calls: Mapping[str, str], **values: object) -> None:
    """Print calls of the program, with values filled in, and their purposes."""
    program = (
        "encore" if which("encore") else os.path.relpath(Path(sys.executable).parent / "encore")
    )
    for call, purpose in calls.items():
        out.print(f"  {program} {call.format(**values)}  # {purpose}", soft_wrap=True)


def _explained(stage: str, work: Work) -> Any:
    """Print the purpose of a stage, run it, and print its result."""
    if stage in _EXPLANATIONS:
        say(_EXPLANATIONS[stage])
    with terminal_reporter() as reporter:
        result = work(reporter)
    if stage == "ingest":
        from encore.cli.ingest import ingest_table

        out.print(ingest_table(result))
    elif stage == "weigh":
        from encore.cli.weight_tables import weights_tables

        out.print(*weights_tables(result))
        out.print(_SYNTHETIC)
    elif stage.startswith("train"):
        from encore.cli.train import heads_table

        if stage == "train":
            out.print(heads_table(result.final_evaluation))
        event = f"trained in {result.seconds:.0f} s" if result.is_new else "trained before"
        say(f"{event}: {result.num_steps} steps; model {result.model_dir}")
    elif stage == "benchmark":
        print_table(result)
    return result


def print_table(run: BenchmarkRun) -> None:
    """Print the rows of the paper's methods with their intervals, and the path of all rows."""
    from encore.benchmarks.benchmark_table import significant_differences

    table = run.table
    rows = [
        row
        for row in table.rows_with_figures
        if row.our_figures.method is not None
        or row.kind != "scheme"
        or row.name.startswith(("consensus", "shrunk"))
    ]
    benchmark, mark = table.benchmark, ", SYNTHETIC" if table.synthetic else ""
    title = f"{benchmark.headline}, % of {benchmark.num_pairs} pairs{mark}: the paper's methods"
    columns: TableColumns = {
        "row": "name",
        "score": percent_of("our_figures.headline.score"),
        "95 %": span_of("our_figures.headline.ci"),
        f"Δ {table.reference} (95 %)": _difference,
    }
    out.print(record_table(rows, columns, title=title))
    if table.synthetic:
        out.print(_SYNTHETIC)
    compared = [row for row in run.rows if row.name in _COMPARED]
    if len(compared) > 1:
        sentence = significant_differences(compared, pairs=run.pairs)
        say(f"{sentence} (95 % intervals of paired differences)")
    say(f"all {len(run.rows)} rows, every subset and what limits them: {run.markdown_path}")


def _difference(row: TableLine) -> str | None:
    from encore.core.number_text import points

    comparison = row.our_figures.comparison
    if comparison is None:
        return None
    low, high = points(comparison.ci_low), points(comparison.ci_high)
    return f"{points(comparison.difference)} ({low} to {high})"
