"""Flow: a recipe, from preference pairs to the benchmark's table and an exported model.

As a command: ``python -m flows.pipeline --recipe NAME --out STUDY``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from prefect import get_run_logger
from prefect.client.schemas.objects import State
from prefect.states import Completed

from encore.data.study_options import StudyFolder
from encore.recipes.recipe import Recipe, RecipeName, changed, load_recipe
from encore.recipes.recipe_run import RecipeResult, Work
from encore.recipes.recipe_run import run_recipe as run_stages
from flows.study_flow import study_flow
from tasks import artifacts
from tasks.flow_reporter import FlowReporter, Tracker
from tasks.pool_servers import ServersConfig
from tasks.rate import ShardAttempts, rate_shards
from tasks.stage_task import run_stage
from tasks.tracking.tracking_options import TrackingConfig

_PUBLISHERS: dict[str, Callable[..., None]] = {
    "analyze": artifacts.publish_statistics,
    "weigh": artifacts.publish_weights,
    "train": artifacts.publish_evaluation,
    "benchmark": artifacts.publish_table,
}
#: Stages after which there is something new to log in MLflow.
_TRACKED_STAGES = ("judge", "train", "gate", "score", "benchmark")


@study_flow("recipe", stage="recipe")
def run_recipe(
    recipe: RecipeName | Recipe,
    study: StudyFolder,
    changes: dict[str, Any] | None = None,
    tracking: TrackingConfig = TrackingConfig(),
    attempts: ShardAttempts = ShardAttempts(),
    servers: ServersConfig = ServersConfig(),
) -> State:
    """Ingest, rate, analyze, weigh, train, gate, score, benchmark, export.

    Running it again repeats no finished stage, and of an unfinished one only what is missing.

    Args:
        recipe: A shipped recipe's name, or all of a recipe.
        study: The study's directory, made if it is not there; relative to the working directory.
        changes: Values of the recipe that this machine or a pilot needs otherwise, as its TOML has
            them: `{"rating": {"limit": 200, "judge": {"model": "./judge"}}}`.
        tracking: The MLflow store and experiment.
        attempts: Number of attempts at a rating shard.
        servers: Options of the judge's servers on the GPU pool.
    """
    chosen = changed(recipe if isinstance(recipe, Recipe) else load_recipe(recipe), changes or {})
    tracker = Tracker(study, tracking)
    result = run_under_prefect(chosen, study, tracker=tracker, attempts=attempts, servers=servers)
    artifacts.publish_tracked(tracker(now=True), study=study)
    num_now, num_before = len(result.done_now), len(result.done_before)
    message = f"{num_now} stages done, {num_before} were done before; {result.report.summary}"
    if result.table is not None:
        message += f"; table {result.table}"
    return Completed(message=f"{chosen.name}: {message}", data=result)


def run_under_prefect(
    recipe: Recipe,
    study: Path,
    *,
    tracker: Tracker,
    attempts: ShardAttempts,
    servers: ServersConfig,
) -> RecipeResult:
    """Run a recipe in a flow: every stage is a task, its results are artifacts and in MLflow."""

    def call(stage: str, work: Work) -> Any:
        kind = stage.partition("-")[0]
        is_training = kind in ("train", "gate")
        reporter = FlowReporter(stage, study, tracker=tracker if is_training else None)
        result = run_stage(stage, lambda: work(reporter))
        if kind in _PUBLISHERS:
            _PUBLISHERS[kind](result, study=study)
        for note in getattr(result, "notes", ()):
            get_run_logger().warning("%s: %s", stage, note)
        if kind in _TRACKED_STAGES:
            tracker(now=True)
        return result

    return run_stages(
        recipe, study, call=call, rate=partial(rate_shards, attempts=attempts, servers=servers)
    )
