"""`encore score`: every head's score of every response of a study, written once."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from encore.cli.output import percent, percent_of, record_table, show_result, warn_of_failures
from encore.core.command_parser import JsonOption, command
from encore.core.model_files import refuse_missing_folder
from encore.core.terminal import say, say_next, terminal_reporter
from encore.data.study_options import StudyArgument
from encore.scoring.scoring_options import ScoringConfig, ScoringRunOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from encore.scoring.head_accuracy import HeadAccuracy


@command
def score(
    study: StudyArgument, config: ScoringConfig, how: ScoringRunOptions, *, json: JsonOption = False
) -> None:
    """Score every response of a study under every head of a reward model; Parquet, shard by shard.

    Heads are scored once: every weighting of them is then arithmetic over these files. Scores are
    raw and centred (the means are in score.json). Run the same command again after a crash or
    Ctrl-C: only shards that are missing or damaged are scored. Another model, other data or another
    plan makes a new folder beside the old one. Exit code 3: finished, but some shards failed.

    Example: encore score my-study --model my-study/training/KEY
    """
    refuse_missing_folder("reward model", config.model)
    from encore.data.study import open_study
    from encore.scoring.head_accuracy import scoring_accuracies
    from encore.scoring.scoring_run import score_study

    opened = open_study(study)
    with terminal_reporter() as reporter:
        result = score_study(opened, config, how, reporter=reporter)
    all_pairs, held_out = scoring_accuracies(opened, result) if result.is_complete else ((), ())
    scoring = {
        **dataclasses.asdict(result),
        "tokens_per_second": result.tokens_per_second,
        "accuracy": all_pairs,
        "accuracy_held_out": held_out,
    }
    tables = [_accuracy_table(all_pairs, held_out)] if all_pairs else []
    show_result(scoring, tables, result.notes, synthetic=result.synthetic, as_json=json)
    speed = result.tokens_per_second
    say(
        f"{result.num_scores:,} scores of {result.num_pairs:,} pairs in {result.out}: "
        f"{result.num_reused:,} of {result.num_shards:,} shards reused, {result.seconds:.1f} s"
        + (f", {speed:,.0f} tokens/s" if speed else "")
    )
    warn_of_failures(result.failures, result.num_shards)
    if result.is_complete:
        say_next("sql", opened.path, "--query", "head_accuracy")


def _accuracy_table(all_pairs: Sequence[HeadAccuracy], held_out: Sequence[HeadAccuracy]) -> Table:
    """Return a table with a line for each head: its accuracy under two tie policies.

    Args:
        all_pairs: Accuracy of each head on all pairs.
        held_out: Accuracy of each head on the pairs that training held out, or nothing.
    """
    columns: dict[str, Any] = {
        "head": "head_id",
        "half": percent_of("half"),
        "strict": percent_of("strict"),
        "ties": "num_ties",
    }
    title = f"Heads on {all_pairs[0].num_pairs:,} pairs"
    if held_out:
        half_by_head = {accuracy.head_id: accuracy.half for accuracy in held_out}
        columns["held out"] = lambda accuracy: percent(half_by_head[accuracy.head_id])
        title += f", {held_out[0].num_pairs:,} of them held out from training"
    return record_table(all_pairs, columns, title=title)
