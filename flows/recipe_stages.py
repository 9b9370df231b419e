"""The stages of a recipe: each does what is due, says what it left, and is passed over when done.

Together they are the flow of `flows.recipes`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefect.utilities.annotations import quote

from encore.benchmarks.benchmark_config import BenchmarkConfig, PairsConfig, RowsConfig
from encore.benchmarks.stored_tables import BENCHMARKS_DIR, TABLE_MARKDOWN
from encore.data.pairs import data_digest, labels_of, pair_files
from encore.data.study import open_study
from encore.errors import InputError
from encore.model.config import BackboneConfig
from encore.recipes.findings import write_analysis, write_weights
from encore.recipes.inputs import (
    ingest_inputs,
    table_inputs,
    training_inputs,
    untouched_row_inputs,
    weighing_inputs,
)
from encore.recipes.recipe import Recipe, RowModel
from encore.recipes.stages import StageBook, StageRecord, StageResult
from encore.training.config import TrainingConfig
from encore.weighting.scheme import SchemeOptions
from tasks.analyze import analyze_ratings
from tasks.artifacts import publish_statistics, publish_weights
from tasks.benchmark import (
    benchmark_study,
    publish_table,
    publish_tracked,
    track_benchmark,
    trainings_of,
)
from tasks.ingest import ingest_pairs
from tasks.rate import RatingPlan
from tasks.recipe import export_composed, train_gate_over
from tasks.score import publish_head_accuracy, score_heads
from tasks.train import RatingsChoice, train_model
from tasks.train_progress import publish_evaluation, publish_mlflow_run
from tasks.weigh import weigh_rules

#: Facts of stage records: paths relative to the study.
_MODEL, _OUT = "model", "out"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A recipe at work in a study.

    Attributes:
        recipe: What it says.
        study: The study's directory.
        book: What is finished.
        tracking_uri: Of MLflow's store.
        experiment: MLflow's, of the trainings.
    """

    recipe: Recipe
    study: Path
    book: StageBook
    tracking_uri: str
    experiment: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RowOfTable:
    """A reward model beside the heads.

    Attributes:
        name: Of its row.
        model: Where it is.
        revision: Of a hub id.
        token: What its scores follow from.
    """

    name: str
    model: str | Path
    revision: str | None = None
    token: Any


def table_path(study: Path, recipe: Recipe) -> Path:
    """Where a recipe's table is, as Markdown."""
    return study / BENCHMARKS_DIR / recipe.name / TABLE_MARKDOWN


def ingest(job: Job) -> None:
    """The pairs of the recipe's sources, and of no others.

    Raises:
        InputError: The study also has other pairs.
    """
    recipe, study = job.recipe, job.study
    inputs = ingest_inputs(recipe)

    def work() -> StageResult:
        # Pairs that are there and damaged are this recipe's own: they may be replaced.
        is_repair = job.book.was_done_with("ingest", inputs=inputs)
        manifest = ingest_pairs(recipe.sources, study, prefer=recipe.prefer, replace=is_repair)
        files = [pair_files(label) for label in manifest.num_pairs]
        outputs = (study / name for one in files for name in (one.pairs, one.manifest))
        labels = " ".join(manifest.num_pairs)
        return StageResult(outputs=tuple(outputs), facts={"labels": labels})

    record = job.book.once("ingest", inputs=inputs, work=work)
    own = set(record.facts["labels"].split())
    others = [label for label in labels_of(open_study(study)) if label not in own]
    if others:
        raise InputError(
            f"study {study}: it also has pairs labelled {', '.join(others)}, which are none of "
            f"recipe {recipe.name}'s; give the recipe a study of its own with --out"
        )


def analyze(job: Job, plan: RatingPlan, *, ratings: str) -> None:
    """Statistics of the rules; ``ratings`` is the digest of the run's files, here and below."""

    def work() -> StageResult:
        analysis = analyze_ratings(plan.run_dir)
        publish_statistics(analysis)
        return StageResult(outputs=(write_analysis(job.book.folder, analysis),))

    job.book.once("analyze", inputs={"ratings": ratings}, work=work)


def weigh(job: Job, plan: RatingPlan, *, ratings: str) -> None:
    """Weights by the recipe's scheme."""
    weighing = job.recipe.weighing

    def work() -> StageResult:
        options = SchemeOptions(tau=weighing.tau, k=weighing.k, seed=weighing.seed)
        weighed = weigh_rules(plan.run_dir, scheme=weighing.scheme, options=options)
        publish_weights(weighed)
        return StageResult(outputs=(write_weights(job.book.folder, weighed),))

    job.book.once("weigh", inputs=weighing_inputs(job.recipe, ratings=ratings), work=work)


def train(job: Job, plan: RatingPlan, *, ratings: str) -> StageRecord:
    """The multi-head model."""
    recipe = job.recipe
    return _trained(
        job,
        "train",
        backbone=recipe.backbone,
        training=recipe.training,
        choice=RatingsChoice(run=plan.run_key),
        learnt_from=ratings,
    )


def row_model(job: Job, row: RowModel) -> RowOfTable:
    """A row's model: trained on the pairs' preferences, or as it was downloaded."""
    if row.training is None:
        return RowOfTable(
            name=row.name,
            model=row.backbone.model,
            revision=row.backbone.revision,
            token=untouched_row_inputs(row),
        )
    record = _trained(
        job,
        row.stage,
        backbone=row.backbone,
        training=row.training,
        choice=RatingsChoice(),
        learnt_from=data_digest(open_study(job.study)),
    )
    return RowOfTable(name=row.name, model=job.study / record.facts[_MODEL], token=record.token)


def _trained(
    job: Job,
    stage: str,
    *,
    backbone: BackboneConfig,
    training: TrainingConfig,
    choice: RatingsChoice,
    learnt_from: str,
) -> StageRecord:
    limit = job.recipe.limit

    def work() -> StageResult:
        trained = train_model(
            job.study,
            backbone=backbone,
            training=training,
            ratings=choice,
            limit=limit,
            out=None,
            tracking_uri=job.tracking_uri,
            experiment=job.experiment,
        )
        publish_evaluation(trained.result)
        publish_mlflow_run(trained.tracked)
        model = trained.result.model_dir
        assert model is not None, "a run that ended has a model"
        return StageResult(
            outputs=(model, trained.result.out / "result.json"),
            facts={_MODEL: _within(model, job.study)},
        )

    inputs = training_inputs(backbone, training, limit=limit, learnt_from=learnt_from)
    return job.book.once(stage, inputs=inputs, work=work, is_one=True)


def train_gate(job: Job, model: StageRecord) -> StageRecord | None:
    """The gate over the model's heads; None where the recipe has none."""
    num_steps = job.recipe.gate_steps
    if num_steps is None:
        return None

    def work() -> StageResult:
        result = train_gate_over(
            job.study, model=_model_of(job, model), num_steps=num_steps, limit=job.recipe.limit
        )
        # Not its report, which says how long it took: a gate made again is the same gate.
        names = ("gate.json", "gate.safetensors")
        return StageResult(
            outputs=tuple(result.out / name for name in names),
            facts={_OUT: _within(result.out, job.study)},
        )

    inputs = {"model": model.token, "num_steps": num_steps, **_pairs_of(job)}
    return job.book.once("gate", inputs=inputs, work=work)


def score(job: Job, model: StageRecord) -> None:
    """Every head's score of pairs of the study."""
    recipe = job.recipe
    limit = min(filter(None, (recipe.limit, recipe.score_limit)), default=None)

    def work() -> StageResult:
        scored = score_heads(
            job.study,
            model=str(_model_of(job, model)),
            out=None,
            limit=limit,
            shard_size=recipe.rating.shard_size,
            layout="auto",
            tokens_per_microbatch=None,
            max_length=None,
            dtype="auto",
            revision=None,
        )
        publish_head_accuracy(scored)
        out = scored.result.out
        return StageResult(
            outputs=(out / "score.json", *sorted(out.glob("shard-*"))),
            facts={_OUT: _within(out, job.study)},
        )

    inputs = {"model": model.token, **_pairs_of(job), "limit": limit}
    job.book.once("score", inputs=inputs, work=work)


def benchmark(
    job: Job,
    plan: RatingPlan,
    *,
    ratings: str,
    model: StageRecord,
    rows: list[RowOfTable],
    gate: StageRecord | None,
) -> None:
    """The table of all rows, every row logged to MLflow."""
    recipe, study = job.recipe, job.study
    table = recipe.table

    def work() -> StageResult:
        config = BenchmarkConfig(
            model=str(_model_of(job, model)),
            reward_models=tuple(f"{row.name}={row.model}" for row in rows),
            row_revisions={row.name: row.revision for row in rows if row.revision is not None},
            gate=None if gate is None else study / gate.facts[_OUT],
            pairs=PairsConfig(benchmark=table.benchmark, data=table.data),
            rows=RowsConfig(
                schemes=table.schemes,
                taus=table.taus,
                k=recipe.weighing.k,
                num_random=table.num_random,
            ),
            run=plan.run_key,
            paper=table.paper,
            # Two recipes may share a model and its head scores; each has a table of its own.
            out=table_path(study, recipe).parent,
        )
        run = benchmark_study(study, config=config)
        publish_table(run)
        tracked = track_benchmark(
            quote(run),  # Prefect would look for futures in every pair
            study=study,
            uri=job.tracking_uri,
            experiment=None,
            trainings=trainings_of(config),
        )
        publish_tracked(tracked)
        return StageResult(outputs=(run.results_path, run.json_path, run.markdown_path))

    inputs = {
        "model": model.token,
        "ratings": ratings,
        "rows": [{"name": row.name, "from": row.token} for row in rows],
        "gate": None if gate is None else gate.token,
        "table": table_inputs(table),
        "k": recipe.weighing.k,
    }
    job.book.once("benchmark", inputs=inputs, work=work)


def export(job: Job, plan: RatingPlan, *, ratings: str, model: StageRecord) -> None:
    """The model folded by the recipe's weights."""
    recipe, out = job.recipe, job.study / "exports" / job.recipe.name

    def work() -> StageResult:
        result = export_composed(
            job.study, recipe=recipe, model=_model_of(job, model), run=plan.run_key, out=out
        )
        return StageResult(outputs=(result.folder,), facts={_OUT: _within(out, job.study)})

    inputs = {
        "model": model.token,
        **weighing_inputs(recipe, ratings=ratings),
        "dtype": recipe.export_dtype,
    }
    job.book.once("export", inputs=inputs, work=work, is_one=True)


def _model_of(job: Job, model: StageRecord) -> Path:
    return job.study / model.facts[_MODEL]


def _pairs_of(job: Job) -> Mapping[str, Any]:
    return {"pairs": data_digest(open_study(job.study)), "limit": job.recipe.limit}


def _within(path: Path, study: Path) -> str:
    """A path in the study, relative to it."""
    return path.resolve().relative_to(study.resolve()).as_posix()
