"""Run a recipe: its stages in order, each of which repeats nothing that its files say is done.

How a stage is called and rated is the caller's: directly, or as a task of a flow.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import AcquireReturnProxy, FileLock, Timeout

from encore.analysis.analyze import analyze
from encore.benchmarks.benchmark_config import JudgeBenchmarkConfig
from encore.benchmarks.benchmark_pairs import configured_pairs
from encore.benchmarks.definition import load_benchmark
from encore.core.errors import InputError
from encore.core.files import json_text, write_json
from encore.core.model_files import file_digest, folder_digest
from encore.core.reporting import SILENT, Reporter
from encore.data import pairs
from encore.data.ingestion import ingest
from encore.data.pairs_manifest import Origin
from encore.data.rating_runs import list_runs, run_status
from encore.data.rule_sets import load_rule_set
from encore.data.sources.locate import locate
from encore.data.study import is_new_study, open_study
from encore.judges import open_judge
from encore.judges.base import Judge
from encore.model.backbone_config import BackboneConfig
from encore.rating.rating_config import RatingConfig
from encore.rating.rating_run import open_run, rating_job_runner
from encore.recipes.machine import refuse_judge_too_large, refuse_training_too_large, this_machine
from encore.recipes.recipe import INITIAL, InitialModel, Recipe, RowModel
from encore.runs.shard_runner import RunReport, raise_for_failed_shards
from encore.scoring.scoring_config import ScoringConfig
from encore.training.training_config import GateConfig, TrainConfig, TrainGateConfig, TrainingConfig
from encore.weighting.schemes import load_scheme
from encore.weighting.weigh import weigh_rules

if TYPE_CHECKING:
    from encore.training.run_folder import TrainingResult

logger = logging.getLogger(__name__)

#: Pairs on which rankings are counted that the export's number format turns round.
_FLIP_PAIRS = 200

#: The work of a stage, which tells a reporter how far it is.
Work = Callable[[Reporter], Any]
#: Does the work of a stage, by its name; a flow makes a task of it.
Call = Callable[[str, Work], Any]
#: Rates a study to the end: the folder of the rating run, and what was done.
Rate = Callable[[Path, RatingConfig], tuple[Path, RunReport]]


def check_names(recipe: Recipe) -> None:
    """Schemes, rules and benchmark exist.

    Raises:
        EncoreError: One does not: its name, and the known ones.
    """
    load_scheme(recipe.weighing.scheme)
    recipe.benchmark.rows.check_schemes()
    load_rule_set(recipe.rating.rules)
    load_benchmark(recipe.benchmark.pairs.benchmark)


def check_within_reach(recipe: Recipe) -> None:
    """The benchmark's rows, and each backbone's config and tokenizer, can be read.

    Weights are not fetched. What is on the hub behind a licence is met before hours of rating.

    Raises:
        EncoreError: What cannot be read, and why.
    """
    from encore.model.loading import load_tokenizer  # brings transformers

    try:
        configured_pairs(recipe.benchmark.pairs)
    except InputError as error:
        # A network's failure stays the cause: another attempt may mend it.
        raise InputError(f"{error} (a recipe's option: --benchmark-data)") from error.__cause__
    for _, backbone, training in recipe.models:
        # A model that is a row as it was downloaded may be of a kind that cannot be trained on.
        load_tokenizer(backbone, is_as_downloaded=training is None)


def run_recipe(
    recipe: Recipe,
    study: Path,
    *,
    call: Call = lambda _stage, work: work(SILENT),
    rate: Rate | None = None,
) -> RecipeRun:
    """Do what is not done of a recipe, from pairs to table and export.

    Args:
        recipe: What to do.
        study: The study's directory, made if it is not there.
        call: How a stage is called.
        rate: How the study is rated; None: in this process, by a judge that stays open for the
            benchmark's pairs.

    Raises:
        EncoreError: As the stages; before anything is downloaded where this machine cannot hold a
            model of the recipe.
    """
    check_names(recipe)
    run = RecipeRun(recipe=recipe, study=study, call=call)
    run.check_machine()
    run.ingest()
    if not run.table_dir.exists():
        call("check-recipe", lambda _: check_within_reach(recipe))
    opened = contextlib.closing(open_judge(recipe.rating.judge)) if rate is None else None
    with opened or contextlib.nullcontext() as judge:
        run_dir, report = run.rate(rate, judge)
        with run.alone():
            judged = run.judge_benchmark(run_dir, judge)
    with run.alone():
        run.table, run.export = run.after_rating(run_dir, judged)
    run.rated = report.summary
    return run


@dataclass(slots=True, kw_only=True)
class RecipeRun:
    """A recipe in a study, and what a call of `run_recipe` did.

    Attributes:
        recipe: What is done.
        study: The study's directory.
        call: How a stage is called.
        table: The benchmark's table as Markdown.
        export: The exported model.
        rated: What was rated, a line.
        done_now: Stages that had something to do.
        done_before: The others.
    """

    recipe: Recipe
    study: Path
    call: Call
    table: Path = field(init=False)
    export: Path = field(init=False)
    rated: str = ""
    done_now: list[str] = field(default_factory=list)
    done_before: list[str] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        """Of results that have no folder elsewhere."""
        return self.study / "recipes" / self.recipe.name

    @property
    def table_dir(self) -> Path:
        """Two recipes may share a model and its head scores; each has a table of its own."""
        return self.study / "benchmarks" / self.recipe.name

    @property
    def initial_dir(self) -> Path:
        """The initial reward model, exported."""
        return self.study / "initial" / "initial-reward-model"

    def check_machine(self) -> None:
        """Refuse what cannot run here: the judge until a rating is whole, models until one is."""
        recipe, machine = self.recipe, this_machine()
        if not any(run_status(one).is_complete for one in list_runs(self.study / "ratings")):
            refuse_judge_too_large(recipe.rating.judge, machine=machine)
        if not any(self.study.glob("training/*/result.json")):
            for stage, backbone, training in recipe.models:
                refuse_training_too_large(backbone, training, stage=stage, machine=machine)

    def ingest(self) -> None:
        """The pairs of the recipe's sources, and of no others."""
        recipe = self.recipe
        asked = [one for source in recipe.sources for one in locate(source)]
        labels = {str(one.label) for one in asked}
        study = None if is_new_study(self.study) else open_study(self.study)
        there = set(study.labels) if study else set()
        if there - labels:
            raise InputError(
                f"study {self.study}: it also has pairs labelled "
                f"{', '.join(sorted(there - labels))}, which are none of recipe {recipe.name}'s; "
                "give the recipe a study of its own with --out"
            )
        origins: list[Origin] = []
        is_damaged = False
        if study is not None:
            try:
                for source in study.sources:
                    pairs.verified_path(study, source)
                    origins += source.origins
            except InputError:
                is_damaged = True
        # Pinned commits on the hub do not change: what came from them need not be read again.
        pinned = {(str(one.repo_id), str(one.revision)[:7]) for one in asked}
        found = {(one.name, str(one.revision)[:7]) for one in origins}
        is_read = recipe.prefer is None and found == pinned
        if there == labels and is_read and not is_damaged:
            self.done_before.append("ingest")
            return
        read = partial(ingest, out=self.study, prefer=recipe.prefer, replace=is_damaged)
        self._stage(
            "ingest",
            lambda reporter: read(recipe.sources, reporter=reporter),
            is_new=lambda report: {one.status for one in report.sources} != {"unchanged"},
        )

    def rate(self, rate: Rate | None, judge: Judge | None) -> tuple[Path, RunReport]:
        """The folder of the rating run, and what was done."""
        rating = self.recipe.rating

        def work(reporter: Reporter) -> tuple[Path, RunReport]:
            study = open_study(self.study)
            run = open_run(study, rating, judge=judge)
            report = rating_job_runner(study, rating, reporter=reporter)(run.job(reporter=reporter))
            raise_for_failed_shards(
                run.run_dir, report.failures, num_shards=len(run.manifest.shards)
            )
            return run.run_dir, report

        if rate is None:
            run_dir, report = self.call("rate", work)
        else:
            run_dir, report = rate(self.study, rating)
        (self.done_now if report.count("rated") else self.done_before).append("rate")
        return run_dir, report

    def judge_benchmark(self, run_dir: Path, judge: Judge | None) -> tuple[str, ...]:
        """Files with the judge's own ratings of the benchmark's pairs, weighed: a table's row."""
        from encore.benchmarks.judging.judge_report import judge_benchmark

        recipe, rating = self.recipe, self.recipe.rating
        if recipe.judge_row is None:
            return ()
        config = JudgeBenchmarkConfig(
            out=self.study / "judged",
            pairs=recipe.benchmark.pairs,
            by="rating",
            weights_from=self.study,
            weights_run=run_dir.name,
            **rating.model_dump(include={"judge", "rules", "shard_size", "max_reply_tokens"}),
        )
        shards = "judged/*/ratings/*/shard-*"
        before = {*self.study.glob(shards)}
        report = self._stage(
            "judge",
            lambda reporter: judge_benchmark(config, judge=judge, reporter=reporter),
            is_new=lambda _: {*self.study.glob(shards)} - before,
        )
        return (f"{recipe.judge_row}={report.results}",)

    def after_rating(self, run_dir: Path, judged: tuple[str, ...]) -> tuple[Path, Path]:
        """Everything that needs no judge: the table, and the export."""
        recipe, weighing = self.recipe, self.recipe.weighing
        self._written_stage("analyze", "analysis.json", lambda _: analyze(run_dir))
        weights = self._written_stage(
            "weigh",
            "weights.json",
            lambda _: weigh_rules(run_dir, scheme=weighing.scheme, options=weighing),
        )
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
        made = {"run": run_dir.name, "model": str(trained.out), "gate": gate, "results": judged}
        table = self.benchmark(rows, made)
        if recipe.export_heads:
            self.exported("export-heads", trained.model_dir, weights=None)
        return table, self.exported("export", trained.model_dir, weights=weights)

    def make_initial(self, initial: InitialModel) -> None:
        """A reward model to start from: a head in closed form, exported for plain transformers."""
        from encore.training.train import train

        root = self.initial_dir.parent
        probe = TrainingConfig(objective="bradley-terry", method="probe")
        config = TrainConfig(study=root, backbone=initial.backbone, **dict(probe))

        def work(reporter: Reporter) -> bool:
            ingest(initial.sources, out=root)
            trained = train(open_study(root), config, reporter=reporter)
            return self._export(trained.model_dir, self.initial_dir, weights=None)

        self._stage("initial-model", work, is_new=bool)

    def train(
        self, stage: str, what: Recipe | RowModel, *, run: str | None = None
    ) -> TrainingResult:
        """The multi-head model, or a row's model trained on preferences."""
        from encore.training.train import train

        assert what.training is not None, "only trained rows have a stage"
        config = TrainConfig(
            study=self.study,
            backbone=self._backbone(what.backbone),
            run=run,
            limit=self.recipe.rating.limit,
            **dict(what.training),
        )
        result: TrainingResult = self._stage(
            stage,
            lambda reporter: train(open_study(self.study), config, reporter=reporter),
            is_new=lambda result: result.is_new,
        )
        return result

    def gate(self, gate: GateConfig, model: Path) -> Path:
        """The gate over the model's heads."""
        from encore.training.baselines.gate import train_gate

        study, out, limit = open_study(self.study), model.parent / "gate", self.recipe.rating.limit
        config = TrainGateConfig(study=self.study, model=model, gate=gate, limit=limit, out=out)
        made_from = {
            "model": folder_digest(model),
            "gate": gate.model_dump(),
            "limit": limit,
            "pairs": pairs.data_digest(study),
        }

        def work(reporter: Reporter) -> bool:
            return _made(out, made_from, lambda: train_gate(study, config, reporter=reporter))

        self._stage("gate", work, is_new=bool)
        return out

    def score(self, model: Path) -> None:
        """Every head's score of the study's pairs."""
        from encore.scoring.scoring_run import ScoreResult, score_study

        recipe = self.recipe
        limit = min(filter(None, (recipe.rating.limit, recipe.score_limit)), default=None)
        config = ScoringConfig(model=str(model), limit=limit, shard_size=recipe.rating.shard_size)

        def work(reporter: Reporter) -> ScoreResult:
            result = score_study(self.study, config, reporter=reporter)
            raise_for_failed_shards(result.out, result.failures, num_shards=result.num_shards)
            return result

        self._stage("score", work, is_new=lambda result: result.num_reused < result.num_shards)

    def benchmark(self, rows: Mapping[str, str], made: Mapping[str, Any]) -> Path:
        """The table of all rows; ``made`` is what the table's config has from earlier stages."""
        from encore.benchmarks.run_benchmark import run_benchmark

        recipe, table = self.recipe, self.table_dir / "table.json"
        added = {
            "reward_models": tuple(f"{name}={where}" for name, where in rows.items()),
            "row_revisions": {
                row.name: row.backbone.revision
                for row in recipe.rows
                if row.training is None and row.backbone.revision
            },
            "rows": recipe.benchmark.rows.model_copy(update={"k": recipe.weighing.k}),
            "out": self.table_dir,
            **made,
        }
        config = recipe.benchmark.model_copy(update=added)
        before = table.read_bytes() if table.exists() else None
        run = self._stage(
            "benchmark",
            lambda reporter: run_benchmark(open_study(self.study), config, reporter=reporter),
            is_new=lambda run: run.num_computed or table.read_bytes() != before,
        )
        return Path(run.markdown_path)

    def exported(self, stage: str, model: Path, *, weights: Path | None) -> Path:
        """The model as plain transformers, its heads folded by the weights if there are any."""
        out = self.study / "exports" / stage.replace("export", self.recipe.name)
        self._stage(stage, lambda _: self._export(model, out, weights=weights), is_new=bool)
        return out

    def _export(self, model: Path, out: Path, *, weights: Path | None) -> bool:
        from encore.export.weights_input import read_weights
        from encore.export.write_export import export_model
        from encore.model.opening import open_reward_model

        dtype = self.recipe.export_dtype
        content = None if weights is None else json.loads(weights.read_text(encoding="utf-8"))
        made_from = {"model": folder_digest(model), "weights": content, "dtype": dtype}

        def work() -> None:
            # On the CPU: the export is opened beside it, and both may not fit on a GPU.
            opened = open_reward_model(model, device="cpu", dtype="float32")
            ids = opened.model.head_ids
            of_study = pairs.iter_pairs(open_study(self.study))
            by_hash = sorted(of_study, key=lambda pair: pair.pair_id)
            export_model(
                opened,
                out=out,
                weights=None if weights is None else read_weights(weights, head_ids=ids),
                dtype=dtype,
                pairs=by_hash[:_FLIP_PAIRS] if dtype == "bfloat16" else (),
            )

        return _made(out, made_from, work)

    def _backbone(self, backbone: BackboneConfig) -> BackboneConfig:
        if backbone.model != INITIAL:
            return backbone
        return backbone.model_copy(update={"model": str(self.initial_dir)})

    def _stage(self, stage: str, work: Work, *, is_new: Callable[[Any], Any]) -> Any:
        result = self.call(stage, work)
        (self.done_now if is_new(result) else self.done_before).append(stage)
        return result

    def _written_stage(self, stage: str, name: str, work: Work) -> Path:
        """A stage whose result is JSON, for people and other commands."""
        path = self.folder / name

        def is_new(result: Any) -> bool:
            content = result.as_dict()
            if path.is_file() and path.read_text(encoding="utf-8") == json_text(content):
                return False
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, content)
            return True

        self._stage(stage, work, is_new=is_new)
        return path

    def alone(self) -> AcquireReturnProxy[Any]:
        """Hold the recipe's lock, the operating system's: released when its holder is killed.

        Waits for another process, however long its stages take.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.folder / ".lock")
        try:
            return lock.acquire(timeout=0)
        except Timeout:
            logger.warning("another process runs this recipe here; waiting for it")
            return lock.acquire()


def _made(folder: Path, made_from: Mapping[str, Any], make: Callable[[], Any]) -> bool:
    """Make a folder unless the file beside it says that it is whole and made from just this.

    Returns:
        Whether it was made now.
    """
    mark = folder.with_name(f".{folder.name}.made.json")
    made = json.loads(mark.read_text(encoding="utf-8")) if mark.is_file() else {"files": {}}
    is_whole = made["files"].items() <= _digests(folder).items()
    if is_whole and made.get("made_from") == json.loads(json.dumps(made_from)):
        return False
    if not is_whole:  # what is damaged must not pass for a result, nor for somebody else's
        for name in made["files"]:
            (folder / name).unlink(missing_ok=True)
    make()
    write_json(mark, {"made_from": made_from, "files": _digests(folder)})
    return True


def _digests(folder: Path) -> dict[str, str]:
    return {path.name: file_digest(path) for path in sorted(folder.glob("*")) if path.is_file()}
