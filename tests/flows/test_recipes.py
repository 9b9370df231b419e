"""The flow `recipe`: from pairs to the table, and after every interruption only what is missing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prefect.artifacts import Artifact
from prefect.client.schemas.objects import State
from prefect.exceptions import ParameterTypeError

from encore.config import JudgeConfig, RatingConfig
from encore.data.ingestion import ingest
from encore.errors import InputError
from encore.files import file_sha256
from encore.model.config import BackboneConfig
from encore.model.opening import open_reward_model
from encore.recipes.changes import JudgeChanges
from encore.recipes.needs import Machine
from encore.recipes.recipe import Recipe, RowModel, TablePlan
from encore.recipes.shipped import demo, load_recipe
from encore.recipes.stages import StageBook
from encore.training.config import TrainingConfig
from encore.weighting.scheme import SchemeOptions
from encore.weighting.weigh import weigh_rules
from flows.recipe_stages import table_path
from flows.recipes import run_recipe
from tests.tasks.mlflow_store import copied, new_template
from tests.training.studies import backbone_config, make_backbone

pytestmark = pytest.mark.usefixtures("prefect_api")

STAGES = (
    *("ingest", "rate", "analyze", "weigh", "train", "train-bradley-terry-model", "gate", "score"),
    *("benchmark", "export"),
)
#: One row of each kind: a mean of draws, the reference, a scheme.
_SCHEMES = ("uniform", "random", "encore")
_FAST = TrainingConfig(
    batch_pairs=4, max_steps=2, evaluation_share=0.3, learning_rate=1e-3, warmup_steps=0
)


class Stopped(BaseException):
    """Somebody pulled the plug; like KeyboardInterrupt, nothing may catch it."""


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_backbone(tmp_path_factory.mktemp("recipe") / "tiny")


@pytest.fixture(scope="module")
def mlflow_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return new_template(tmp_path_factory.mktemp("mlflow"))


@pytest.fixture(scope="module")
def tiny(pairs_file: Path, tiny_judge: Path, backbone: Path) -> Recipe:
    """The demo's recipe with everything in it made small: six pairs, two steps, random weights."""
    judge = JudgeConfig(model=str(tiny_judge), backend="transformers")
    trunk = backbone_config(backbone)
    preferences = _FAST.model_copy(update={"objective": "bradley-terry"})
    recipe = demo()
    return recipe.model_copy(
        update={
            "sources": (f"small={pairs_file}",),
            "rating": RatingConfig(judge=judge, shard_size=2, max_reply_tokens=8),
            "backbone": trunk,
            "training": _FAST,
            "rows": (RowModel(name="bradley-terry-model", backbone=trunk, training=preferences),),
            "gate_steps": 2,
            "table": TablePlan.model_validate(
                {**dict(recipe.table), "schemes": _SCHEMES, "taus": (2.0,), "num_random": 5}
            ),
        }
    )


@pytest.fixture(scope="module")
def _done(tmp_path_factory: pytest.TempPathFactory, mlflow_template: Path, tiny: Recipe) -> Path:
    folder = tmp_path_factory.mktemp("done")
    store = copied(mlflow_template, folder / "mlflow.db")
    state = run_recipe(tiny, folder / "study", tracking_uri=store, return_state=True)
    assert state.is_completed(), state.message
    assert (tuple(state.result().done_now), state.result().done_before) == (STAGES, [])
    assert state.message.startswith("demo: 10 stages done, 0 were done before; 3 rated")
    return folder / "study"


@pytest.fixture
def done(prefect_api: None, _done: Path, tmp_path: Path) -> Path:
    """A study in which the recipe has been run to its end."""
    return Path(shutil.copytree(_done, tmp_path / "study"))


@pytest.fixture
def start(tmp_path: Path, mlflow_template: Path) -> Callable[..., State[Any]]:
    """Run a recipe in a study of this test, logged to a store of this test."""
    store = copied(mlflow_template, tmp_path / "mlflow.db")

    def run_it(recipe: Recipe, study: str = "study") -> State[Any]:
        return run_recipe(recipe, tmp_path / study, tracking_uri=store, return_state=True)

    return run_it


@pytest.fixture
def stop_after(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Let the run be interrupted as soon as a stage is finished."""
    once = StageBook.once
    last: list[str] = []

    def stopping(book: StageBook, stage: str, **settings: Any) -> Any:
        if last == ["rate"] and stage == "analyze":
            raise Stopped
        record = once(book, stage, **settings)
        if [stage] == last:
            raise Stopped
        return record

    monkeypatch.setattr(StageBook, "once", stopping)

    def choose(stage: str) -> None:
        last[:] = [stage]

    yield choose
    last.clear()


def contents(study: Path) -> dict[str, str]:
    """Digest of every file of a study but locks, by name."""
    return {
        path.relative_to(study).as_posix(): file_sha256(path)
        for path in sorted(study.rglob("*"))
        if path.is_file() and "lock" not in path.as_posix().removeprefix(study.as_posix())
    }


def changes_between(before: dict[str, str], after: dict[str, str]) -> set[str]:
    """Files that are new or other than before; files that are gone."""
    return {name for name in before | after if before.get(name) != after.get(name)}


def test_pairs_in_a_table_and_a_model_out(done: Path, tiny: Recipe) -> None:
    table = table_path(done, tiny).read_text(encoding="utf-8")
    for row in ("uniform", "encore", "random (5 draws)", "bradley-terry-model", "moe gate"):
        assert row in table
    assert "read these figures as an example, not as evidence" in table
    exported = open_reward_model(done / "exports" / "demo", device="cpu")
    assert exported.model.head_ids == ("reward",)
    # What it is weighed by is what `encore weights` says.
    left = json.loads((done / "recipes" / "demo" / "weights.json").read_text(encoding="utf-8"))
    assert left == weigh_rules(done, scheme="encore", options=SchemeOptions()).as_dict()
    for key in ("rule-statistics", "rule-weights", "training-evaluation", "benchmark-table"):
        assert Artifact.get(key) is not None


def test_running_again_does_nothing_and_touches_no_file(done: Path, tiny: Recipe, start) -> None:
    before = contents(done)
    again = start(tiny)
    assert again.message.startswith("demo: 0 stages done, 10 were done before; 0 rated, 3 reused")
    assert changes_between(before, contents(done)) == set()


@pytest.mark.full
def test_interrupted_after_each_stage_no_finished_stage_is_repeated(
    tmp_path: Path, tiny: Recipe, start, stop_after
) -> None:
    study = tmp_path / "study"
    for place, stage in enumerate(STAGES):
        before = contents(study) if study.exists() else {}
        stop_after(stage)
        with pytest.raises(Stopped):
            start(tiny)
        after = contents(study)
        # What earlier stages left is as it was: only new files have come.
        assert changes_between(before, after) == set(after) - set(before), stage
        records = {path.stem for path in (study / "recipes" / "demo").glob("*.json")}
        assert set(STAGES[: place + 1]) - {"rate"} <= records
        assert not set(STAGES[place + 1 :]) & records
    stop_after("nothing")
    before = contents(study)
    last = start(tiny)
    assert last.message.startswith("demo: 0 stages done, 10 were done before; 0 rated, 3 reused")
    assert changes_between(before, contents(study)) == set()

    # And it is what an undisturbed run gives.
    assert start(tiny, "undisturbed").is_completed()
    interrupted, undisturbed = contents(study), contents(tmp_path / "undisturbed")
    models = ("/model.safetensors", "/heads.safetensors", "/gate.safetensors")
    findings = (".parquet", "/table.md", "/weights.json", "/analysis.json")
    results = [name for name in undisturbed if name.endswith((*models, *findings))]
    assert len(results) > len(STAGES)
    for name in results:
        assert interrupted[name] == undisturbed[name], name


def test_an_interruption_early_on_costs_nothing_that_was_finished(
    tmp_path: Path, tiny: Recipe, start, stop_after
) -> None:
    study = tmp_path / "study"
    for stage in ("ingest", "rate", "weigh"):
        before = contents(study) if study.exists() else {}
        stop_after(stage)
        with pytest.raises(Stopped):
            start(tiny)
        after = contents(study)
        assert after.keys() > before.keys()
        assert changes_between(before, after) == set(after) - set(before), stage


def test_a_lost_file_is_made_again_and_nothing_before_it(done: Path, tiny: Recipe, start) -> None:
    lost = done / "exports" / "demo" / "config.json"
    content = lost.read_bytes()
    lost.unlink()
    assert start(tiny).result().done_now == ["export"]
    assert lost.read_bytes() == content


def flip_a_bit(path: Path) -> None:
    """Of the same length, so that only its content tells."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_damage_is_mended_where_it_is_and_spreads_no_further(
    done: Path, tiny: Recipe, start
) -> None:
    before = contents(done)
    [scores] = done.glob("scores/*/score.json")
    flip_a_bit(done / "pairs" / "small.parquet")
    flip_a_bit(scores)
    # A trained model of the right length is whole to `encore train`: it must not pass for one here.
    record = StageBook(study=done, recipe="demo").recorded("train")
    assert record is not None
    flip_a_bit(done / record.facts["model"] / "heads.safetensors")

    (done / "exports" / "demo" / "encore_export.json").unlink()

    assert start(tiny).result().done_now == ["ingest", "train", "score", "export"]

    assert changes_between(before, contents(done)) == set()


@pytest.mark.full
@pytest.mark.parametrize("is_lost", [True, False])
def test_any_damaged_file_of_any_stage_is_made_again_as_it_was(
    done: Path, tiny: Recipe, start, *, is_lost: bool
) -> None:
    before = contents(done)
    for stage in (stage for stage in STAGES if stage != "rate"):
        record = StageBook(study=done, recipe="demo").recorded(stage)
        assert record is not None
        for name in record.files:
            if is_lost:
                (done / name).unlink()
            else:
                flip_a_bit(done / name)
        state = start(tiny)
        assert state.is_completed(), (stage, state.message)
        assert state.result().done_now == [stage]
        different = changes_between(before, contents(done))
        # Only this says how long the work took.
        assert {Path(name).name for name in different} <= {"gate-result.json"}, stage


def test_a_judge_or_a_training_too_large_for_this_machine_costs_no_download(
    tmp_path: Path, start, monkeypatch: pytest.MonkeyPatch
) -> None:
    laptop = Machine(num_gpus=0, gpu_bytes=0, memory_bytes=16 << 30)
    monkeypatch.setattr("flows.recipes.this_machine", lambda: laptop)
    big = start(load_recipe("hh_pku_encore_10")).result(raise_on_failure=False)
    assert isinstance(big, InputError)
    assert "its weights alone take 131 GiB; this machine has no GPU" in str(big)
    small_judge = load_recipe("probe").model_copy(update={"rating": demo().rating})
    trained = start(small_judge).result(raise_on_failure=False)
    assert "recipe probe, stage train" in str(trained)
    assert not (tmp_path / "study").exists()


@pytest.fixture
def tiny_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that cannot hold any judge's weights."""
    tiny_memory = Machine(num_gpus=0, gpu_bytes=0, memory_bytes=1 << 10)
    monkeypatch.setattr("flows.recipes.this_machine", lambda: tiny_memory)


@pytest.mark.usefixtures("tiny_machine")
def test_ratings_that_are_there_need_no_judge_on_this_machine(
    done: Path, tiny: Recipe, start
) -> None:
    """Rated elsewhere, by this recipe or by another call: no record of analysis says so."""
    (done / "recipes" / "demo" / "analyze.json").unlink()
    state = start(tiny)
    assert state.is_completed(), state.message
    assert state.result().done_now == ["analyze"]


@pytest.mark.usefixtures("tiny_machine")
@pytest.mark.parametrize("what_is_open", ["a lost shard", "another run"])
def test_a_shard_that_is_left_to_rate_needs_the_judge_whatever_is_recorded(
    done: Path, tiny: Recipe, start, what_is_open: str
) -> None:
    recipe = tiny
    if what_is_open == "a lost shard":
        next(done.glob("ratings/*/shard-00001.parquet")).unlink()
    else:
        longer = tiny.rating.model_copy(update={"max_reply_tokens": 9})
        recipe = tiny.model_copy(update={"rating": longer})
    before = contents(done)
    error = start(recipe).result(raise_on_failure=False)
    assert isinstance(error, InputError)
    assert "its weights alone take" in str(error)
    assert changes_between(before, contents(done)) == set()


def test_what_a_machine_needs_otherwise_is_a_parameter_of_the_flow(
    tmp_path: Path, tiny: Recipe, mlflow_template: Path
) -> None:
    store = copied(mlflow_template, tmp_path / "mlflow.db")
    state = run_recipe(
        recipe="demo",
        study=tmp_path / "study",
        changes=JudgeChanges(model=str(tmp_path / "nowhere"), limit=4),
        benchmark_data=tmp_path / "missing.jsonl",
        tracking_uri=store,
        return_state=True,
    )
    assert "missing.jsonl: no such file" in str(state.result(raise_on_failure=False))


def test_a_form_with_what_no_recipe_has_is_refused() -> None:
    with pytest.raises(ParameterTypeError, match="recipe"):
        run_recipe.validate_parameters({"recipe": "best", "study": "study"})
    with pytest.raises(ParameterTypeError, match="limit"):
        run_recipe.validate_parameters(
            {"recipe": "demo", "study": "study", "changes": {"limit": 0}}
        )
    schema = run_recipe.parameters.model_dump()
    assert {"recipe", "study", "changes", "benchmark_data"} <= schema["properties"].keys()
    assert set(schema["required"]) == {"recipe", "study"}


def test_a_benchmark_that_cannot_be_read_costs_no_rating(
    tmp_path: Path, tiny: Recipe, start
) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("{}\n")
    table = tiny.table.model_copy(update={"data": rows})
    error = start(tiny.model_copy(update={"table": table})).result(raise_on_failure=False)
    assert isinstance(error, InputError)
    assert "rows.jsonl" in str(error)
    assert not (tmp_path / "study" / "ratings").exists()


def test_another_temperature_weighs_and_exports_anew_and_trains_nothing(
    done: Path, tiny: Recipe, start
) -> None:
    other = tiny.model_copy(update={"weighing": tiny.weighing.model_copy(update={"tau": 0.5})})
    assert start(other).result().done_now == ["weigh", "export"]


def test_an_untouched_row_is_opened_at_the_revision_that_it_names(
    done: Path, tiny: Recipe, start
) -> None:
    """A folder has no revisions, and says so to whoever asks it for one."""
    pinned = BackboneConfig(model=tiny.backbone.model, revision="v2")
    row = RowModel(name="initial model", backbone=pinned)
    error = start(tiny.model_copy(update={"rows": (row,)})).result(raise_on_failure=False)
    assert isinstance(error, InputError)
    assert str(error).startswith("reward model ")  # of the table, not the backbone of a training
    assert "a revision ('v2') belongs to a hub id" in str(error)


def test_a_study_with_other_pairs_is_refused_before_any_rating(
    tmp_path: Path, tiny: Recipe, start
) -> None:
    more = tmp_path / "more.jsonl"
    more.write_text('{"prompt": "p", "chosen": "yes", "rejected": "no"}\n')
    ingest([f"more={more}"], out=tmp_path / "study")

    error = start(tiny).result(raise_on_failure=False)

    assert isinstance(error, InputError)
    assert "also has pairs labelled more, which are none of recipe demo's" in str(error)
    assert not (tmp_path / "study" / "ratings").exists()


def test_a_benchmark_that_does_not_exist_costs_no_rating(
    tmp_path: Path, tiny: Recipe, start
) -> None:
    table = tiny.table.model_copy(update={"benchmark": "nowhere"})
    error = start(tiny.model_copy(update={"table": table})).result(raise_on_failure=False)
    assert "benchmark 'nowhere'" in str(error)
    assert not (tmp_path / "study").exists()
