"""`encore score`: every head's score of every response of a study, written once."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from encore.cli.output import compact_table
from encore.config import ScoreConfig, ScoringConfig
from encore.errors import StudyIncompleteError
from encore.options import JsonOption, command
from encore.terminal import out, print_json, say, terminal_reporter, warn

if TYPE_CHECKING:
    from rich.table import Table

    from encore.data.study import Study
    from encore.model.opening import OpenedModel
    from encore.scoring.head_accuracy import HeadAccuracy
    from encore.scoring.scoring_run import ScoreResult


@command
def score(config: ScoreConfig, *, json: JsonOption = False) -> None:
    """Score every response of a study under every head of a reward model; Parquet, shard by shard.

    Heads are scored once: every weighting of them is then arithmetic over these files. Scores are
    raw and centred (the means are in score.json). Run the same command again after a crash or
    Ctrl-C: only shards that are missing or damaged are scored. Another model, other data or another
    plan makes a new folder beside the old one. Exit code 3: finished, but some shards failed.

    Example: encore score my-study --model my-study/training/KEY
    """
    from encore.data.study import open_study

    study = open_study(config.study)
    _report(study, show_scoring(study, config), as_json=json)


def show_scoring(
    study: Study, config: ScoringConfig, *, opened: OpenedModel | None = None
) -> ScoreResult:
    """Score under a progress bar; ``opened`` is the config's model, if it is open already."""
    from encore.scoring.scoring_run import score_study

    with terminal_reporter() as reporter:
        return score_study(study, config, opened=opened, reporter=reporter)


def _report(study: Study, result: ScoreResult, *, as_json: bool) -> None:
    from encore.scoring.head_accuracy import accuracies_of

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
    say(f"next: encore sql --query head_accuracy --study {study.path}")


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
