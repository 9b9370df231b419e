"""`encore benchmark`: every row of the paper's tables on a benchmark, with its uncertainty."""

from __future__ import annotations

import sys
from typing import Annotated, Literal

from cyclopts import Parameter

from encore.benchmarks.benchmark_config import BenchmarkStudyConfig
from encore.cli.output import warn_of_synthetic
from encore.core.options import JsonOption, command
from encore.core.terminal import say, terminal_reporter, visible, warn


@command
def benchmark(
    config: BenchmarkStudyConfig,
    *,
    table: Annotated[
        Literal["markdown", "json"], Parameter(help="The form of the table on stdout.")
    ] = "markdown",
    json: JsonOption = False,
) -> None:
    """Score a benchmark's pairs once, then print every row of the paper's tables.

    Random, single and uniform weights, top k, inverse sd, Bradley–Terry weights, ENCORE at several
    temperatures, a gate, other reward models: each with its interval, and with its difference to
    uniform weights on the same pairs. Weights come from the training study's ratings, never from
    the benchmark. Ours stands beside the paper's figure, and beside what the paper's own sub-scores
    give where its printed one does not follow.

    Head scores are kept in STUDY/benchmarks: a second call only does the arithmetic. Over-long
    pairs are counted.

    Example: encore benchmark my-study --model my-study/training/KEY --reward-model
    initial=Skywork/Skywork-Reward-Llama-3.1-8B-v0.2
    """
    from encore.benchmarks.render_table import render, table_notes
    from encore.benchmarks.run_benchmark import run_benchmark
    from encore.data.study import open_study

    with terminal_reporter() as reporter:
        run = run_benchmark(open_study(config.study), config, reporter=reporter)
    if json or table == "json":
        sys.stdout.write(render(run.table, form="json"))
        for note in table_notes(run.table):
            say(f"note: {note}")
    else:  # it ends with its notes
        sys.stdout.write(visible(render(run.table, form="markdown")))
    warn_of_synthetic(run.table.synthetic)
    if run.pairs.is_partial:
        warn("partial: not all pairs that the benchmark defines; no figure compares with others")
    say(f"{run.num_computed:,} pairs scored" if run.num_computed else "scored before")
    say(f"every pair under every row: {run.results_path}")
