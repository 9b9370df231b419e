"""Recipes: their files, the early checks, and a run of every stage on a small scale."""

from __future__ import annotations

import contextlib
import gzip
import json
import re
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from encore.benchmarks.benchmark_options import PairsConfig, RowsConfig
from encore.benchmarks.benchmark_table import read_table
from encore.benchmarks.definition import load_benchmark
from encore.core.errors import EncoreError, InputError
from encore.core.reporting import SILENT
from encore.data.rule_sets import load_rule_set
from encore.data.sources.locate import locate
from encore.demo import BENCHMARK_DATA_PATH
from encore.judges.judge_options import JudgeConfig
from encore.model.backbone_options import BackboneConfig
from encore.model.open_model import open_reward_model
from encore.recipes.recipe import (
    RECIPE_NAMES,
    Recipe,
    RecipeRating,
    RowModel,
    Weighing,
    changed,
    load_recipe,
    make_recipe,
)
from encore.recipes.recipe_check import (
    Machine,
    check_names,
    check_readable,
    refuse_judge_too_large,
    refuse_training_too_large,
    this_machine,
)
from encore.recipes.recipe_run import Work, run_recipe
from encore.training.training_options import GateConfig, TrainingConfig
from tests.worlds.studies import file_digests, flip_bit, numbered_pairs, study_of, write_lines
from tests.worlds.trainings import backbone_config, make_backbone

pytestmark = pytest.mark.services

STAGES = (
    *("ingest", "rate", "analyze", "weigh", "train", "train-bradley-terry-model", "gate", "score"),
    *("benchmark", "export"),
)
_GIB = 1 << 30
LAPTOP = Machine(num_gpus=0, gpu_bytes=0, memory_bytes=16 * _GIB)
ONE_H100 = Machine(num_gpus=1, gpu_bytes=79 * _GIB, memory_bytes=128 * _GIB)
SMALL_GPU = Machine(num_gpus=1, gpu_bytes=40 * _GIB, memory_bytes=128 * _GIB)
FOUR_H100 = Machine(num_gpus=4, gpu_bytes=79 * _GIB, memory_bytes=512 * _GIB)


# --- files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RECIPE_NAMES)
def test_every_name_in_a_shipped_recipe_exists(name):
    recipe = load_recipe(name)
    assert recipe.name == name
    check_names(recipe)
    assert all(locate(source) for source in recipe.sources)
    if name != "demo":
        config = recipe.training
        assert (config.epochs, config.learning_rate) == (1, 2e-5)  # the paper, "Training"
        assert len(load_rule_set(recipe.rating.rules).rules) == (20 if name.endswith("20") else 10)
        assert "initial model" in {row.name for row in recipe.rows}
        further = [config.benchmark for config in recipe.further_benchmarks]
        assert further == ["rewardbench", "rewardbench-2"]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ('name = "Bad Name"', "name: String should match"),
        ('nmae = "x"', "nmae: Extra inputs"),
        ('weighing.scheme = "single"', "'single' needs a rule"),
        ('training.objective = "bradley-terry"', "expected multi-head"),
        ("sources = [", "correct the TOML"),
        ('rows = [{ name = "a", backbone = { model = "m", max_length = 9 } }]', "max_length"),
        (
            'rows = [{ name = "a", backbone.model = "m" }, { name = "a", backbone.model = "n" }]',
            "a name of its own for each",
        ),
        ('rows = [{ name = "a", backbone.model = "m", training.epochs = 1 }]', "has one head"),
        ('backbone.model = "{initial}"', "no [initial] says what it learns from"),
    ],
)
def test_a_mistake_in_a_recipe_file_is_named(tmp_path, change, problem):
    path = tmp_path / "mine.toml"
    text = (
        'name = "mine"\nabout = "a"\nsources = ["p.jsonl"]\nrating.judge.model = "j"\n'
        'backbone.model = "b"\ntraining.epochs = 2\n'
    )
    path.write_text(text)
    assert load_recipe(path).training.epochs == 2
    path.write_text(re.sub(rf"^{change.split(maxsplit=1)[0]} .*\n", "", text, flags=re.M) + change)
    with pytest.raises(InputError, match=re.escape(problem)):
        load_recipe(path)
    with pytest.raises(InputError, match="expected one of hh_pku_encore_10"):
        load_recipe("best")


@pytest.mark.parametrize(
    ("part", "problem"),
    [
        ("", None),
        ("gate.num_steps = 9", "without a training it ends after the weights; leave out gate"),
        ('backbone.model = "b"', "leave out backbone"),
        ("training.epochs = 2", "the training needs a backbone"),
    ],
)
def test_a_recipe_without_training_has_no_part_that_needs_a_model(tmp_path, part, problem):
    path = tmp_path / "weights.toml"
    text = 'name = "w"\nabout = "a"\nsources = ["p.jsonl"]\nrating.judge.model = "j"\n'
    path.write_text(text + part)
    with contextlib.nullcontext() if problem is None else pytest.raises(InputError, match=problem):
        assert load_recipe(path).models == []


def test_a_change_keeps_all_else_and_a_pilot_has_its_own_name(tmp_path):
    recipe = load_recipe("hh_pku_encore_10")
    changes = {
        "rating": {
            "judge": {"model": "j", "engine_args": {"tensor_parallel_size": 2}},
            "limit": 50,
        },
        "benchmark": {"pairs": {"data": tmp_path}},
    }
    pilot = changed(recipe, changes)
    judge = pilot.rating.judge
    assert (judge.model, judge.engine_args) == ("j", {"tensor_parallel_size": 2})
    assert (pilot.name, pilot.rating.limit) == ("hh_pku_encore_10_pilot_50", 50)
    assert pilot.benchmark.pairs.data == tmp_path
    same = ("sources", "training", "backbone", "rows", "weighing", "gate", "export_dtype")
    assert all(getattr(pilot, name) == getattr(recipe, name) for name in same)
    assert changed(recipe, {}) == recipe
    with pytest.raises(InputError, match=r"rating\.limits: Extra inputs"):
        changed(recipe, {"rating": {"limits": 4}})
    demo = load_recipe("demo")
    seeded = changed(demo, {"rating": {"judge": {"engine_args": {"seed": 1}}}})
    assert seeded.rating.judge.engine_args == {**demo.rating.judge.engine_args, "seed": 1}
    other_engine = {"rating": {"judge": {"backend": "transformers"}}}
    assert changed(demo, other_engine).rating.judge.engine_args == {}


# --- memory of the machine ------------------------------------------------------------------------


def judge_of(recipe: str, **engine_args: int) -> JudgeConfig:
    changes = {"rating": {"judge": {"engine_args": engine_args}}}
    return changed(load_recipe(recipe), changes).rating.judge


SPREAD = {"tensor_parallel_size": 4}


@pytest.mark.parametrize(
    ("recipe", "engine_args", "machine", "message"),
    [
        # Llama 3 70B: 70.55 B weights in two bytes each = 141.1 GB = 131 GiB.
        ("probe", {}, LAPTOP, "take 131 GiB.*no GPU and 16 GiB of memory; rate where they fit"),
        ("probe", {}, ONE_H100, "1 × GPU of 79 GiB, of which it would use 1; rate where they fit"),
        # 4 · 79 GiB would do, but a judge uses one GPU unless it is told otherwise.
        ("probe", {}, FOUR_H100, "use them all: --engine-arg tensor_parallel_size=4"),
        ("probe", SPREAD, ONE_H100, "1 × GPU of 79 GiB"),  # four are asked for, one is here
        ("probe", SPREAD, FOUR_H100, None),
        ("hh_full_8b_20", {}, ONE_H100, None),  # 15 GiB
        ("demo", {}, LAPTOP, None),
    ],
)
def test_a_judge_that_is_too_large_is_refused_with_advice(recipe, engine_args, machine, message):
    with contextlib.nullcontext() if message is None else pytest.raises(InputError, match=message):
        refuse_judge_too_large(judge_of(recipe, **engine_args), machine=machine)


@pytest.mark.parametrize(
    ("name", "machine", "message"),
    [
        # 7.50 B weights in two bytes, two averages of each in two more: 45 GB = 42 GiB.
        ("hh_pku_encore_10", SMALL_GPU, "stage train: .* takes at least 42 GiB of memory"),
        ("hh_pku_encore_10", ONE_H100, None),
        ("probe", SMALL_GPU, None),  # weights alone: 14 GiB
        ("probe", LAPTOP, "no GPU and 16 GiB"),  # float32 on a CPU: 28 GiB
    ],
)
def test_a_training_that_is_too_large_is_refused(name, machine, message):
    stage, backbone, training = load_recipe(name).models[0]
    with contextlib.nullcontext() if message is None else pytest.raises(InputError, match=message):
        refuse_training_too_large(backbone, training, stage=stage, machine=machine)


# --- early checks ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"weighing": Weighing(scheme="best")}, "weighting scheme 'best'"),
        ({"sources": ("missing.jsonl",)}, "missing.jsonl"),
    ],
)
def test_an_unknown_name_is_refused_before_anything_is_written(tmp_path, changes, problem):
    with pytest.raises(InputError, match=problem):
        run_recipe(load_recipe("demo").model_copy(update=changes), tmp_path / "study")
    assert not (tmp_path / "study").exists()


def test_an_unreadable_benchmark_or_backbone_is_refused_before_rating(tmp_path):
    demo = load_recipe("demo")
    check_readable(demo)
    rows = gzip.decompress(BENCHMARK_DATA_PATH.read_bytes()).splitlines(keepends=True)
    short = tmp_path / "short.jsonl"
    short.write_bytes(b"".join(rows[1:]))
    with pytest.raises(InputError, match="--benchmark-data"):  # 79 pairs of 80
        check_readable(changed(demo, {"benchmark": {"pairs": {"data": short}}}))
    gone = BackboneConfig(model=str(tmp_path / "nowhere"))
    row = demo.rows[0].model_copy(update={"backbone": gone})
    with pytest.raises(EncoreError, match=r"nowhere.*no such file or folder"):
        check_readable(demo.model_copy(update={"rows": (row,)}))


# --- the stages -----------------------------------------------------------------------------------


class Stopped(BaseException):
    """A sudden end of the process. Like KeyboardInterrupt, it must not be caught."""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory, tiny_judge: Path) -> Recipe:
    """Return a small version of the demo's recipe: six pairs, two steps, random weights."""
    folder = tmp_path_factory.mktemp("recipe")
    pairs = write_lines(folder / "pairs.jsonl", numbered_pairs(6))
    judge = JudgeConfig(model=str(tiny_judge), backend="transformers")
    trunk = backbone_config(make_backbone(folder / "trunk"))
    fast = TrainingConfig(
        batch_pairs=4, max_steps=2, evaluation_share=0.3, learning_rate=1e-3, warmup_steps=0
    )
    preferences = fast.model_copy(update={"objective": "bradley-terry"})
    demo = load_recipe("demo")
    # One row of each kind: a mean of draws, the reference, a scheme.
    rows = RowsConfig(schemes=("uniform", "random", "encore"), taus=(2.0,), num_random=5)
    small = {
        "sources": (f"small={pairs}",),
        "rating": RecipeRating(judge=judge, shard_size=2, max_reply_tokens=8),
        "backbone": trunk,
        "training": fast,
        "initial": None,
        "rows": (RowModel(name="bradley-terry-model", backbone=trunk, training=preferences),),
        "judge_row": None,
        "export_heads": False,
        "gate": GateConfig(num_steps=2),
        "benchmark": demo.benchmark.model_copy(update={"rows": rows}),
    }
    return demo.model_copy(update=small)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, tiny: Recipe) -> Path:
    study = tmp_path_factory.mktemp("done") / "study"
    result = run_recipe(tiny, study)
    assert set(result.done_now) == set(STAGES)
    return study


@pytest.fixture
def done(finished: Path, tmp_path: Path) -> Path:
    """Return a study in which the recipe has been run to its end."""
    return Path(shutil.copytree(finished, tmp_path / "study"))


def contents(study: Path) -> dict[str, str]:
    """Return the digest of every file of a study but locks."""
    return {name: digest for name, digest in file_digests(study).items() if "lock" not in name}


def done_by(recipe: Recipe, study: Path) -> set[str]:
    result = run_recipe(recipe, study)
    assert set(result.done_now) | set(result.done_before) == set(STAGES)
    return set(result.done_now)


def test_a_recipe_makes_a_table_and_a_model_and_a_second_run_does_nothing(done, tiny):
    before = contents(done)
    result = run_recipe(tiny, done)  # the study has moved, too
    assert (result.done_now, result.report.summary) == ([], "0 rated, 3 reused, 0 failed")
    assert contents(done) == before
    table = result.table.read_text(encoding="utf-8")
    for row in ("uniform", "encore", "random (5 draws)", "bradley-terry-model", "moe gate"):
        assert row in table
    assert "Read these figures as an example, not as evidence" in table
    exported = open_reward_model(result.export, device="cpu")
    assert exported.model.head_ids == ("reward",)
    weights = json.loads((done / "recipes" / "demo" / "weights.json").read_text())["weights"]
    assert sum(weights) == pytest.approx(1)
    assert weights == pytest.approx(result.weighed.vector.weights)


def test_a_further_benchmark_has_a_table_of_the_same_rows_or_a_note(done, tiny, tmp_path):
    definition = load_benchmark(tiny.benchmark.pairs.benchmark)
    lines = [
        f"{name} = {value!r}"
        for name, value in definition.model_dump(exclude_unset=True).items()
        if isinstance(value, str)
    ]
    path = tmp_path / "own.toml"
    path.write_text("\n".join(lines).replace(definition.name, "synthetic-own"), encoding="utf-8")
    further = (
        PairsConfig(benchmark=str(path), data=BENCHMARK_DATA_PATH),
        PairsConfig(benchmark="rm-bench"),
    )
    recipe = tiny.model_copy(update={"further_benchmarks": further})
    result = run_recipe(recipe, done)
    assert result.done_now == ["benchmark-synthetic-own"]
    assert result.further_tables == [done / "benchmarks" / "demo-synthetic-own" / "table.md"]
    tables = [read_table(path.parent) for path in (result.table, *result.further_tables)]
    names = [[line.name for line in table.rows] for table in tables]
    assert names[0] == names[1]
    [note] = result.notes
    assert note.startswith("no table of RM-Bench: benchmark rm-bench, no --data")
    assert run_recipe(recipe, done).done_now == []


def test_a_further_benchmark_of_the_same_data_set_reads_the_same_files(done, tiny, tmp_path):
    """The part has a pair of each subset; the table of all subsets then names what is missing."""
    rows = [{"prompt": "a", "chosen": "b", "rejected": "c", "subset": "donotanswer", "id": 1}]
    safety = PairsConfig(data=write_lines(tmp_path / "rows.jsonl", rows), allow_partial=True)
    main = tiny.benchmark.model_copy(update={"pairs": safety})
    changes = {"benchmark": main, "further_benchmarks": (PairsConfig(benchmark="rewardbench"),)}
    [note] = run_recipe(tiny.model_copy(update=changes), done).notes
    assert note.startswith("no table of RewardBench, all subsets: ")
    assert f"{tmp_path / 'rows.jsonl'}: alpacaeval-easy has 0 pairs, expected 100" in note


def test_an_interrupted_run_repeats_no_finished_stage(tmp_path, tiny, finished):
    study, before = tmp_path / "study", {}
    for stage in (*STAGES[2:], None):

        def call(name: str, work: Work, stage: str | None = stage) -> Any:
            if name == stage:
                raise Stopped
            return work(SILENT)

        with contextlib.nullcontext() if stage is None else pytest.raises(Stopped):
            run_recipe(tiny, study, call=call)
        after = contents(study)
        # The files of earlier stages have not changed: there are only new ones.
        assert before.items() <= after.items(), stage
        before = after
    undisturbed = contents(finished)
    ends = ("model.safetensors", "heads.safetensors", "gate.safetensors", ".parquet", "table.md")
    results = [name for name in undisturbed if name.endswith((*ends, "weights.json"))]
    assert len(results) > len(STAGES)
    assert {name: before[name] for name in results} == {name: undisturbed[name] for name in results}


def test_damaged_files_are_made_again_and_no_others(done, tiny):
    before = contents(done)
    [gate] = done.glob("training/*/gate")
    for path in (
        done / "pairs" / "small.parquet",
        done / "recipes" / "demo" / "weights.json",
        gate.parent / "model" / "heads.safetensors",
        gate / "gate.safetensors",
        next(done.glob("scores/*/shard-*.parquet")),
        done / "benchmarks" / "demo" / "table.json",
    ):
        flip_bit(path)
    (done / "exports" / "demo" / "encore_export.json").unlink()
    stages = {"ingest", "weigh", "train", "gate", "score", "benchmark", "export"}
    assert done_by(tiny, done) == stages
    after = contents(done)
    # Only these files contain the seconds that the work took.
    timed = {"gate-result.json", ".gate.made.json", "score.json"}
    different = {Path(name).name for name in before if before[name] != after.get(name)}
    assert different <= timed


def test_another_temperature_repeats_only_weights_and_export(done, tiny):
    """The analysis has weights beside its verdicts."""
    weighing = tiny.weighing.model_copy(update={"tau": 0.5})
    stages = done_by(tiny.model_copy(update={"weighing": weighing}), done)
    assert stages == {"analyze", "weigh", "export"}


def test_models_too_large_for_the_machine_are_refused_before_any_download(
    tmp_path, done, tiny, monkeypatch
):
    monkeypatch.setattr("encore.recipes.recipe_run.this_machine", lambda: LAPTOP)
    study = tmp_path / "new"
    with pytest.raises(InputError, match="its weights alone take 131 GiB; this machine has no GPU"):
        run_recipe(load_recipe("hh_pku_encore_10"), study)
    small_judge = load_recipe("probe").model_copy(update={"rating": tiny.rating})
    with pytest.raises(InputError, match="stage train: "):
        run_recipe(small_judge, study)
    assert not study.exists()

    tiny_machine = Machine(num_gpus=0, gpu_bytes=0, memory_bytes=1 << 10)
    monkeypatch.setattr("encore.recipes.recipe_run.this_machine", lambda: tiny_machine)
    # Finished ratings need no judge, and finished models no memory.
    assert done_by(tiny, done) == set()
    next(done.glob("ratings/*/shard-00001*.parquet")).unlink()
    before = contents(done)
    with pytest.raises(InputError, match="its weights alone take"):
        run_recipe(tiny, done)
    assert contents(done) == before


def test_gpus_whose_memory_nobody_tells_are_refused_by_name(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setenv("PATH", str(tmp_path))  # no nvidia-smi
    with pytest.raises(InputError, match="GPUs 0,1 are visible, but nvidia-smi does not say"):
        this_machine()


def test_a_recipe_without_training_ends_after_the_weights_of_all_pairs_of_the_study(tmp_path, tiny):
    study = tmp_path / "study"
    study_of([{"prompt": "p", "chosen": "yes", "rejected": "no"}], study, label="more")
    fields = ("name", "about", "sources", "rating")
    weights_only = make_recipe({name: getattr(tiny, name) for name in fields}, origin="a test")
    result = run_recipe(weights_only, study)
    assert result.done_now == ["ingest", "rate", "analyze", "weigh"]
    assert result.report.summary == "4 rated, 0 reused, 0 failed"  # 6 + 1 pairs, 2 for each shard
    assert (result.table, result.export) == (None, None)


def test_a_study_with_other_pairs_is_refused_before_any_rating(tmp_path, tiny):
    study_of([{"prompt": "p", "chosen": "yes", "rejected": "no"}], tmp_path / "study", label="more")
    with pytest.raises(InputError, match="also has pairs labelled more, which are none of recipe"):
        run_recipe(tiny, tmp_path / "study")
    rows = tmp_path / "rows.jsonl"
    rows.write_text("{}\n")
    table = tiny.benchmark.model_copy(update={"pairs": PairsConfig(data=rows)})
    with pytest.raises(InputError, match=re.escape("rows.jsonl")):
        run_recipe(tiny.model_copy(update={"benchmark": table}), tmp_path / "other")
    assert not list(tmp_path.glob("*/ratings"))


def test_a_second_process_waits_and_repeats_no_stage(done, tiny, monkeypatch):
    (done / "exports" / "demo" / "config.json").unlink()
    at_work, go_on, order = threading.Event(), threading.Event(), []

    def first(name: str, work: Work) -> Any:
        if name == "export":
            at_work.set()
            assert go_on.wait(120)
        result = work(SILENT)
        order.append(f"first {name}")
        return result

    def second(name: str, work: Work) -> Any:
        order.append(f"second {name}")
        return work(SILENT)

    monkeypatch.setattr("encore.recipes.recipe_run.logger.warning", lambda _: go_on.set())
    with ThreadPoolExecutor(1) as pool:
        started = pool.submit(run_recipe, tiny, done, call=first)
        assert at_work.wait(120)
        result = run_recipe(tiny, done, call=second)
    assert started.result().done_now == ["export"]
    assert result.done_now == []
    assert order.index("first export") < order.index("second analyze")
