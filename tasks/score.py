"""Task: score every response of a study under every head of a reward model.

What is done is read from the shards on disk, so the task is neither cached nor persisted: another
attempt, in this process or any other, scores only what is missing or damaged.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from prefect import get_run_logger, task
from prefect.artifacts import create_table_artifact
from prefect.cache_policies import NO_CACHE

from encore.errors import StudyIncompleteError
from encore.scores.accuracy import HeadAccuracy
from encore.scores.driver import ScoreResult, ScoringProgress
from encore.scores.held_out import accuracies_of
from encore.scores.run import Layout
from encore.settings import quiet_environment
from tasks.artifacts import NOTHING
from tasks.attempts import is_worth_another_attempt, release_memory

DEFAULT_RETRIES = 2
RETRY_DELAYS_SECONDS = (10.0, 60.0)
_LOG_SECONDS = 30.0
_DIGITS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredStudy:
    """What a scoring left, and how the heads rank."""

    result: ScoreResult
    accuracies: tuple[HeadAccuracy, ...]
    #: On the pairs that the model's training held out; empty where that is not known.
    held_out: tuple[HeadAccuracy, ...] = ()

    @property
    def summary(self) -> str:
        """One line: what is there, what was done for it."""
        result = self.result
        num_scored = result.num_shards - result.num_reused
        return (
            f"{result.num_scores} scores of {result.num_pairs} pairs: {num_scored} shards scored, "
            f"{result.num_reused} reused"
        )


@task(
    name="score",
    tags={"score"},  # a concurrency limit on this tag bounds the scorings at work everywhere
    retries=DEFAULT_RETRIES,
    retry_delay_seconds=list(RETRY_DELAYS_SECONDS),
    retry_condition_fn=is_worth_another_attempt,
    cache_policy=NO_CACHE,
    persist_result=False,
)
def score_heads(
    study: Path,
    *,
    model: str,
    out: Path | None,
    limit: int | None,
    shard_size: int,
    layout: Layout,
    tokens_per_microbatch: int | None,
    max_length: int | None,
    dtype: str,
    revision: str | None,
) -> ScoredStudy:
    """Score what is not scored yet; every shard is then whole.

    Raises:
        StudyIncompleteError: Shards that failed on their own: which, and why.
        EncoreError: As `encore.scores.score.score_study`.
    """
    quiet_environment()
    from encore.scores.score import score_study

    try:
        result = score_study(
            study,
            model=model,
            out=out,
            limit=limit,
            shard_size=shard_size,
            layout=layout,
            tokens_per_microbatch=tokens_per_microbatch,
            max_length=max_length,
            dtype=dtype,
            revision=revision,
            on_progress=_logged(get_run_logger()),
        )
    except Exception as error:
        release_memory(error)
        raise
    if not result.is_complete:
        index, error = next(iter(result.failures.items()))
        raise StudyIncompleteError(
            f"{len(result.failures)} of {result.num_shards} shards failed, first {index}: {error}; "
            "a run with the same parameters scores only these"
        )
    every, held_out = accuracies_of(study, result)
    return ScoredStudy(result=result, accuracies=every, held_out=held_out)


def publish_head_accuracy(scored: ScoredStudy) -> None:
    """A table of the heads: how often each ranks a pair as people did."""
    rows: list[dict[str, float | str]] = [
        {
            "head": one.head_id,
            "half": round(one.half, _DIGITS),
            "strict": round(one.strict, _DIGITS),
            "ties": one.num_ties,
        }
        for one in scored.accuracies
    ]
    for row, one in zip(rows, scored.held_out, strict=False):
        row["held out"] = round(one.half, _DIGITS)
    about = (
        f"Every head on {scored.result.num_pairs} pairs: a tie counts one half, or as a miss "
        f"(strict). Scores: `{scored.result.out}`."
    )
    if scored.held_out:
        about += (
            f" Held out: the {scored.held_out[0].num_pairs} pairs whose prompts training would "
            "have held out; the others the model may have learnt from."
        )
    notes = [*scored.result.notes, *(f"Synthetic: {part}." for part in scored.result.synthetic)]
    create_table_artifact(
        rows or [{"head": NOTHING, "half": NOTHING, "strict": NOTHING, "ties": NOTHING}],
        key="head-accuracy",
        description="\n\n".join([about, *notes]),
    )


def _logged(
    log: logging.Logger | logging.LoggerAdapter[logging.Logger],
    *,
    clock: Callable[[], float] = time.monotonic,
) -> Callable[[ScoringProgress], None]:
    """Tells the flow run's log now and then how far it is."""
    next_line = clock()

    def tell(progress: ScoringProgress) -> None:
        nonlocal next_line
        if clock() < next_line and progress.num_done < progress.num_pairs:
            return
        next_line = clock() + _LOG_SECONDS
        log.info(
            "%d of %d pairs scored, %.0f tokens/s",
            progress.num_done,
            progress.num_pairs,
            progress.tokens_per_second,
        )

    return tell
