"""Recipes: what the shipped ones say, what a machine can hold, and their stages, run in small."""

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

from encore.benchmarks.benchmark_config import PairsConfig, RowsConfig
from encore.core.errors import EncoreError, InputError
from encore.core.files import file_sha256
from encore.core.reporting import SILENT
from encore.data.ingestion import ingest
from encore.data.rule_sets import load_rule_set
from encore.data.sources.locate import locate
from encore.demo import BENCHMARK_DATA_PATH
from encore.judges.judge_config import JudgeConfig
from encore.model.backbone_config import BackboneConfig
from encore.model.opening import open_reward_model
from encore.rating.rating_config import RatingConfig
from encore.recipes.machine import Machine, refuse_judge_too_large, refuse_training_too_large
from encore.recipes.recipe import RECIPE_NAMES, Recipe, RowModel, changed, load_recipe
from encore.recipes.recipe_run import Work, check_names, check_readable, run_recipe
from encore.training.training_config import GateConfig, TrainingConfig
from tests.worlds.studies import write_lines
from tests.worlds.tiny_judge import make_tiny_judge
from tests.worlds.trainings import backbone_config, make_backbone

STAGES = (
    *("ingest", "rate", "analyze", "weigh", "train", "train-bradley-terry-model", "gate", "score"),
    *("benchmark", "export"),
)
_GIB = 1 << 30
LAPTOP = Machine(num_gpus=0, gpu_bytes=0, memory_bytes=16 * _GIB)
ONE_H100 = Machine(num_gpus=1, gpu_bytes=79 * _GIB, memory_bytes=128 * _GIB)
SMALL_GPU = Machine(num_gpus=1, gpu_bytes=40 * _GIB, memory_bytes=128 * _GIB)
FOUR_H100 = Machine(num_gpus=4, gpu_bytes=79 * _GIB, memory_bytes=512 * _GIB)


# --- what the shipped ones say --------------------------------------------------------------------


@pytest.mark.parametrize("name", RECIPE_NAMES)
def test_a_recipe_names_nothing_that_does_not_exist(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe.name == name
    check_names(recipe)
    assert [one for source in recipe.sources for one in locate(source)]
    if name != "demo":
        config = recipe.training
        assert (config.epochs, config.learning_rate) == (1, 2e-5)  # the paper, "Training"
        assert len(load_rule_set(recipe.rating.rules).rules) == (20 if name.endswith("20") else 10)
        assert "initial model" in {row.name for row in recipe.rows}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ('name = "Bad Name"', "name: String should match"),
        ('nmae = "x"', "nmae: Extra inputs"),
        ('weighing.scheme = "single"', "'single' needs a rule, and a recipe names none"),
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
def test_ones_own_recipe_is_a_file_and_what_is_wrong_in_it_is_said(
    tmp_path: Path, change: str, problem: str
) -> None:
    own = tmp_path / "own.toml"
    text = (
        'name = "mine"\nabout = "a"\nsources = ["p.jsonl"]\nrating.judge.model = "j"\n'
        'backbone.model = "b"\ntraining.epochs = 2\n'
    )
    own.write_text(text)
    assert load_recipe(own).training.epochs == 2
    own.write_text(re.sub(rf"^{change.split(maxsplit=1)[0]} .*\n", "", text, flags=re.M) + change)
    with pytest.raises(InputError, match=re.escape(problem)):
        load_recipe(own)
    with pytest.raises(InputError, match="expected one of hh_pku_encore_10"):
        load_recipe("best")


def test_a_change_leaves_everything_else_and_a_pilot_has_a_name_of_its_own(tmp_path: Path) -> None:
    recipe = load_recipe("hh_pku_encore_10")
    changes = {
        "rating": {
            "judge": {"model": "j", "engine_args": {"tensor_parallel_size": 2}},
            "limit": 50,
        },
        "benchmark": {"pairs": {"data": tmp_path}},
    }
    other = changed(recipe, changes)
    judge = other.rating.judge
    assert (judge.model, judge.engine_args) == ("j", {"tensor_parallel_size": 2})
    assert (other.name, other.rating.limit) == ("hh_pku_encore_10_pilot_50", 50)
    assert other.benchmark.pairs.data == tmp_path
    same = ("sources", "training", "backbone", "rows", "weighing", "gate", "export_dtype")
    assert all(getattr(other, name) == getattr(recipe, name) for name in same)
    assert changed(recipe, {}) == recipe
    with pytest.raises(InputError, match=r"rating\.limits: Extra inputs"):
        changed(recipe, {"rating": {"limits": 4}})
    demo = load_recipe("demo")
    more = changed(demo, {"rating": {"judge": {"engine_args": {"seed": 1}}}})
    assert more.rating.judge.engine_args == {**demo.rating.judge.engine_args, "seed": 1}
    other_engine = {"rating": {"judge": {"backend": "transformers"}}}
    assert changed(demo, other_engine).rating.judge.engine_args == {}


# --- what a machine can hold ----------------------------------------------------------------------


def judge_of(recipe: str, **engine_args: int) -> JudgeConfig:
    changes = {"rating": {"judge": {"engine_args": engine_args}}}
    return changed(load_recipe(recipe), changes).rating.judge


SPREAD = {"tensor_parallel_size": 4}


@pytest.mark.parametrize(
    ("recipe", "engine_args", "machine", "says"),
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
def test_a_judge_that_cannot_run_here_is_refused_with_what_to_do(
    recipe: str, engine_args: dict[str, int], machine: Machine, says: str | None
) -> None:
    with contextlib.nullcontext() if says is None else pytest.raises(InputError, match=says):
        refuse_judge_too_large(judge_of(recipe, **engine_args), machine=machine)


@pytest.mark.parametrize(
    ("name", "machine", "says"),
    [
        # 7.50 B weights in two bytes, two averages of each in two more: 45 GB = 42 GiB.
        ("hh_pku_encore_10", SMALL_GPU, "stage train: .* takes at least 42 GiB of memory"),
        ("hh_pku_encore_10", ONE_H100, None),
        ("probe", SMALL_GPU, None),  # weights alone: 14 GiB
        ("probe", LAPTOP, "no GPU and 16 GiB"),  # float32 on a CPU: 28 GiB
    ],
)
def test_a_training_that_cannot_fit_is_refused(
    name: str, machine: Machine, says: str | None
) -> None:
    stage, backbone, training = load_recipe(name).models[0]
    with contextlib.nullcontext() if says is None else pytest.raises(InputError, match=says):
        refuse_training_too_large(backbone, training, stage=stage, machine=machine)


# --- what it names --------------------------------------------------------------------------------


def test_what_cannot_be_read_is_refused_before_its_rating(tmp_path: Path) -> None:
    demo = load_recipe("demo")
    check_readable(demo)
    rows = gzip.decompress(BENCHMARK_DATA_PATH.read_bytes()).splitlines(keepends=True)
    short = tmp_path / "short.jsonl"
    short.write_bytes(b"".join(rows[1:]))
    with pytest.raises(InputError, match="--benchmark-data"):  # 79 pairs of 80
        check_readable(changed(demo, {"benchmark": {"pairs": {"data": short}}}))
    gone = BackboneConfig(model=str(tmp_path / "nowhere"))
    row = demo.rows[0].model_copy(update={"backbone": gone})
    with pytest.raises(EncoreError, match=r"nowhere.*no such folder"):
        check_readable(demo.model_copy(update={"rows": (row,)}))


# --- the stages, run in small ---------------------------------------------------------------------


class Stopped(BaseException):
    """Somebody pulled the plug; like KeyboardInterrupt, nothing may catch it."""


def tiny_recipe(folder: Path, **changes: Any) -> Recipe:
    """The demo's recipe with everything in it made small: six pairs, two steps, random weights."""
    lines = [
        {"prompt": f"About {n}?", "chosen": f"{n} is {'so ' * n}good.", "rejected": f"Not {n}."}
        for n in range(6)
    ]
    pairs = write_lines(folder / "pairs.jsonl", lines)
    judge = JudgeConfig(model=str(make_tiny_judge(folder / "judge")), backend="transformers")
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
        "rating": RatingConfig(judge=judge, shard_size=2, max_reply_tokens=8),
        "backbone": trunk,
        "training": fast,
        "initial": None,
        "rows": (RowModel(name="bradley-terry-model", backbone=trunk, training=preferences),),
        "judge_row": None,
        "export_heads": False,
        "gate": GateConfig(num_steps=2),
        "benchmark": demo.benchmark.model_copy(update={"rows": rows}),
    }
    return demo.model_copy(update={**small, **changes})


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    return tiny_recipe(tmp_path_factory.mktemp("recipe"))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, tiny: Recipe) -> Path:
    study = tmp_path_factory.mktemp("done") / "study"
    result = run_recipe(tiny, study)
    assert set(result.done_now) == set(STAGES)
    return study


@pytest.fixture
def done(finished: Path, tmp_path: Path) -> Path:
    """A study in which the recipe has been run to its end."""
    return Path(shutil.copytree(finished, tmp_path / "study"))


def contents(study: Path) -> dict[str, str]:
    """Digest of every file of a study but locks."""
    return {
        name: file_sha256(path)
        for path in sorted(study.rglob("*"))
        if path.is_file() and "lock" not in (name := path.relative_to(study).as_posix())
    }


def flip_a_bit(path: Path) -> None:
    """Of the same length, so that only its content tells."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def done_by(recipe: Recipe, study: Path) -> set[str]:
    result = run_recipe(recipe, study)
    assert set(result.done_now) | set(result.done_before) == set(STAGES)
    return set(result.done_now)


def test_pairs_in_a_table_and_a_model_out_and_again_nothing(done: Path, tiny: Recipe) -> None:
    before = contents(done)
    result = run_recipe(tiny, done)  # the study has moved, too
    assert (result.done_now, result.rated) == ([], "0 rated, 3 reused, 0 failed")
    assert contents(done) == before
    table = result.table.read_text(encoding="utf-8")
    for row in ("uniform", "encore", "random (5 draws)", "bradley-terry-model", "moe gate"):
        assert row in table
    assert "read these figures as an example, not as evidence" in table
    exported = open_reward_model(result.export, device="cpu")
    assert exported.model.head_ids == ("reward",)
    weights = json.loads((done / "recipes" / "demo" / "weights.json").read_text())
    assert sum(
        weights["weights"].values() if isinstance(weights["weights"], dict) else weights["weights"]
    ) == pytest.approx(1)


def test_interrupted_before_each_stage_no_finished_stage_is_repeated(
    tmp_path: Path, tiny: Recipe, finished: Path
) -> None:
    study, before = tmp_path / "study", {}
    for stage in (*STAGES[2:], None):

        def call(name: str, work: Work, stage: str | None = stage) -> Any:
            if name == stage:
                raise Stopped
            return work(SILENT)

        with contextlib.nullcontext() if stage is None else pytest.raises(Stopped):
            run_recipe(tiny, study, call=call)
        after = contents(study)
        # What earlier stages left is as it was: only new files have come.
        assert before.items() <= after.items(), stage
        before = after
    undisturbed = contents(finished)
    ends = ("model.safetensors", "heads.safetensors", "gate.safetensors", ".parquet", "table.md")
    results = [name for name in undisturbed if name.endswith((*ends, "weights.json"))]
    assert len(results) > len(STAGES)
    assert {name: before[name] for name in results} == {name: undisturbed[name] for name in results}


def test_damage_is_mended_where_it_is_and_spreads_no_further(done: Path, tiny: Recipe) -> None:
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
        flip_a_bit(path)
    (done / "exports" / "demo" / "encore_export.json").unlink()
    stages = {"ingest", "weigh", "train", "gate", "score", "benchmark", "export"}
    assert done_by(tiny, done) == stages
    after = contents(done)
    # These say how long the work took; a shard's place in `done` does not.
    timed = {"gate-result.json", ".gate.made.json", "score.json"}
    different = {Path(name).name for name in before if before[name] != after.get(name)}
    assert different <= timed


def test_another_temperature_weighs_and_exports_anew_and_trains_nothing(
    done: Path, tiny: Recipe
) -> None:
    weighing = tiny.weighing.model_copy(update={"tau": 0.5})
    assert done_by(tiny.model_copy(update={"weighing": weighing}), done) == {"weigh", "export"}


def test_what_is_too_large_for_this_machine_costs_no_download(
    tmp_path: Path, done: Path, tiny: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("encore.recipes.recipe_run.this_machine", lambda: LAPTOP)
    study = tmp_path / "new"
    with pytest.raises(InputError, match="its weights alone take 131 GiB; this machine has no GPU"):
        run_recipe(load_recipe("hh_pku_encore_10"), study)
    small_judge = load_recipe("probe").model_copy(update={"rating": tiny.rating})
    with pytest.raises(InputError, match="stage train: "):
        run_recipe(small_judge, study)
    assert not study.exists()

    nothing = Machine(num_gpus=0, gpu_bytes=0, memory_bytes=1 << 10)
    monkeypatch.setattr("encore.recipes.recipe_run.this_machine", lambda: nothing)
    # Ratings that are there need no judge, and models that are there no room.
    assert done_by(tiny, done) == set()
    next(done.glob("ratings/*/shard-00001*.parquet")).unlink()
    before = contents(done)
    with pytest.raises(InputError, match="its weights alone take"):
        run_recipe(tiny, done)
    assert contents(done) == before


def test_a_study_with_other_pairs_is_refused_before_any_rating(
    tmp_path: Path, tiny: Recipe
) -> None:
    more = tmp_path / "more.jsonl"
    more.write_text('{"prompt": "p", "chosen": "yes", "rejected": "no"}\n')
    ingest([f"more={more}"], out=tmp_path / "study")
    with pytest.raises(InputError, match="also has pairs labelled more, which are none of recipe"):
        run_recipe(tiny, tmp_path / "study")
    rows = tmp_path / "rows.jsonl"
    rows.write_text("{}\n")
    table = tiny.benchmark.model_copy(update={"pairs": PairsConfig(data=rows)})
    with pytest.raises(InputError, match=re.escape("rows.jsonl")):
        run_recipe(tiny.model_copy(update={"benchmark": table}), tmp_path / "other")
    assert not list(tmp_path.glob("*/ratings"))


def test_a_second_process_waits_and_repeats_nothing(
    done: Path, tiny: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
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
