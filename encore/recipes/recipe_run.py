"""Run a recipe: its stages in order. No stage repeats work that its files show as done.

The caller decides how a stage is called: directly, or as a task of a flow.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from encore.analysis.analyze import analyze
from encore.analysis.answer_options import AnswerOptions
from encore.benchmarks.benchmark_options import (
    BenchmarkConfig,
    BenchmarkRunOptions,
    JudgeBenchmarkConfig,
)
from encore.benchmarks.benchmark_pairs import configured_pairs
from encore.benchmarks.definition import load_benchmark
from encore.core.config import part_of
from encore.core.errors import InputError
from encore.core.file_lock import file_lock
from encore.core.model_files import folder_digest
from encore.core.reporting import SILENT, Reporter
from encore.data import pairs
from encore.data.ingestion import ingest
from encore.data.pairs_manifest import Origin
from encore.data.rating_runs import list_runs, run_status
from encore.data.sources.locate import locate
from encore.data.study import is_new_study, open_study
from encore.judges.base import Judge
from encore.model.backbone_options import BackboneConfig
from encore.rating.rating_options import RatingConfig, RatingRunOptions
from encore.rating.rating_run import open_rating_judge, open_run
from encore.recipes.made_files import make_export, make_folder, write_if_changed
from encore.recipes.recipe import INITIAL, InitialModel, Recipe, RowModel
from encore.recipes.recipe_check import (
    check_names,
    check_readable,
    refuse_judge_too_large,
    refuse_training_too_large,
    this_machine,
)
from encore.runs.worker import RunReport, raise_for_failed_shards, work_through
from encore.scoring.scoring_options import ScoringConfig
from encore.training.training_options import (
    GateConfig,
    GateTrainingConfig,
    TrainingConfig,
    TrainingRunConfig,
)
from encore.weighting.weigh import WeighedRules, weigh_rules

if TYPE_CHECKING:
    from encore.training.run_folder import TrainingResult

logger = logging.getLogger(__name__)

#: The work of a stage; it sends progress events to the reporter.
Work = Callable[[Reporter], Any]
#: Runs the work of a stage, given the stage's name; a flow makes a task of it.
CallStage = Callable[[str, Work], Any]
#: Rates a study completely; returns the folder of the rating run and the report of the call.
Rate = Callable[[Path, RatingConfig, RatingRunOptions], tuple[Path, RunReport]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeResult:
    """Result of `run_recipe`.

    Attributes:
        run_dir: Folder of the rating run.
        report: Report of the rating in this call.
        weighed: Weights of the rules.
        table: Path of the benchmark's table in Markdown. None if the recipe has no training.
        further_tables: Paths of the further benchmarks' tables.
        notes: Sentences on records that were set aside and benchmarks that were left out.
        export: Folder of the exported model. None if the recipe has no training.
        done_now: Names of stages that had work to do in this call.
        done_before: Names of stages that were done before.
    """

    run_dir: Path
    report: RunReport
    weighed: WeighedRules
    table: Path | None
    further_tables: Sequence[Path]
    notes: Sequence[str]
    export: Path | None
    done_now: Sequence[str]
    done_before: Sequence[str]


def run_recipe(
    recipe: Recipe,
    study: Path,
    *,
    call: CallStage = lambda _stage, work: work(SILENT),
    rate: Rate | None = None,
) -> RecipeResult:
    """Run the stages of a recipe that are not done, from pairs to weights, or table and export.

    Args:
        recipe: Recipe with all stages to run.
        study: Directory of the study; created if it does not exist.
        call: Function that runs the work of a stage.
        rate: Function that rates the study. None: this process rates, with a judge that stays
            open for the benchmark's pairs.

    Raises:
        EncoreError: A stage failed; or, before anything is downloaded, this machine cannot hold a
            model of the recipe.
    """
    check_names(recipe)
    run = _RecipeRun(recipe=recipe, study=study, call=call)
    if recipe.training is not None:  # a recipe that only weighs may rate on other machines
        run.check_machine()
    run.ingest()
    if recipe.training is not None and not run.table_dir.exists():
        call("check-recipe", lambda _: check_readable(recipe))
    with _opened_judge(recipe) if rate is None else contextlib.nullcontext() as judge:
        run_dir, report = run.rate(rate, judge)
        with run.lock():
            judged = run.judge_benchmark(run_dir, judge)
    table, export = None, None
    with run.lock():
        weighed = run.weigh(run_dir)
        if recipe.training is not None:
            table, export = run.train_and_compare(run_dir, judged)
    return RecipeResult(
        run_dir=run_dir,
        report=report,
        weighed=weighed,
        table=table,
        further_tables=run.further_tables,
        notes=run.notes,
        export=export,
        done_now=run.done_now,
        done_before=run.done_before,
    )


def _opened_judge(recipe: Recipe) -> contextlib.closing[Judge]:
    """Return a block in which the recipe's judge is open."""
    return contextlib.closing(open_rating_judge(recipe.rating.judge, recipe.rating))


@dataclass(slots=True, kw_only=True)
class _RecipeRun:
    """One run of a recipe in a study: its stages as methods, and which of them were done.

    Attributes:
        recipe: Recipe that is run.
        study: Directory of the study.
        call: Function that runs the work of a stage.
        done_now: Names of stages that had work to do in this call.
        done_before: Names of stages that were done before.
        further_tables: Paths of the further benchmarks' tables.
        notes: Sentences on records that were set aside and benchmarks that were left out.
    """

    recipe: Recipe
    study: Path
    call: CallStage
    further_tables: list[Path] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    done_now: list[str] = field(default_factory=list)
    done_before: list[str] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        """Return the folder of results that have no other folder."""
        return self.study / "recipes" / self.recipe.name

    @property
    def table_dir(self) -> Path:
        """Return the folder of the recipe's table; recipes may share models, but not tables."""
        return self.study / "benchmarks" / self.recipe.name

    @property
    def initial_dir(self) -> Path:
        """Return the folder of the exported initial reward model."""
        return self.study / "initial" / "initial-reward-model"

    def check_machine(self) -> None:
        """Refuse models that are too large for this machine, unless their stages are done."""
        recipe, machine = self.recipe, this_machine()
        run_dirs = list_runs(self.study / "ratings")
        if not any(run_status(run_dir).is_complete for run_dir in run_dirs):
            refuse_judge_too_large(recipe.rating.judge, machine=machine)
        if not any(self.study.glob("training/*/result.json")):
            for stage, backbone, training in recipe.models:
                refuse_training_too_large(backbone, training, stage=stage, machine=machine)

    def ingest(self) -> None:
        """Ingest the sources; refuse to train on a study that has pairs of other sources."""
        recipe = self.recipe
        locations = [location for source in recipe.sources for location in locate(source)]
        labels = {str(location.label) for location in locations}
        study = None if is_new_study(self.study) else open_study(self.study)
        study_labels = set(study.labels) if study else set()
        if study_labels - labels and recipe.training is not None:
            raise InputError(
                f"study {self.study}: it also has pairs labelled "
                f"{', '.join(sorted(study_labels - labels))}, which are none of recipe "
                f"{recipe.name}'s; give the recipe a study of its own with --out"
            )
        origins: list[Origin] = []
        is_damaged = False
        if study is not None:
            try:
                for source in study.sources:
                    if source.label in labels:
                        pairs.verified_path(study, source)
                        origins += source.origins
            except InputError:
                is_damaged = True
        # Pinned commits on the hub do not change, so their pairs need not be read again.
        pinned = {(str(location.repo_id), str(location.revision)[:7]) for location in locations}
        ingested = {(origin.name, str(origin.revision)[:7]) for origin in origins}
        is_read = recipe.prefer is None and ingested == pinned
        if study_labels >= labels and is_read and not is_damaged:
            self.done_before.append("ingest")
            return
        read = partial(ingest, out=self.study, prefer=recipe.prefer, replace=is_damaged)
        report = self._stage(
            "ingest",
            lambda reporter: read(recipe.sources, reporter=reporter),
            is_new=lambda report: {source.status for source in report.sources} != {"unchanged"},
        )
        self.notes += report.mostly_set_aside

    def rate(self, rate: Rate | None, judge: Judge | None) -> tuple[Path, RunReport]:
        """Rate the study; return the folder of the rating run and the report of the call."""
        recipe = self.recipe
        config = part_of(recipe.rating, RatingConfig)
        set_options, names = recipe.rating.set_options(), RatingRunOptions.model_fields
        options = {name: set_options[name] for name in set_options.keys() & names}
        how = RatingRunOptions(**options, tau=recipe.weighing.tau)

        def work(reporter: Reporter) -> tuple[Path, RunReport]:
            """Rate with the open judge. A failed shard is an error: later stages need them all."""
            study = open_study(self.study)
            run = open_run(study, config, how, judge=judge)
            report = work_through(run.job(reporter=reporter), reporter=reporter)
            raise_for_failed_shards(
                run.run_dir, report.failures, num_shards=len(run.manifest.shards)
            )
            return run.run_dir, report

        if rate is None:
            run_dir, report = self.call("rate", work)
        else:
            run_dir, report = rate(self.study, config, how)
        (self.done_now if report.count("rated") else self.done_before).append("rate")
        return run_dir, report

    def judge_benchmark(self, run_dir: Path, judge: Judge | None) -> tuple[str, ...]:
        """Have the judge rate the benchmark's pairs; return the results that make a table row."""
        recipe, rating = self.recipe, self.recipe.rating
        if recipe.judge_row is None:
            return ()
        from encore.benchmarks.judging.run_judge import judge_benchmark

        config = JudgeBenchmarkConfig(
            out=self.study / "judged",
            pairs=recipe.benchmark.pairs,
            by="rating",
            weights_from=self.study,
            weights_run=run_dir.name,
            **rating.model_dump(
                include={"judge", "rules", "shard_size", "max_reply_tokens"}, exclude_none=True
            ),
        )
        shards = "judged/*/ratings/*/shard-*"
        before = {*self.study.glob(shards)}
        report = self._stage(
            "judge",
            lambda reporter: judge_benchmark(config, rating, judge=judge, reporter=reporter),
            is_new=lambda _: {*self.study.glob(shards)} - before,
        )
        return (f"{recipe.judge_row}={report.results}",)

    def weigh(self, run_dir: Path) -> WeighedRules:
        """Measure the rules and weigh them; write both results as JSON."""
        weighing = self.recipe.weighing
        options = AnswerOptions(tau=weighing.tau)
        self._written_stage("analyze", "analysis.json", lambda _: analyze(run_dir, options=options))
        weighed: WeighedRules = self._written_stage(
            "weigh",
            "weights.json",
            lambda _: weigh_rules(run_dir, scheme=weighing.scheme, options=weighing),
        )
        return weighed

    def train_and_compare(self, run_dir: Path, judged: tuple[str, ...]) -> tuple[Path, Path]:
        """Run the stages after the weights; return the paths of the table and the export."""
        recipe = self.recipe
        if recipe.initial is not None:
            self.make_initial(recipe.initial)
        trained = self.train("train", recipe, run=run_dir.name)
        rows = {
            row.name: str(self.train(row.stage, row).out)
            if row.training
            else self._backbone(row.backbone).model
            for row in recipe.rows
        }
        gate = None if recipe.gate is None else self.gate(recipe.gate, trained.model_dir)
        self.score(trained.out)
        table_inputs = {
            "run": run_dir.name,
            "model": str(trained.out),
            "gate": gate,
            "results": judged,
        }
        table = self.benchmark(rows, table_inputs)
        self.benchmark_further(rows, {**table_inputs, "results": ()})
        if recipe.export_heads:
            self.export_stage("export-heads", trained.model_dir, weights=None)
        weights = self.folder / "weights.json"
        return table, self.export_stage("export", trained.model_dir, weights=weights)

    def make_initial(self, initial: InitialModel) -> None:
        """Fit and export the initial reward model: a head in closed form."""
        from encore.training.train import train

        root = self.initial_dir.parent
        probe = TrainingConfig(objective="bradley-terry", method="probe")
        config = TrainingRunConfig(backbone=initial.backbone, **dict(probe))

        def work(reporter: Reporter) -> bool:
            """Ingest, train and export in a study of its own. Return True if the export is new."""
            ingest(initial.sources, out=root)
            trained = train(open_study(root), config, reporter=reporter)
            return self._export(trained.model_dir, self.initial_dir, weights=None)

        self._stage("initial-model", work, is_new=bool)

    def train(
        self, stage: str, trainable: Recipe | RowModel, *, run: str | None = None
    ) -> TrainingResult:
        """Train the multi-head model, or a row's model on preferences."""
        from encore.training.train import train

        assert trainable.training is not None, "only trained models have a stage"
        assert trainable.backbone is not None, "a recipe with a training has a backbone"
        config = TrainingRunConfig(
            backbone=self._backbone(trainable.backbone),
            run=run,
            limit=self.recipe.rating.limit,
            **dict(trainable.training),
        )
        result: TrainingResult = self._stage(
            stage,
            lambda reporter: train(open_study(self.study), config, reporter=reporter),
            is_new=lambda result: result.is_new,
        )
        return result

    def gate(self, gate: GateConfig, model: Path) -> Path:
        """Train the gate over the model's heads; return its folder."""
        from encore.training.baselines.gate import train_gate

        study, out, limit = open_study(self.study), model.parent / "gate", self.recipe.rating.limit
        config = GateTrainingConfig(model=model, gate=gate, limit=limit, out=out)
        inputs = {
            "model": folder_digest(model),
            "gate": gate.model_dump(),
            "limit": limit,
            "pairs": pairs.data_digest(study),
        }

        def work(reporter: Reporter) -> bool:
            return make_folder(out, inputs, lambda: train_gate(study, config, reporter=reporter))

        self._stage("gate", work, is_new=bool)
        return out

    def score(self, model: Path) -> None:
        """Score the study's pairs under every head."""
        from encore.scoring.scoring_run import ScoreResult, score_study

        recipe = self.recipe
        limit = min(filter(None, (recipe.rating.limit, recipe.score_limit)), default=None)
        plan = recipe.rating.model_dump(include={"shard_size"}, exclude_none=True)
        config = ScoringConfig(model=str(model), limit=limit, **plan)

        def work(reporter: Reporter) -> ScoreResult:
            """Score the pairs that have no scores. A failed shard is an error."""
            result = score_study(self.study, config, reporter=reporter)
            raise_for_failed_shards(result.out, result.failures, num_shards=result.num_shards)
            return result

        self._stage("score", work, is_new=lambda result: result.num_reused < result.num_shards)

    def benchmark_further(self, rows: Mapping[str, str], inputs: Mapping[str, Any]) -> None:
        """Make a table of each further benchmark whose data can be read."""
        main = self.recipe.benchmark.pairs
        dataset = load_benchmark(main.benchmark).dataset
        for further in self.recipe.further_benchmarks:
            benchmark = load_benchmark(further.benchmark)
            shares_data = benchmark.dataset is not None and benchmark.dataset == dataset
            data = further.data or (main.data if shares_data else None)
            config = further.model_copy(update={"data": data})
            try:
                configured_pairs(config)
            except InputError as error:
                self.notes.append(f"no table of {benchmark.title}: {error}")
                continue
            self.further_tables.append(self.benchmark(rows, {**inputs, "pairs": config}))

    def benchmark(self, rows: Mapping[str, str], inputs: Mapping[str, Any]) -> Path:
        """Make the table of all rows; return its path.

        Args:
            rows: Model of each further row, as a folder or a hub id, by row name.
            inputs: Fields of the table's config that earlier stages determine, and the pairs of a
                further benchmark.
        """
        from encore.benchmarks.run_benchmark import run_benchmark

        recipe, stage, out = self.recipe, "benchmark", self.table_dir
        if "pairs" in inputs:
            name = load_benchmark(inputs["pairs"].benchmark).name
            stage, out = f"benchmark-{name}", out.with_name(f"{out.name}-{name}")
        table = out / "table.json"
        changes = {
            "reward_models": tuple(f"{name}={model}" for name, model in rows.items()),
            "row_revisions": {
                row.name: row.backbone.revision
                for row in recipe.rows
                if row.training is None and row.backbone.revision
            },
            "rows": recipe.benchmark.rows.model_copy(update={"k": recipe.weighing.k}),
            **inputs,
        }
        config = part_of(recipe.benchmark, BenchmarkConfig, **changes)
        how = part_of(recipe.benchmark, BenchmarkRunOptions, out=out)
        before = table.read_bytes() if table.exists() else None
        run = self._stage(
            stage,
            lambda reporter: run_benchmark(open_study(self.study), config, how, reporter=reporter),
            is_new=lambda run: run.num_computed or table.read_bytes() != before,
        )
        return Path(run.markdown_path)

    def export_stage(self, stage: str, model: Path, *, weights: Path | None) -> Path:
        """Export the model, its heads folded if there are weights; return the folder."""
        out = self.study / "exports" / stage.replace("export", self.recipe.name)
        self._stage(stage, lambda _: self._export(model, out, weights=weights), is_new=bool)
        return out

    def _export(self, model: Path, out: Path, *, weights: Path | None) -> bool:
        dtype = self.recipe.export_dtype
        return make_export(self.study, model, out=out, weights=weights, dtype=dtype)

    def _backbone(self, backbone: BackboneConfig) -> BackboneConfig:
        if backbone.model != INITIAL:
            return backbone
        return backbone.model_copy(update={"model": str(self.initial_dir)})

    def _stage(self, stage: str, work: Work, *, is_new: Callable[[Any], Any]) -> Any:
        result = self.call(stage, work)
        (self.done_now if is_new(result) else self.done_before).append(stage)
        return result

    def _written_stage(self, stage: str, name: str, work: Work) -> Any:
        """Run a stage, write its result as JSON if the file differs, and return the result."""
        path = self.folder / name
        return self._stage(
            stage, work, is_new=lambda result: write_if_changed(path, result.as_dict())
        )

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the recipe's lock; wait for another process however long its stages take.

        The lock is the operating system's: it is released when its holder is killed.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / ".lock"
        with file_lock(path, timeout_seconds=0) as state:
            if state != "busy":
                yield
                return
        logger.warning("another process runs this recipe here; waiting for it")
        with file_lock(path):
            yield
