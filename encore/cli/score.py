"""`encore score`: every head's score of every response of a study, written once."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from encore.cli.output import (
    JsonOption,
    StudyArgument,
    compact_table,
    out,
    print_json,
    progress_bar,
    say,
    warn,
)
from encore.cli.stopping import stopped_by_sigterm
from encore.errors import StudyIncompleteError

if TYPE_CHECKING:
    from rich.progress import Progress
    from rich.table import Table

    from encore.model.opening import OpenedModel
    from encore.scores.accuracy import HeadAccuracy
    from encore.scores.driver import ScoreResult, ScoringProgress

#: Annotations of options, for every command that scores.
Model = Annotated[
    str,
    typer.Option(
        metavar="FOLDER_OR_ID",
        help="A training run or its model folder, an export, or any plain "
        "…ForSequenceClassification with a linear head, as a folder or a hub id.",
    ),
]
OutDir = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="DIR",
        help="The scores' folder. Default: STUDY/scores/KEY, a key of model, data and plan.",
    ),
]
Limit = Annotated[
    int | None, typer.Option(min=1, help="Pilot: score this many pairs, drawn by content hash.")
]
ShardSize = Annotated[int, typer.Option(min=1, max=100_000, help="Pairs in each file.")]
Layout = Annotated[
    Literal["auto", "packed", "prefix-shared", "sorted", "single"],
    typer.Option(
        help="How responses are put side by side; changes speed, and scores by rounding only. "
        "auto: nothing is padded, and a pair's common prompt is computed once where the model "
        "allows it."
    ),
]
TokensPerMicrobatch = Annotated[
    int | None,
    typer.Option(min=1, help="Tokens of one forward pass: bounds the memory. Default: by device."),
]
MaxLength = Annotated[
    int | None,
    typer.Option(
        min=16,
        help="Tokens of a conversation; the oldest beyond it are cut, and counted. Default: as the "
        "model was trained.",
    ),
]
Dtype = Annotated[
    Literal["auto", "float32", "bfloat16"],
    typer.Option(help="Number format; auto: bfloat16 on CUDA, float32 on CPU."),
]
Revision = Annotated[str | None, typer.Option(help="Of a hub id.")]


def score(
    study: StudyArgument,
    model: Model,
    out_dir: OutDir = None,
    limit: Limit = None,
    shard_size: ShardSize = 1000,
    layout: Layout = "auto",
    tokens_per_microbatch: TokensPerMicrobatch = None,
    max_length: MaxLength = None,
    dtype: Dtype = "auto",
    revision: Revision = None,
    as_json: JsonOption = False,
) -> None:
    """Score every response of a study under every head of a reward model; Parquet, shard by shard.

    Heads are scored once: every weighting of them is then arithmetic over these files. Scores are
    raw and centred (the means are in score.json). Run the same command again after a crash or
    Ctrl-C: only shards that are missing or damaged are scored. Another model, other data or another
    plan makes a new folder beside the old one. Exit code 3: finished, but some shards failed.

    Example: encore score my-study --model my-study/training/KEY
    """
    result = show_scoring(
        study,
        model,
        out=out_dir,
        limit=limit,
        shard_size=shard_size,
        layout=layout,
        tokens_per_microbatch=tokens_per_microbatch,
        max_length=max_length,
        dtype=dtype,
        revision=revision,
    )
    _report(study, result, as_json=as_json)


def show_scoring(study: Path, model: str | OpenedModel, **how: Any) -> ScoreResult:
    """Score under a progress bar.

    Args:
        study: The study's directory.
        model: As for `encore.scores.score.score_study`, like all of ``how``.
        how: Settings.
    """
    from encore.scores.score import score_study

    with progress_bar() as bar, stopped_by_sigterm():
        return score_study(study, model=model, on_progress=_Shown(bar).progress, **how)


class _Shown:
    """A bar on a terminal, elsewhere a line for each finished shard."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._task = bar.add_task("scoring", total=None, rate="", visible=False)

    def progress(self, progress: ScoringProgress) -> None:
        """Pairs done, real tokens a second; the bar says how long it will take."""
        rate = f"{progress.tokens_per_second:,.0f} tokens/s" if progress.num_tokens else ""
        self._bar.update(
            self._task,
            total=progress.num_pairs,
            completed=progress.num_done,
            rate=rate,
            visible=True,
        )
        if self._bar.disable and progress.finished is not None:
            pairs = f"{progress.num_done:,} of {progress.num_pairs:,} pairs"
            speed = f", {rate}" if rate else ""
            say(f"shard {progress.finished.index} {progress.finished.action}: {pairs}{speed}")


def _report(study: Path, result: ScoreResult, *, as_json: bool) -> None:
    from encore.scores.held_out import accuracies_of

    every, held_out = accuracies_of(study, result) if result.is_complete else ((), ())
    if as_json:
        print_json(_as_json(result, every, held_out))
    elif every:
        out.print(accuracy_table(every, held_out))
    if held_out:
        say(
            f"held out: the {held_out[0].num_pairs:,} pairs whose prompts training would have held "
            "out; the others it may have learnt from, if these are the pairs it was trained on"
        )
    for note in result.notes:
        warn(note)
    for part in result.synthetic:
        warn(f"synthetic: {part}; read these figures as an example, not as evidence")
    say(f"{_what_was_done(result)}; scores {result.out}")
    if not result.is_complete:
        for index, error in result.failures.items():
            say(f"shard {index}: {error}")
        raise StudyIncompleteError(
            f"{len(result.failures)} of {result.num_shards} shards failed; run the same command "
            "again to score only these"
        )
    say(f"next: encore sql --query head_accuracy --study {study}")


def _what_was_done(result: ScoreResult) -> str:
    if not result.is_complete and not result.num_tokens:
        return f"nothing could be scored: {result.num_scores:,} scores"
    if result.tokens_per_second is None or result.padding_share is None:
        return f"scored before, nothing done: {result.num_scores:,} scores"
    reused = f", {result.num_reused} of {result.num_shards} shards reused" * bool(result.num_reused)
    return (
        f"done in {result.seconds:.1f} s: {result.num_scores:,} scores of {result.num_pairs:,} "
        f"pairs, {result.tokens_per_second:,.0f} tokens/s, {result.padding_share:.1%} "
        f"padding{reused}"
    )


def _as_json(
    result: ScoreResult, every: tuple[HeadAccuracy, ...], held_out: tuple[HeadAccuracy, ...]
) -> dict[str, Any]:
    content = dataclasses.asdict(result)
    return {
        **content,
        "out": str(result.out),
        "failures": {str(index): error for index, error in result.failures.items()},
        "tokens_per_second": result.tokens_per_second,
        "accuracy": [dataclasses.asdict(one) for one in every],
        "accuracy_held_out": [dataclasses.asdict(one) for one in held_out],
    }


def accuracy_table(
    every: tuple[HeadAccuracy, ...], held_out: tuple[HeadAccuracy, ...] = ()
) -> Table:
    """One line a head: how often it ranks a pair as people did, under two tie policies.

    Args:
        every: On all pairs.
        held_out: On those that training held out, ties counting one half; may be empty.
    """
    columns: tuple[str, ...] = ("head", "half", "strict", "ties")
    rows: list[tuple[str, ...]] = [
        (one.head_id, f"{one.half:.1%}", f"{one.strict:.1%}", f"{one.num_ties:,}") for one in every
    ]
    title = f"Heads on {every[0].num_pairs:,} pairs"
    if held_out:
        columns += ("held out",)
        rows = [(*row, f"{one.half:.1%}") for row, one in zip(rows, held_out, strict=True)]
        title += f", {held_out[0].num_pairs:,} of them held out from training"
    return compact_table(columns, rows, title=title)
