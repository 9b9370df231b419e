"""Flow: every head's score of every response of a study.

As a command, with or without a Prefect server: ``python -m flows.score STUDY --model MODEL``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prefect.client.schemas.objects import State
from prefect.states import Completed

from encore.data.study import open_study
from encore.data.study_options import StudyArgument
from encore.runs.worker import raise_for_failed_shards
from encore.scoring.scoring_options import ScoringConfig, ScoringRunOptions
from flows.command import run_command
from flows.study_flow import study_flow
from tasks.artifacts import publish_head_accuracy
from tasks.flow_reporter import FlowReporter
from tasks.stage_task import Attempts, retries_option, run_stage

if TYPE_CHECKING:
    from encore.scoring.scoring_run import ScoreResult


class ScoringAttempts(Attempts):
    """Number of attempts at a scoring."""

    retries: int = retries_option("scoring-retries")


@study_flow("score", stage="score")
def score(
    study: StudyArgument,
    config: ScoringConfig,
    how: ScoringRunOptions = ScoringRunOptions(),
    attempts: ScoringAttempts = ScoringAttempts(),
) -> State:
    """Score a study's responses under Prefect: the same files as `encore score`.

    Without PREFECT_API_URL a temporary server is started for this run; with it, the run and its
    artifact (how often each head ranks a pair as people did) are kept on that server. Run the same
    command again after a crash or Ctrl-C: only shards that are missing or damaged are scored.

    Example: python -m flows.score study --model study/training/KEY
    """

    def work() -> ScoreResult:
        from encore.scoring.scoring_run import score_study  # brings torch

        reporter = FlowReporter("score", study)
        result = score_study(open_study(study), config, how, reporter=reporter)
        raise_for_failed_shards(result.out, result.failures, num_shards=result.num_shards)
        return result

    result = run_stage("score", work, attempts=attempts)
    num_scored = result.num_shards - result.num_reused
    from encore.scoring.head_accuracy import scoring_accuracies  # brings torch

    all_pairs, held_out = scoring_accuracies(open_study(study), result)
    paragraphs = [
        f"Scores of {result.num_pairs} pairs: `{result.out}`.",
        *result.notes,
        *(f"Synthetic: {part}." for part in result.synthetic),
    ]
    publish_head_accuracy(all_pairs, held_out, *paragraphs, study=study)
    return Completed(
        message=f"{result.num_scores} scores of {result.num_pairs} pairs: {num_scored} shards "
        f"scored, {result.num_reused} reused",
        data=result,
    )


if __name__ == "__main__":
    run_command(score)
