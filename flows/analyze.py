"""Flow: entropy and accuracy of every rule.

As a command, with or without a Prefect server: ``python -m flows.analyze RATINGS``.
"""

from __future__ import annotations

from prefect.client.schemas.objects import State
from prefect.states import Completed

from encore.analysis.analyze import analyze as analyze_ratings
from encore.core.errors import StudyIncompleteError
from encore.data.study_options import RatingsConfig
from encore.warehouse import Ratings, open_ratings
from flows.command import run_command
from flows.study_flow import study_flow
from tasks.artifacts import publish_statistics
from tasks.stage_task import Attempts, run_stage


@study_flow("analyze", stage="analyze")
def analyze(config: RatingsConfig, attempts: Attempts = Attempts()) -> State:
    """Measure each rule under Prefect: the entropy of its ratings and its accuracy, in an artifact.

    Without PREFECT_API_URL a temporary server is started for this run; with it, the run and its
    artifact (the statistics of the rules) are kept on that server. `encore analyze` shows more.

    Exit code 3: the run is not complete; the figures are those of its finished shards.

    Example: python -m flows.analyze study
    """
    analysis = run_stage(
        "analyze",
        lambda: analyze_ratings(
            open_ratings(
                config.ratings,
                run=config.run,
                judge=config.judge,
                rating=config.rating,
                **config.table_layout,
            )
        ),
        attempts=attempts,
    )
    publish_statistics(analysis, study=config.ratings)
    raise_if_incomplete(analysis.ratings)
    num_ratings = sum(rule.num_ratings for rule in analysis.rules)
    return Completed(message=f"{len(analysis.rules)} rules, {num_ratings} ratings", data=analysis)


def raise_if_incomplete(ratings: Ratings) -> None:
    """Raise an error if shards that the figures need are missing.

    Raises:
        StudyIncompleteError: Shards are missing, and those that are done are not enough.
    """
    if ratings.num_missing_shards and not ratings.sufficiency_note:
        raise StudyIncompleteError(
            f"{ratings.num_missing_shards} of {ratings.num_shards} shards are not done and not in "
            "these figures; a run of rate-pairs with the same parameters rates exactly these"
        )


if __name__ == "__main__":
    run_command(analyze)
