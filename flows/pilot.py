"""Flow: which rules to trust, from a sample of your own pairs. Its form has three fields."""

from __future__ import annotations

from typing import Annotated, Any

from prefect.client.schemas.objects import State
from pydantic import Field, ValidationError

from encore.core.errors import InputError, first_problem
from encore.data.study_options import StudyFolder
from encore.recipes.recipe import merged
from flows.pipeline import PipelineConfig, run_pipeline
from flows.study_flow import study_flow
from tasks.pool_servers import ServersConfig
from tasks.rate import ShardAttempts
from tasks.tracking.tracking_options import TrackingConfig


@study_flow("pilot", stage="pilot")
def pilot(
    sources: list[str],
    study: StudyFolder,
    judge: str,
    num_pairs: Annotated[int, Field(ge=1)] = 200,
    how: dict[str, Any] | None = None,
) -> State:
    """Have a judge rate a sample of pairs, and say which rules to trust, in a table and on a page.

    Running it again with more pairs rates only those that are new.

    Args:
        sources: What to read, each as [LABEL=][FORMAT:]WHERE: a file with prompt, chosen and
            rejected, or hh-pku for the paper's data.
        study: The study's directory, made if it is not there; relative to the working directory.
        judge: The judge: a folder with a model, a hub id, or a file judge.toml.
        num_pairs: Pairs that are rated, drawn by their content hash.
        how: Further values, in the words of encore-pipeline: `{"rating": {"engines": "auto"},
            "weighing": {"tau": 1.0}}`.
    """
    rating = {"judge": {"model": judge}, "limit": num_pairs}
    values = merged({"sources": sources, "study": study, "rating": rating}, how or {})
    try:
        config = PipelineConfig.model_validate(values)
    except ValidationError as error:
        problem = first_problem(error)
        raise InputError(f"{problem.path} {problem.value!r}: {problem.message}") from error
    return run_pipeline(
        config, attempts=ShardAttempts(), servers=ServersConfig(), tracking=TrackingConfig()
    )
