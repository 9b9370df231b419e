"""Flow: a recipe, from preference pairs to the benchmark's table and an exported model.

As a command: ``python -m flows.pipeline --recipe NAME --out STUDY``.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

from prefect import flow, get_run_logger
from prefect.client.schemas.objects import State
from prefect.states import Completed
from prefect.task_runners import ThreadPoolTaskRunner
from pydantic import Field

from encore.rating_driver import NUM_WORKERS
from encore.recipes.changes import JudgeChanges, changed
from encore.recipes.checks import check_names
from encore.recipes.needs import (
    Machine,
    refuse_judge_too_large,
    refuse_training_too_large,
    this_machine,
)
from encore.recipes.recipe import Recipe
from encore.recipes.shipped import RecipeName, load_recipe
from encore.recipes.stages import StageBook
from encore.shards import list_runs, run_status, validated_shards
from encore.weighting.opening import ratings_digest
from flows.rate_pairs import Retries, Seconds
from flows.rating_stage import rate_study
from flows.recipe_stages import (
    Job,
    analyze,
    benchmark,
    export,
    ingest,
    row_model,
    score,
    table_path,
    train,
    train_gate,
    weigh,
)
from tasks.errors import log_expected_errors_in_one_line
from tasks.rate import DEFAULT_RETRIES
from tasks.recipe import check_recipe
from tasks.track_training import DEFAULT_EXPERIMENT
from tasks.tracking_uri import choose_tracking_uri, refuse_secret


@flow(
    name="recipe",
    task_runner=ThreadPoolTaskRunner[Any](max_workers=NUM_WORKERS),
    persist_result=False,
)
def run_recipe(
    recipe: RecipeName | Recipe,
    study: Path,
    changes: JudgeChanges | None = None,
    benchmark_data: Path | None = None,
    tracking_uri: str | None = None,
    experiment: Annotated[str, Field(min_length=1)] = DEFAULT_EXPERIMENT,
    shard_timeout_seconds: Seconds | None = None,
    shard_retries: Retries = DEFAULT_RETRIES,
) -> State:
    """Ingest, rate, analyze, weigh, train, gate, score, benchmark, export.

    Running it again repeats no finished stage, and of an unfinished one only what is missing.

    Args:
        recipe: A shipped recipe's name, or all of a recipe.
        study: The study's directory, made if it is not there; relative to the working directory.
        changes: What this machine or a pilot needs otherwise, such as the judge's number of GPUs.
        benchmark_data: The benchmark's rows as local files; default: the recipe's, or the hub.
        tracking_uri: MLflow's store, without a password; default: MLFLOW_TRACKING_URI, or a file in
            the study.
        experiment: MLflow's; made if it is not there.
        shard_timeout_seconds: Give up on a rating shard whose generation takes longer.
        shard_retries: Further attempts for a rating shard that fails.
    """
    log_expected_errors_in_one_line()
    refuse_secret(tracking_uri)
    named = recipe if isinstance(recipe, Recipe) else load_recipe(recipe)
    chosen = changed(named, changes or JudgeChanges(), benchmark_data=benchmark_data)
    check_names(chosen)
    job = Job(
        recipe=chosen,
        study=study,
        book=StageBook(study=study, recipe=chosen.name, on_stage=_logged, on_wait=_waiting),
        tracking_uri=choose_tracking_uri(study, given=tracking_uri),
        experiment=experiment,
    )
    machine = this_machine()
    _check_machine(job, machine)
    ingest(job)
    if job.book.recorded("benchmark") is None:
        check_recipe(chosen)
    plan, report, failed = rate_study(
        study,
        chosen.rating,
        only=None,
        shard_timeout_seconds=shard_timeout_seconds,
        shard_retries=shard_retries,
        before_judge=partial(refuse_judge_too_large, chosen.rating.judge, machine=machine),
    )
    if failed is not None:
        return failed
    (job.book.done_now if plan.num_open else job.book.done_before).append("rate")
    ratings = ratings_digest(validated_shards(run_status(plan.run_dir)))
    analyze(job, plan, ratings=ratings)
    weigh(job, plan, ratings=ratings)
    model = train(job, plan, ratings=ratings)
    rows = [row_model(job, row) for row in chosen.rows]
    gate = train_gate(job, model)
    score(job, model)
    benchmark(job, plan, ratings=ratings, model=model, rows=rows, gate=gate)
    export(job, plan, ratings=ratings, model=model)
    book = job.book
    return Completed(
        message=f"{chosen.name}: {len(book.done_now)} stages done, {len(book.done_before)} were "
        f"done before; {report.summary}; table {table_path(study, chosen)}",
        data=book,
    )


def _check_machine(job: Job, machine: Machine) -> None:
    """What cannot run here must not cost a download and hours; what was done elsewhere may stay.

    Whether ratings that are there leave any to the judge is known once the run is planned.
    """
    book = job.book
    if not list_runs(job.study / "ratings"):
        refuse_judge_too_large(job.recipe.rating.judge, machine=machine)
    stages = ["train", *(row.stage for row in job.recipe.rows)]
    done = {stage for stage in stages if book.recorded(stage) is not None}
    if book.recorded("benchmark") is None:
        refuse_training_too_large(job.recipe, machine=machine, done=done)


def _logged(stage: str, is_finished: bool) -> None:
    get_run_logger().info("stage %s: %s", stage, "done before" if is_finished else "to do")


def _waiting(stage: str) -> None:
    get_run_logger().warning(
        "stage %s: another process runs this recipe in this study; waiting for its stage", stage
    )
