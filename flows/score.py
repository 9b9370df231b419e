"""Flow: every head's score of every response of a study.

As a command, with or without a Prefect server: ``python -m flows.score STUDY --model MODEL``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Completed

from encore.config import StageConfig, option
from encore.errors import StudyIncompleteError
from encore.scores.driver import ScoreResult
from encore.scores.held_out import accuracies_of
from encore.scores.run import Layout
from flows.command import run_command
from tasks.artifacts import publish_head_accuracy
from tasks.flow_reporter import FlowReporter
from tasks.stage import Attempts, log_expected_errors_in_one_line, run_stage


class ScoreConfig(StageConfig):
    """What is scored, by which model."""

    study: Path = option(positional=True, help="The study directory (made by `encore ingest`).")
    model: str = option(
        metavar="FOLDER_OR_ID",
        help="A training run or its model folder, an export, or a plain reward model's hub id.",
    )
    out: Path | None = option(
        None, metavar="DIR", help="Where the scores go; default: STUDY/scores/KEY."
    )
    limit: int | None = option(None, ge=1, help="Pilot: this many pairs, by content hash.")
    shard_size: int = option(1000, ge=1, help="Pairs in each file.")
    layout: Layout = option("auto", help="How responses are put side by side: changes speed alone.")
    tokens_per_microbatch: int | None = option(
        None, ge=1, help="Tokens of one forward pass: bounds the memory. Default: by device."
    )
    max_length: int | None = option(
        None, ge=16, help="Tokens of a conversation; default: as the model was trained."
    )
    dtype: Literal["auto", "float32", "bfloat16"] = option("auto", help="Of the model.")
    revision: str | None = option(None, help="Of a hub id.")


class ScoringAttempts(Attempts):
    """How hard a scoring is tried."""

    retries: int = option(
        2,
        name="scoring-retries",
        ge=0,
        le=10,
        identity=False,
        help="Attempts after a network or a device failed.",
    )


@flow(name="score", persist_result=False)
def score(config: ScoreConfig, attempts: ScoringAttempts = ScoringAttempts()) -> State:
    """Score a study's responses under Prefect: the same files as `encore score`.

    Without PREFECT_API_URL a temporary server is started for this run; with it, the run and its
    artifact (how often each head ranks a pair as people did) are kept on that server. Run the same
    command again after a crash or Ctrl-C: only shards that are missing or damaged are scored.

    Example: python -m flows.score study --model study/training/KEY
    """
    log_expected_errors_in_one_line()

    def work() -> ScoreResult:
        from encore.scores.score import score_study

        reporter = FlowReporter("score")
        num_done = 0

        def tell(progress: object) -> None:
            nonlocal num_done
            if not num_done:
                reporter.started("scoring", total=progress.num_pairs)
            note = f"{progress.tokens_per_second:.0f} tokens/s"
            reporter.advanced(progress.num_done - num_done, note=note)
            num_done = progress.num_done

        options = config.model_dump(exclude={"study"})
        result = score_study(config.study, **options, on_progress=tell)
        if not result.is_complete:
            index, error = next(iter(result.failures.items()))
            raise StudyIncompleteError(
                f"{len(result.failures)} of {result.num_shards} shards failed, first {index}: "
                f"{error}; a run with the same parameters scores only these"
            )
        return result

    result = run_stage("score", work, attempts=attempts, tags=frozenset({"score"}))
    every, held_out = accuracies_of(config.study, result)
    about = [f"Scores of {result.num_pairs} pairs: `{result.out}`.", *result.notes]
    if held_out:
        about.append(f"Held out from the model's training: {held_out[0].num_pairs} pairs.")
    publish_head_accuracy(every, held_out, *about, *map("Synthetic: {}.".format, result.synthetic))
    num_scored = result.num_shards - result.num_reused
    return Completed(
        message=f"{result.num_scores} scores of {result.num_pairs} pairs: {num_scored} shards "
        f"scored, {result.num_reused} reused",
        data=result,
    )


if __name__ == "__main__":
    run_command(score)
