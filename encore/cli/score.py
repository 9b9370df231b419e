"""`encore score`: every head's score of every response of a study, written once."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from encore.cli.output import percent, percent_of, record_table, show_result, warn_of_failures
from encore.core.options import JsonOption, command
from encore.core.terminal import say, terminal_reporter
from encore.scoring.scoring_config import ScoreConfig

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from encore.scoring.head_accuracy import HeadAccuracy


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
    from encore.scoring.head_accuracy import scoring_accuracies
    from encore.scoring.scoring_run import score_study

    study = open_study(config.study)
    with terminal_reporter() as reporter:
        result = score_study(study, config, reporter=reporter)
    every, held_out = scoring_accuracies(study, result) if result.is_complete else ((), ())
    scoring = {
        **dataclasses.asdict(result),
        "tokens_per_second": result.tokens_per_second,
        "accuracy": every,
        "accuracy_held_out": held_out,
    }
    tables = [_accuracy_table(every, held_out)] if every else []
    show_result(scoring, tables, result.notes, synthetic=result.synthetic, as_json=json)
    speed = result.tokens_per_second
    say(
        f"{result.num_scores:,} scores of {result.num_pairs:,} pairs in {result.out}: "
        f"{result.num_reused} of {result.num_shards} shards reused, {result.seconds:.1f} s"
        + (f", {speed:,.0f} tokens/s" if speed else "")
    )
    warn_of_failures(result.failures, result.num_shards)
    if result.is_complete:
        say(f"next: encore sql --query head_accuracy --study {study.path}")


def _accuracy_table(every: Sequence[HeadAccuracy], held_out: Sequence[HeadAccuracy]) -> Table:
    """One line a head: how often it ranks a pair as people did, under two tie policies.

    Args:
        every: On all pairs.
        held_out: On those that training held out, ties counting one half; may be empty.
    """
    columns: dict[str, Any] = {
        "head": "head_id",
        "half": percent_of("half"),
        "strict": percent_of("strict"),
        "ties": "num_ties",
    }
    title = f"Heads on {every[0].num_pairs:,} pairs"
    if held_out:
        half_of = {one.head_id: one.half for one in held_out}
        columns["held out"] = lambda one: percent(half_of[one.head_id])
        title += f", {held_out[0].num_pairs:,} of them held out from training"
    return record_table(every, columns, title=title)
