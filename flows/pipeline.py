"""Flow: from preference pairs to ENCORE weights, or with a recipe on to the benchmark's table.

As a command, with or without a Prefect server:
``python -m flows.pipeline SOURCE... --out STUDY --judge JUDGE``, or
``python -m flows.pipeline --recipe NAME --out STUDY``.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from prefect.client.schemas.objects import State
from prefect.states import Completed
from pydantic import BaseModel

from encore.core.command_parser import UsageError
from encore.core.config import StageConfig, option, option_metadata
from encore.core.terminal import visible
from encore.data.sources.pku import Prefer
from encore.data.study import open_study
from encore.data.study_options import StudyFolder
from encore.judges.judge_options import JudgeConfig
from encore.recipes.recipe import RECIPE_NAMES, RecipeRating, Weighing, load_recipe, make_recipe
from encore.reports.write_report import report as write_report
from flows.command import call_main, run_flow
from flows.recipes import run_recipe, run_under_prefect
from flows.study_flow import study_flow
from tasks.artifacts import publish_report, publish_tracked
from tasks.flow_reporter import Tracker
from tasks.pool_servers import ServersConfig
from tasks.rate import ShardAttempts
from tasks.stage_task import run_stage
from tasks.tracking.study_runs import weighing_run
from tasks.tracking.tracking_options import TrackingConfig

_sources = partial(
    option,
    positional=True,
    metavar="SOURCE...",
    help="What to read, each as [LABEL=][FORMAT:]WHERE; `encore ingest --help` lists all.",
)


class PipelineConfig(StageConfig):
    """Sources, judge and weighting scheme: from preference pairs to weights."""

    sources: tuple[str, ...] = _sources(min_length=1)
    study: StudyFolder = option(name="out", beside_recipe=True, metavar="STUDY")
    """The study directory; made if it is not there."""
    rating: RecipeRating
    prefer: Prefer | None = option(None)
    """Which label of raw PKU-SafeRLHF says what is chosen."""
    weighing: Weighing = Weighing()


@study_flow("pipeline", stage="pipeline")
def pipeline(
    config: PipelineConfig,
    attempts: ShardAttempts = ShardAttempts(),
    servers: ServersConfig = ServersConfig(),
    tracking: TrackingConfig = TrackingConfig(),
) -> State:
    """Ingest pairs, have a judge rate them, measure the rules, weigh them, show that in MLflow.

    Running it again does only what is not done.
    """
    return run_pipeline(config, attempts=attempts, servers=servers, tracking=tracking)


def run_pipeline(
    config: PipelineConfig,
    *,
    attempts: ShardAttempts,
    servers: ServersConfig,
    tracking: TrackingConfig,
) -> State:
    """Run the stages of a pipeline in the current flow run, and return its final state."""
    values = dict(config)
    study: Path = values.pop("study")
    values |= {"name": "pipeline", "about": "From preference pairs to weights."}
    recipe = make_recipe(values, origin="of flow pipeline")
    tracker = Tracker(study, tracking)
    result = run_under_prefect(recipe, study, tracker=tracker, attempts=attempts, servers=servers)
    report = run_stage("report", lambda: write_report(result.run_dir))
    publish_report(report, study=study)
    results = study / "recipes" / recipe.name
    weights_run = weighing_run(
        open_study(study),
        result.run_dir,
        result.weighed,
        analysis_file=results / "analysis.json",
        other_files=[results / "weights.json", report.page],
    )
    projection = tracker(now=True, weighings=[weights_run])
    publish_tracked(projection, result.run_dir, study=study)
    message = "; ".join((result.report.message, *result.notes))
    return Completed(message=message, data=result.weighed.vector)


class _Judge(JudgeConfig):
    model: str | None = option(  # type: ignore[assignment]  # a recipe has a judge of its own
        None, name="judge", beside_recipe=True
    )
    """The judge, as `encore rate` takes it; with --recipe: in place of its own."""


class _Rating(RecipeRating):
    judge: _Judge = _Judge()


class PipelineCommand(PipelineConfig):
    """Either sources and a judge, or a recipe."""

    sources: tuple[str, ...] = _sources(())
    recipe: str | None = option(None, beside_recipe=True, metavar="NAME_OR_TOML")
    """Instead of SOURCE and --judge: a named run up to the benchmark's table, or your own file.
    docs/recipes.md says what each one takes."""
    rating: _Rating = _Rating()
    benchmark_data: Path | None = option(None, beside_recipe=True, metavar="PATH")
    """With --recipe: the benchmark's rows as local files; default: the recipe's, or the hub."""


def main(
    config: PipelineCommand,
    tracking: TrackingConfig = TrackingConfig(),
    attempts: ShardAttempts = ShardAttempts(),
) -> None:
    """From preference pairs to weights under Prefect: ingest, rate, analyze, weigh.

    With --recipe further, to the table: train, the baselines, gate, score, benchmark, export.
    Recipes: hh_pku_encore_10 (the paper's main experiment), fsfairx (its second backbone),
    hh_full_8b_10 and hh_full_8b_20 (all of HH under an 8B judge, ten and twenty rules), top_5 (its
    rule selection), probe (a frozen backbone), demo (small, offline, synthetic).

    Without PREFECT_API_URL a temporary server is started for this run; with it, the run and its
    artifacts (progress, failed shards, rule statistics, rule weights) are kept on that server. Run
    the same command again to do only what is not done.

    Exit code 3: finished, but some shards failed.

    Example: python -m flows.pipeline hh=pairs.jsonl.gz --out study --judge ./my-judge --limit 200

    Example: python -m flows.pipeline --recipe demo --out demo-recipe
    """
    rating = config.rating.set_options()
    set_values = config.model_dump(exclude_unset=True) | {"rating": rating}
    if config.recipe is None:
        flow_config = _pipeline_config(config, set_values)
        run_flow(pipeline, config=flow_config, attempts=attempts, tracking=tracking)
        return
    for name in sorted(_recipes_own_options(config)):
        option_name = "SOURCE" if name == "sources" else f"--{name.replace('_', '-')}"
        raise UsageError(f"{option_name} is the recipe's to say; leave it out")
    changes = {"rating": rating}
    if config.benchmark_data is not None:
        changes["benchmark"] = {"pairs": {"data": config.benchmark_data}}
    result = run_flow(
        run_recipe,
        recipe=config.recipe if config.recipe in RECIPE_NAMES else load_recipe(config.recipe),
        study=config.study,
        changes=changes,
        tracking=tracking,
        attempts=attempts,
    )
    for table in filter(None, (result.table, *result.further_tables)):
        sys.stdout.write(visible(table.read_text(encoding="utf-8")))
    for note in result.notes:
        sys.stdout.write(visible(f"- {note}\n"))


def _pipeline_config(config: PipelineCommand, set_values: Mapping[str, Any]) -> PipelineConfig:
    """Return the options of the flow without a recipe; raise UsageError if some do not fit it."""
    if config.benchmark_data is not None:
        raise UsageError("--benchmark-data belongs to --recipe")
    if not config.sources or config.rating.judge.model is None:
        missing = "--judge" if config.sources else "SOURCE"
        raise UsageError(f"{missing} is missing; give SOURCE... and --judge, or --recipe")
    names = PipelineConfig.model_fields.keys() & set_values.keys()
    return PipelineConfig(**{name: set_values[name] for name in names})


def _recipes_own_options(config: BaseModel) -> set[str]:
    """Return the names of options that were set although a recipe determines them."""
    names = set()
    for name in config.model_fields_set:
        value, field = getattr(config, name), type(config).model_fields[name]
        if isinstance(value, BaseModel):
            names |= _recipes_own_options(value)
        elif not option_metadata(field).get("beside_recipe"):
            names.add(name)
    return names


if __name__ == "__main__":
    call_main(main, name="flows.pipeline")
