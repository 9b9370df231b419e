"""`encore benchmark`: every row of the paper's tables on a benchmark, with its uncertainty."""

from __future__ import annotations

import sys
from typing import Annotated, Literal

from cyclopts import Parameter

from encore.benchmarks.benchmark_options import BenchmarkConfig, BenchmarkRunOptions
from encore.cli.output import warn_of_synthetic
from encore.core.command_parser import JsonOption, command
from encore.core.model_files import refuse_missing_folder
from encore.core.terminal import print_json, say, say_next, terminal_reporter, visible, warn
from encore.data.study_options import StudyArgument


@command
def benchmark(
    study: StudyArgument,
    config: BenchmarkConfig,
    how: BenchmarkRunOptions,
    *,
    table: Annotated[
        Literal["markdown", "json"], Parameter(help="Format of the table on stdout.")
    ] = "markdown",
    json: JsonOption = False,
) -> None:
    """Score a benchmark's pairs once, then print every row of the paper's tables.

    The rows are random, single and uniform weights, top k, inverse sd, Bradley–Terry weights,
    ENCORE at several temperatures, a gate, and other reward models. Each row has its interval and
    its difference to uniform weights on the same pairs. The weights come from the training study's
    ratings, never from the benchmark. Our score stands beside the paper's; where the printed score
    does not follow from the paper's own sub-scores, the recomputed one is shown too.

    Head scores are kept in STUDY/benchmarks, so a second call scores nothing again. Pairs that are
    too long are counted.

    Example: encore benchmark my-study --model my-study/training/KEY --reward-model
    initial=Skywork/Skywork-Reward-Llama-3.1-8B-v0.2
    """
    if config.model is not None:
        refuse_missing_folder("reward model", config.model)
    from encore.benchmarks.render_table import render_markdown, table_notes
    from encore.benchmarks.run_benchmark import run_benchmark
    from encore.data.study import open_study

    with terminal_reporter() as reporter:
        run = run_benchmark(open_study(study), config, how, reporter=reporter)
    if json or table == "json":
        print_json(run.table.model_dump(mode="json"))
        for note in table_notes(run.table):
            say(f"note: {note}")
    else:  # the Markdown has the notes
        sys.stdout.write(visible(render_markdown(run.table)))
    warn_of_synthetic(run.table.synthetic)
    if run.pairs.is_partial:
        warn("partial: pairs of the benchmark are missing; do not compare with published figures")
    say(f"{run.num_computed:,} pairs scored" if run.num_computed else "all pairs scored before")
    say(f"results per pair and row: {run.results_path}")
    say_next("compare", study)
