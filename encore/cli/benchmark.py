"""`encore benchmark`: every row of the paper's tables on a benchmark, with its uncertainty."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from encore.cli.analyze import JudgeOption
from encore.cli.benchmark_options import (
    DEFAULT_BENCHMARK,
    AllowPartial,
    BenchmarkData,
    BenchmarkName,
)
from encore.cli.output import JsonOption, RunOption, StudyArgument, progress_bar, say, visible, warn
from encore.cli.score import Dtype, Layout, MaxLength, TokensPerMicrobatch
from encore.cli.stopping import stopped_by_sigterm
from encore.errors import InputError
from encore.weighting import SCHEMES
from encore.weighting.scheme import DEFAULT_K

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from encore.benchmarks.run import BenchmarkRun

_MODELS = "Models"
_ROWS = "Rows"


def benchmark(
    study: StudyArgument,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER_OR_ID",
            help="The multi-head model whose heads are weighed: a run or model folder of `encore "
            "train`, or an export with all heads.",
            rich_help_panel=_MODELS,
        ),
    ] = None,
    reward_model: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=FOLDER_OR_ID",
            help="A row of its own for a reward model with one head; repeatable. Give the "
            "untouched initial model too. The names bradley-terry-model and "
            "bradley-terry-model-initialised put it beside the paper's.",
            rich_help_panel=_MODELS,
        ),
    ] = None,
    gate: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="A gate of `encore gate` over MODEL's heads: the paper's row MoE.",
            rich_help_panel=_MODELS,
        ),
    ] = None,
    results: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]FILE",
            help="Results of every pair that `encore judge` or another call wrote: rows of their "
            "own; repeatable. A name such as judge-llama3-8b puts a judge beside the paper's.",
            rich_help_panel=_MODELS,
        ),
    ] = None,
    name: BenchmarkName = DEFAULT_BENCHMARK,
    data: BenchmarkData = None,
    allow_partial: AllowPartial = False,
    scheme: Annotated[
        list[str] | None,
        typer.Option(
            help=f"Only rows of these schemes, beside uniform; repeatable. Of: "
            f"{', '.join(SCHEMES)}. Default: all.",
            rich_help_panel=_ROWS,
        ),
    ] = None,
    tau: Annotated[
        list[float] | None,
        typer.Option(
            help="Temperatures of scheme encore; repeatable. Default: 0.1 to 10, the paper's 2 "
            "among them.",
            rich_help_panel=_ROWS,
        ),
    ] = None,
    k: Annotated[
        int, typer.Option("--k", min=1, help="Of top-k and random-k.", rich_help_panel=_ROWS)
    ] = DEFAULT_K,
    seed: Annotated[
        int,
        typer.Option(
            min=0,
            help="Of the bootstrap and of draws; another one draws other weights throughout.",
            rich_help_panel=_ROWS,
        ),
    ] = 0,
    num_random: Annotated[
        int,
        typer.Option(
            min=1, help="Weight vectors drawn for the rows of chance.", rich_help_panel=_ROWS
        ),
    ] = 1000,
    ratings: Annotated[
        Path | None,
        typer.Option(
            metavar="RATINGS",
            help="The training ratings that weights are made from. Default: the study's.",
            rich_help_panel=_ROWS,
        ),
    ] = None,
    run: RunOption = None,
    judge: JudgeOption = None,
    paper: Annotated[
        Literal["main", "fsfairx", "none"],
        typer.Option(
            help="Which backbone's figures of the paper stand beside ours.", rich_help_panel=_ROWS
        ),
    ] = "main",
    table: Annotated[
        Literal["markdown", "latex", "json"], typer.Option(help="The form of the table on stdout.")
    ] = "markdown",
    as_json: JsonOption = False,
    out_dir: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="DIR",
            help="Where the table and the results of every pair go. Default: "
            "STUDY/benchmarks/KEY, beside the head scores.",
        ),
    ] = None,
    layout: Layout = "auto",
    tokens_per_microbatch: TokensPerMicrobatch = None,
    max_length: MaxLength = None,
    dtype: Dtype = "auto",
    revision: Annotated[str | None, typer.Option(help="Of the hub id given as --model.")] = None,
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
    from encore.benchmarks.models import Opening
    from encore.benchmarks.run import run_benchmark
    from encore.benchmarks.schemes import DEFAULT_TAUS, SchemeRowOptions
    from encore.scores.run import HowToCompute

    options = SchemeRowOptions(
        schemes=tuple(scheme) if scheme else tuple(SCHEMES),
        taus=tuple(tau) if tau else DEFAULT_TAUS,
        k=k,
        seed=seed,
        num_random=num_random,
    )
    with progress_bar() as bar, stopped_by_sigterm():
        result = run_benchmark(
            study,
            model=model,
            reward_models=named_models(reward_model or ()),
            gate=gate,
            results=[result_file(one) for one in results or ()],
            benchmark=name,
            data=data,
            allow_partial=allow_partial,
            options=options,
            ratings=ratings,
            run=run,
            judge=judge,
            paper=paper,
            opening=Opening(dtype=dtype, max_length=max_length, revision=revision),
            how=HowToCompute(layout=layout, tokens_per_microbatch=tokens_per_microbatch),
            out=out_dir,
            on_progress=_Shown(bar).progress,
        )
    _report(result, form="json" if as_json else table)


def named_models(reward_models: list[str] | tuple[()]) -> dict[str, str]:
    """``NAME=FOLDER_OR_ID`` taken apart."""
    found: dict[str, str] = {}
    for given in reward_models:
        name, separator, model = given.partition("=")
        if not (separator and name and model):
            raise InputError(
                f"--reward-model {given!r}: expected NAME=FOLDER_OR_ID, e.g. initial=./skywork"
            )
        if name in found:
            raise InputError(f"--reward-model {given!r}: {name!r} is given twice; name it anew")
        found[name] = model
    return found


def result_file(given: str) -> tuple[str | None, Path]:
    """``FILE`` or ``NAME=FILE`` taken apart; a file whose own name has an equals sign is a file."""
    name, separator, path = given.partition("=")
    if not separator or Path(given).exists():
        return None, Path(given)
    return name, Path(path)


class _Shown:
    """A bar for each model that is scored, and for the prompts of a gate."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._tasks: dict[str, TaskID] = {}

    def progress(self, what: str, num_done: int, num_pairs: int) -> None:
        """So many pairs of this model are done."""
        if what not in self._tasks:
            self._tasks[what] = self._bar.add_task(visible(what), total=num_pairs, rate="")
        self._bar.update(self._tasks[what], completed=num_done, total=num_pairs)


def _report(result: BenchmarkRun, *, form: Literal["markdown", "latex", "json"]) -> None:
    from encore.benchmarks.render import notes_of, render

    sys.stdout.write(visible(render(result.table, form=form)))
    if form != "markdown":  # Markdown ends with them
        for note in notes_of(result.table):
            say(f"note: {note}")
    for part in result.table.synthetic:
        warn(f"synthetic: {part}; read these figures as an example, not as evidence")
    if result.table.pairs.is_partial:
        warn("partial: not all pairs that the benchmark defines; no figure compares with others")
    scored = (
        f"{result.num_computed:,} pairs scored in {result.seconds_scoring:.1f} s"
        if result.num_computed
        else "scored before"
    )
    say(f"{scored}; the table took {result.seconds_table:.1f} s")
    say(f"every pair under every row: {result.results_path}")
