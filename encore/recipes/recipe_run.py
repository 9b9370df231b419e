"""Run a recipe: its stages in order, each passed over where it is finished.

How a stage is called and rated is the caller's: directly, or as a task of a flow.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from filelock import FileLock, Timeout

from encore.analysis.analyze import analyze
from encore.benchmarks.definition import load_benchmark
from encore.benchmarks.pairs import read_benchmark_pairs
from encore.config import RatingConfig, ScoringConfig
from encore.data.ingestion import ingest
from encore.data.pairs import iter_pairs, labels_of, pair_files
from encore.data.rules import load_rule_set
from encore.data.sources.locate import locate
from encore.data.study import is_free, open_study
from encore.errors import InputError, StudyIncompleteError
from encore.files import atomic_write_bytes, file_sha256
from encore.model.config import BackboneConfig
from encore.rating.rating_run import open_run, rate_run
from encore.recipes.finished import StageRecord, known_by_content, once
from encore.recipes.machine import (
    Machine,
    refuse_judge_too_large,
    refuse_training_too_large,
    this_machine,
)
from encore.recipes.recipe import Recipe, RowModel
from encore.runs import RunReport, inspect_shard
from encore.training.config import TrainingConfig
from encore.weighting import load_scheme
from encore.weighting.weigh import weigh_rules

Result = TypeVar("Result")
#: In a study: a folder for each recipe that was run in it.
RECIPES_DIR = "recipes"
#: Pairs on which rankings are counted that the export's number format turns round.
_FLIP_PAIRS = 200


#: Does the work of a stage, by its name; a flow makes a task of it.
Call = Callable[[str, Callable[[], Any]], Any]
#: Rates a study to the end: the folder of the rating run, and what was done.
Rate = Callable[..., tuple[Path, RunReport]]


def call_directly(_stage: str, work: Callable[[], Result]) -> Result:
    """Do the work of a stage."""
    return work()


def rate_directly(
    study: Path, config: RatingConfig, *, before_judge: Callable[[], None]
) -> tuple[Path, RunReport]:
    """Rate in this process.

    Raises:
        StudyIncompleteError: Shards failed.
    """
    run = open_run(open_study(study), config)
    try:
        shards = run.manifest.shards
        if any(inspect_shard(run.run_dir, run.manifest, one).state != "done" for one in shards):
            before_judge()
        report = rate_run(run)
    finally:
        run.judge.close()
    if report.failures:
        raise StudyIncompleteError(f"{report.summary}; run the same command again")
    return run.run_dir, report


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeResult:
    """What a call did; ``table`` is the benchmark's table as Markdown, ``rated`` a line."""

    table: Path
    export: Path
    rated: str
    done_now: tuple[str, ...]
    done_before: tuple[str, ...]


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

    pairs = recipe.benchmark.pairs
    try:
        read_benchmark_pairs(load_benchmark(pairs.benchmark), data=pairs.data)
    except InputError as error:
        # A network's failure stays the cause: another attempt may mend it.
        raise InputError(f"{error} (a recipe's option: --benchmark-data)") from error.__cause__
    # A model that is a row as it was downloaded may be of a kind that cannot be trained on.
    rows = ((row.backbone, row.training is None) for row in recipe.rows)
    for backbone, any_kind in ((recipe.backbone, False), *rows):
        load_tokenizer(backbone, any_kind=any_kind)


def run_recipe(
    recipe: Recipe,
    study: Path,
    *,
    call: Call = call_directly,
    rate: Rate = rate_directly,
    reporter: Any = None,
    on_note: Callable[[str], None] = lambda _: None,
) -> RecipeResult:
    """Do every stage of a recipe that is not finished, from pairs to table and export.

    Args:
        recipe: What to do.
        study: The study's directory, made if it is not there.
        call: How a stage is called.
        rate: How the study is rated.
        reporter: Hears of trainings.
        on_note: Told which stages are passed over or waited for.

    Raises:
        EncoreError: As the stages; before anything is downloaded where this machine cannot hold a
            model of the recipe.
    """
    check_names(recipe)
    stages = _Stages(recipe=recipe, study=study, call=call, reporter=reporter, on_note=on_note)
    machine = this_machine()
    stages.check_machine(machine)
    ingested = stages.ingest()
    if not stages.was_done("benchmark"):
        call("check-recipe", lambda: check_within_reach(recipe))
    run_dir, report = rate(
        study,
        recipe.rating,
        before_judge=lambda: refuse_judge_too_large(recipe.rating.judge, machine=machine),
    )
    (stages.done_now if report.count("rated") else stages.done_before).append("rate")
    shards = sorted(run_dir.glob("shard-*.parquet"))
    rated = {"ratings": [[path.name, file_sha256(path)] for path in shards]}
    stages.analyze(run_dir, after=rated)
    stages.weigh(run_dir, after=rated)
    model = stages.train("train", recipe, run=run_dir.name, after=rated)
    rows = {
        row.name: stages.train(row.stage, row, after=ingested.token)
        for row in recipe.rows
        if row.training is not None
    }
    after = {"model": model.token, "pairs": ingested.token}
    gate = None if recipe.gate is None else stages.gate(model.out, after=after)
    stages.score(model.out, after=after)
    tokens = {name: record.token for name, record in rows.items()}
    made_of = {**after, **rated, "rows": tokens, "gate": None if gate is None else gate.token}
    table = stages.benchmark(run_dir, model.out, rows, gate, after=made_of)
    export = stages.export(model.out, after={**after, **rated})
    return RecipeResult(
        table=table.out / "table.md",
        export=export.out,
        rated=report.summary,
        done_now=tuple(stages.done_now),
        done_before=tuple(stages.done_before),
    )


def _content(path: Path | None) -> Any:
    return None if path is None else known_by_content(str(path))


@dataclass(slots=True, kw_only=True)
class _Stages:
    """The stages of a recipe in a study; ``after`` is what a stage's result also follows from."""

    recipe: Recipe
    study: Path
    call: Call
    reporter: Any
    on_note: Callable[[str], None]
    done_now: list[str] = field(default_factory=list)
    done_before: list[str] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        """Of the records, and of results that have no folder elsewhere."""
        return self.study / RECIPES_DIR / self.recipe.name

    def was_done(self, stage: str) -> bool:
        """Whether it was finished once, perhaps elsewhere."""
        return (self.folder / f"{stage}.json").is_file()

    def check_machine(self, machine: Machine) -> None:
        """Refuse what cannot run here; what was done elsewhere may stay."""
        recipe = self.recipe
        if not any((self.study / "ratings").glob("*/run.json")):
            refuse_judge_too_large(recipe.rating.judge, machine=machine)
        trained: list[tuple[str, BackboneConfig, TrainingConfig | None]]
        trained = [("train", recipe.backbone, recipe.training)]
        trained += [(row.stage, row.backbone, row.training) for row in recipe.rows]
        for stage, backbone, training in trained:
            if not (self.was_done(stage) or self.was_done("benchmark")):
                refuse_training_too_large(backbone, training, stage=stage, machine=machine)

    def ingest(self) -> StageRecord:
        """The pairs of the recipe's sources, and of no others."""
        recipe = self.recipe
        located = [one for source in recipe.sources for one in locate(source)]
        sources = [
            [one.label, one.format, one.repo_id, one.revision, one.subset, _content(one.path)]
            for one in located
        ]
        # Pairs that are there and damaged are this recipe's own: they may be replaced.
        is_repair = self.was_done("ingest")
        record = self._once(
            "ingest",
            inputs={"sources": sources, "prefer": recipe.prefer},
            work=lambda: ingest(
                recipe.sources, out=self.study, prefer=recipe.prefer, replace=is_repair
            ),
            leaves=lambda report: [
                self.study / name
                for one in report.sources
                for files in [pair_files(one.manifest.label)]
                for name in (files.pairs, files.manifest)
            ],
        )
        others = set(labels_of(open_study(self.study))) - {one.label for one in located}
        if others:
            raise InputError(
                f"study {self.study}: it also has pairs labelled {', '.join(sorted(others))}, "
                f"which are none of recipe {recipe.name}'s; give the recipe a study of its own "
                "with --out"
            )
        return record

    def analyze(self, run_dir: Path, *, after: Any) -> None:
        """Statistics of the rules as JSON."""
        self._once(
            "analyze",
            inputs=after,
            work=lambda: analyze(run_dir),
            leaves=lambda analysis: [self._written("analysis.json", analysis.as_dict())],
        )

    def weigh(self, run_dir: Path, *, after: Any) -> None:
        """Weights by the recipe's scheme as JSON: what `encore export --weights` takes."""
        weighing = self.recipe.weighing
        self._once(
            "weigh",
            inputs={"weighing": weighing.model_dump(), **after},
            work=lambda: weigh_rules(run_dir, scheme=weighing.scheme, options=weighing),
            leaves=lambda weighed: [self._written("weights.json", weighed.as_dict())],
        )

    def train(
        self, stage: str, what: Recipe | RowModel, *, after: Any, run: str | None = None
    ) -> StageRecord:
        """The multi-head model, or a row's model trained on preferences."""
        from encore.reporting import SILENT
        from encore.training.config import TrainConfig
        from encore.training.train import train

        training, limit = what.training, self.recipe.limit
        assert training is not None, "only trained rows have a stage"
        inputs = {
            "backbone": known_by_content(what.backbone.model_dump(mode="json")),
            "training": training.model_dump(mode="json"),
            "limit": limit,
            "after": after,
        }
        return self._once(
            stage,
            inputs=inputs,
            work=lambda: train(
                open_study(self.study),
                TrainConfig.of(
                    self.study, backbone=what.backbone, training=training, run=run, limit=limit
                ),
                reporter=self.reporter or SILENT,
            ),
            leaves=lambda result: [result.out / "model", result.out / "result.json"],
            is_one=True,
        )

    def gate(self, model: Path, *, after: Any) -> StageRecord:
        """The gate over the model's heads."""
        from encore.training.gate import TrainGateConfig, train_gate

        gate = self.recipe.gate
        assert gate is not None, "the recipe has a gate"
        config = TrainGateConfig(study=self.study, model=model, gate=gate, limit=self.recipe.limit)
        return self._once(
            "gate",
            inputs={"gate": gate.model_dump(), "limit": config.limit, "after": after},
            work=lambda: train_gate(open_study(self.study), config),
            # Not its report, which says how long it took: a gate made again is the same gate.
            leaves=lambda result: [result.out / "gate.json", result.out / "gate.safetensors"],
        )

    def score(self, model: Path, *, after: Any) -> None:
        """Every head's score of pairs of the study."""
        from encore.scoring.scoring_run import score_study

        recipe = self.recipe
        limit = min(filter(None, (recipe.limit, recipe.score_limit)), default=None)

        def work() -> Any:
            config = ScoringConfig(
                model=str(model), limit=limit, shard_size=recipe.rating.shard_size
            )
            result = score_study(self.study, config)
            if not result.is_complete:
                raise StudyIncompleteError(
                    f"{len(result.failures)} of {result.num_shards} shards failed; run the same "
                    "command again to score only these"
                )
            return result

        self._once(
            "score",
            inputs={"limit": limit, "after": after},
            work=work,
            leaves=lambda result: [result.out / "score.json", *result.out.glob("shard-*")],
        )

    def benchmark(
        self,
        run_dir: Path,
        model: Path,
        rows: Mapping[str, StageRecord],
        gate: StageRecord | None,
        *,
        after: Any,
    ) -> StageRecord:
        """The table of all rows."""
        from encore.benchmarks.run import run_benchmark

        recipe = self.recipe
        untouched = [row for row in recipe.rows if row.training is None]
        models = {
            row.name: rows[row.name].out if row.name in rows else row.backbone.model
            for row in recipe.rows
        }
        own = recipe.benchmark.rows.model_copy(update={"k": recipe.weighing.k})
        config = recipe.benchmark.model_copy(
            update={
                "model": str(model),
                "reward_models": tuple(f"{name}={where}" for name, where in models.items()),
                "row_revisions": {
                    row.name: row.backbone.revision for row in untouched if row.backbone.revision
                },
                "gate": None if gate is None else gate.out,
                "rows": own,
                "run": run_dir.name,
                # Two recipes may share a model and its head scores; each has a table of its own.
                "out": self.study / "benchmarks" / recipe.name,
            }
        )
        found = [known_by_content(row.model_dump(mode="json")) for row in untouched]
        table = recipe.benchmark.model_copy(update={"rows": own}).model_dump(mode="json")
        return self._once(
            "benchmark",
            inputs={"table": known_by_content(table), "untouched": found, "after": after},
            work=lambda: run_benchmark(open_study(self.study), config),
            leaves=lambda run: [run.results_path, run.json_path, run.markdown_path],
        )

    def export(self, model: Path, *, after: Any) -> StageRecord:
        """The model with its heads folded by the recipe's weights, as plain transformers."""
        from encore.export import ExportAbout, export_model
        from encore.export.weights_input import read_weights
        from encore.model.opening import open_reward_model

        recipe, out = self.recipe, self.study / "exports" / self.recipe.name

        def work() -> Any:
            # On the CPU: the export is opened beside it, and both may not fit on a GPU.
            opened = open_reward_model(model, device="cpu", dtype="float32")
            weights = self.folder / "weights.json"
            composition = read_weights(weights, head_ids=opened.model.head_ids)
            by_hash = sorted(iter_pairs(open_study(self.study)), key=lambda pair: pair.pair_id)
            return export_model(
                opened,
                out=out,
                weights=composition.weights,
                dtype=recipe.export_dtype,
                about=ExportAbout(composition=composition),
                pairs=by_hash[:_FLIP_PAIRS] if recipe.export_dtype == "bfloat16" else (),
            )

        return self._once(
            "export",
            inputs={
                "weighing": recipe.weighing.model_dump(),
                "dtype": recipe.export_dtype,
                "after": after,
            },
            work=work,
            leaves=lambda result: [result.folder],
            is_one=True,
        )

    def _written(self, name: str, content: Mapping[str, Any]) -> Path:
        path = self.folder / name
        text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        atomic_write_bytes(path, text.encode())
        return path

    def _once(
        self,
        stage: str,
        *,
        inputs: Mapping[str, Any],
        work: Callable[[], Result],
        leaves: Callable[[Result], Sequence[Path]],
        is_one: bool = False,
    ) -> StageRecord:
        """The stage's record: the one that is there, or a new one after doing the work.

        The first of the paths that the work leaves is the stage's main result, or its folder.
        """
        path = self.folder / f"{stage}.json"
        record = StageRecord(path, study=self.study, inputs=inputs)
        if not record.is_finished:
            with self._alone(stage):  # another process may have done it meanwhile
                record = StageRecord(path, study=self.study, inputs=inputs)
                if not record.is_finished:
                    self.on_note(f"stage {stage}: to do")
                    self.done_now.append(stage)
                    return once(
                        path,
                        study=self.study,
                        inputs=inputs,
                        work=lambda: leaves(self.call(stage, work)),
                        is_one=is_one,
                    )
        self.on_note(f"stage {stage}: done before")
        self.done_before.append(stage)
        return record

    @contextlib.contextmanager
    def _alone(self, stage: str) -> Iterator[None]:
        """Hold the recipe's lock, the operating system's: released when its holder is killed.

        Waits for another process, however long its stage takes. A study that is not there yet needs
        no lock: it appears by one rename.
        """
        if is_free(self.study):
            yield
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.folder / ".lock")
        with contextlib.suppress(Timeout):
            lock.acquire(timeout=0)
        if not lock.is_locked:
            self.on_note(f"stage {stage}: another process runs this recipe here; waiting for it")
            lock.acquire()
        try:
            yield
        finally:
            lock.release()
