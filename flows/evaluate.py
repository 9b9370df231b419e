"""Flow: a benchmark's table of a study's reward models, every row compared in MLflow.

As a command, with or without a Prefect server: ``python -m flows.evaluate STUDY --model MODEL``.
"""

from __future__ import annotations

from prefect.client.schemas.objects import State
from prefect.states import Completed

from encore.benchmarks.benchmark_options import BenchmarkConfig, BenchmarkRunOptions
from encore.core.config import StageConfig, option
from encore.data.study import open_study
from encore.data.study_options import StudyArgument
from flows.command import run_command
from flows.score import ScoringAttempts
from flows.study_flow import study_flow
from tasks.artifacts import publish_table, publish_tracked
from tasks.flow_reporter import FlowReporter, Tracker
from tasks.stage_task import run_stage
from tasks.tracking.register_model import DEFAULT_MODEL, set_alias
from tasks.tracking.tracking_options import TrackingConfig


class AliasConfig(StageConfig):
    """Rows that are registered in MLflow, by alias."""

    candidate: str | None = option(None, metavar="ROW")
    """Register this row, e.g. 'encore (τ 2)', under the alias candidate."""
    champion: str | None = option(None, metavar="ROW")
    """The same under the alias champion."""
    registered_model: str = option(DEFAULT_MODEL, pattern=r"^[A-Za-z0-9][\w.-]{0,127}$")
    """The registered model whose aliases move."""


@study_flow("evaluate", stage="evaluate")
def evaluate(
    study: StudyArgument,
    config: BenchmarkConfig,
    how: BenchmarkRunOptions = BenchmarkRunOptions(),
    tracking: TrackingConfig = TrackingConfig(),
    aliases: AliasConfig = AliasConfig(),
    attempts: ScoringAttempts = ScoringAttempts(),
) -> State:
    """Benchmark a study under Prefect and compare every row in MLflow.

    The same files as `encore benchmark`. Every row is a run, with the same parameters and metrics
    as every other, inside the study's run: select some and compare. Without PREFECT_API_URL a
    temporary server is started for this run; with it, the run and its table are kept on that
    server. Run the same command again after a crash or Ctrl-C: nothing is scored or logged twice.

    Example: python -m flows.evaluate study --model study/training/KEY --candidate "encore (τ 2)"
    """
    from encore.benchmarks.run_benchmark import run_benchmark  # brings torch

    reporter = FlowReporter("benchmark", study)
    tracker = Tracker(study, tracking, out=how.out)
    run = run_stage(
        "benchmark",
        lambda: run_benchmark(open_study(study), config, how, reporter=reporter),
        attempts=attempts,
    )
    publish_table(run, study=study)
    row_by_alias = aliases.model_dump(include={"candidate", "champion"}, exclude_none=True)
    projection = tracker(now=True)
    publish_tracked(projection, run.out, study=study)
    scored = f"{run.num_computed} pairs scored" if run.num_computed else "scored before"
    logged = f"{projection.num_new} runs logged" if projection else "MLflow was away"
    message = f"{len(run.rows)} rows, {scored}, {logged}; {run.out}"
    if projection is None and row_by_alias:
        message += "; no alias was set: run this again"
    for alias, row in row_by_alias.items() if projection else ():
        model = aliases.registered_model
        version = set_alias(
            study,
            config,
            row=row,
            table=run.out,
            alias=alias,
            tracking=tracking,
            model=model,
            device=how.device,
        )
        message += f"; {model} version {version} is the {alias}"
    return Completed(message=message, data=str(run.out))


if __name__ == "__main__":
    run_command(evaluate)
