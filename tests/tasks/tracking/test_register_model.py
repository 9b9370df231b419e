"""A registered row is an MLflow model that scores conversations, with or without this project."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from encore.benchmarks.benchmark_options import BenchmarkConfig, RowsConfig
from encore.benchmarks.run_benchmark import run_benchmark
from encore.core.errors import InputError
from encore.data.study import open_study
from encore.model.open_model import open_reward_model
from tasks.tracking.register_model import DEFAULT_MODEL, _export, set_alias
from tasks.tracking.store_uri import TRACKING_URI_VARIABLE
from tasks.tracking.sync import sync
from tasks.tracking.tracking_options import TrackingConfig
from tests.tasks.tracking import study_files
from tests.tasks.tracking.mlflow_store import MlflowClient, copy_store, mlflow
from tests.worlds.scorings import make_model
from tests.worlds.servers import mlflow_server

pytestmark = pytest.mark.services

CHAMPION = f"models:/{DEFAULT_MODEL}@champion"
TAU_2 = "encore (τ 2)"
#: Program that loads a model in an environment without this project, and prints its scores.
_LOAD = """
import importlib.util, json, sys
assert importlib.util.find_spec("encore") is None, "the project is here"
import mlflow, pandas as pd
mlflow.set_tracking_uri(sys.argv[1])
model = mlflow.pyfunc.load_model(sys.argv[2])
frame = pd.DataFrame({"messages": json.load(sys.stdin)})
print(json.dumps(model.predict(frame)))
"""


@pytest.fixture(scope="module")
def benchmarked(tmp_path_factory) -> SimpleNamespace:
    """Return a study with a table: three rows that are models, two means over draws."""
    folder = tmp_path_factory.mktemp("registered")
    config = study_files.make_evaluation(folder, num_pairs=10)
    rows = RowsConfig(schemes=("encore", "random"), taus=(2.0,), num_random=5)
    config = config.model_copy(update={"rows": rows})
    run = run_benchmark(open_study(folder / "study"), config)
    rewards = {row.name: row.reward_P2 for row in run.rows}
    conversations = [
        [
            *({"role": turn.role, "content": turn.content} for turn in pair.prompt),
            {"role": "assistant", "content": response},
        ]
        for pair in run.pairs.pairs
        for response in (pair.chosen, pair.rejected)
    ]
    return SimpleNamespace(
        config=config, table=run.out, rewards=rewards, conversations=conversations
    )


@pytest.fixture
def world(benchmarked, mlflow_template, tmp_path, monkeypatch) -> SimpleNamespace:
    """Return a copy of the study in MLflow, and a function that points an alias to a row."""
    monkeypatch.delenv(TRACKING_URI_VARIABLE, raising=False)
    study = Path(shutil.copytree(benchmarked.table.parents[1], tmp_path / "study"))
    config = benchmarked.config
    table = study / "benchmarks" / benchmarked.table.name
    uri = copy_store(mlflow_template, study / "mlflow.db")
    sync(study)

    def point(row: str, alias: str = "champion", uri: str | None = None, **changes: object) -> str:
        changed = config.model_copy(update=changes)
        tracking = TrackingConfig(tracking_uri=uri)
        return set_alias(study, changed, row=row, table=table, alias=alias, tracking=tracking)

    return SimpleNamespace(**vars(benchmarked), study=study, uri=uri, point=point)


def champion(uri: str) -> mlflow.pyfunc.PyFuncModel:
    mlflow.set_tracking_uri(uri)
    try:
        return mlflow.pyfunc.load_model(CHAMPION)
    finally:
        mlflow.set_tracking_uri(None)


def champion_scores(uri: str, conversations: list[object]) -> list[float]:
    """Score conversations by the champion of a store, in this process."""
    return champion(uri).predict(pd.DataFrame({"messages": conversations}))


def models_of(uri: str) -> list[object]:
    client = MlflowClient(uri)
    experiment_ids = [experiment.experiment_id for experiment in client.search_experiments()]
    return client.search_logged_models(experiment_ids)


def test_a_row_of_the_rules_of_a_model_with_head_0_is_exported_without_head_0(tmp_path):
    model = make_model(tmp_path / "model", head_ids=("preference", "be-kind", "be-brief"))
    content = {"ours": {"weights": {"be-kind": 0.75, "be-brief": 0.25}, "params": {}}}
    row = SimpleNamespace(name="a", params={"scheme": "a"}, row_json=json.dumps(content))
    config = BenchmarkConfig(model=str(model))
    _export(row, config, tmp_path / "export", device="cpu")
    conversation = [{"role": role, "content": "Hi."} for role in ("user", "assistant")]
    scores = open_reward_model(model, device="cpu").score([conversation])
    reward = open_reward_model(tmp_path / "export", device="cpu").score([conversation])["reward"]
    assert reward == pytest.approx(0.75 * scores["be-kind"] + 0.25 * scores["be-brief"], abs=1e-5)


@pytest.mark.parametrize("row", [TAU_2, "initial"])
def test_the_champion_scores_as_its_row_did(world, row):
    world.point(row)
    served = champion_scores(world.uri, world.conversations)
    assert served == pytest.approx(world.rewards[row].ravel().tolist(), abs=1e-4)
    version = MlflowClient(world.uri).get_model_version_by_alias(DEFAULT_MODEL, "champion")
    assert set(version.tags) == {"encore.partial", "encore.synthetic"}
    [logged] = models_of(world.uri)
    files = list((world.study / "mlflow-artifacts" / "models" / logged.model_id).rglob("*.*"))
    assert {"reward_pyfunc.py", "model.safetensors"} <= {file.name for file in files}
    assert not [file for file in files if file.suffix in {".pkl", ".bin", ".pt"}]
    description = mlflow.models.Model.load(
        str(next(file for file in files if file.name == "conda.yaml").parent)
    )
    assert description.signature.inputs.input_names() == ["messages"]
    assert description.saved_input_example_info is not None


def test_an_over_long_conversation_is_cut_and_one_without_an_answer_is_refused(world):
    world.point("initial")
    short = [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Yes."}]
    long = [{"role": "user", "content": "why " * 200}, short[1]]  # the model has 64 positions
    model = champion(world.uri)
    assert len(model.predict(pd.DataFrame({"messages": [short, long]}))) == 2
    with pytest.raises(ValueError, match="row 1: expected messages"):
        model.predict(pd.DataFrame({"messages": [short, short[:1]]}))


def test_a_version_is_made_once_and_a_crash_leaves_none(world, monkeypatch):
    def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    client = MlflowClient(world.uri)
    for call in ("log_model_artifacts", "create_model_version"):
        with monkeypatch.context() as patch:
            patch.setattr(mlflow.MlflowClient, call, die)
            with pytest.raises(KeyboardInterrupt):
                world.point(TAU_2)
        assert client.search_model_versions() == []
    assert [world.point(TAU_2), world.point(TAU_2, "candidate"), world.point(TAU_2)] == ["1"] * 3
    [logged] = models_of(world.uri)
    versions = json.loads(logged.tags["mlflow.modelVersions"])
    assert versions == [{"name": DEFAULT_MODEL, "version": 1}]
    assert [world.point("uniform"), world.point("uniform")] == ["2", "2"]
    assert client.get_model_version_by_alias(DEFAULT_MODEL, "candidate").version == 1
    assert not list(world.study.glob(".registering-*"))


def test_a_model_without_a_plain_export_is_refused(world):
    sigmoid = make_model(world.study / "sigmoid", head_ids=("reward",))
    config = json.loads((sigmoid / "config.json").read_text())
    study_files.write_json(sigmoid / "config.json", {**config, "function_to_apply": "sigmoid"})
    with pytest.raises(InputError, match=r"row 'initial' .* no plain export .* a sigmoid after"):
        world.point("initial", reward_models=(f"initial={sigmoid}",))
    assert MlflowClient(world.uri).search_model_versions() == []


@pytest.mark.parametrize(
    ("row", "kind", "model", "reason"),
    [
        ("uniform", "judge", None, "it is a judge's"),
        ("uniform", "scheme", {"gate": "9a" * 32}, "its gate weighs the rules anew for every"),
        ("uniform", "model", None, "it comes from a file of results"),
        ("random (100 draws)", "scheme", {}, "it is a mean over draws of weights"),
        ("encore (τ 3)", "scheme", {}, "the table has no such row (these can: 'encore (τ 2)')"),
    ],
)
def test_a_row_that_is_no_reward_model_is_refused_with_the_reason(
    tmp_path, row, kind, model, reason
):
    study = study_files.make_study(tmp_path / "study")
    folder = study_files.benchmark(study)
    table, evaluation = (
        json.loads((folder / name).read_text()) for name in ("table.json", "evaluation.json")
    )
    table["rows"][0] |= {"kind": kind, "ours": {**table["rows"][0]["ours"], "weights": None}}
    evaluation["models"]["uniform"] = model
    study_files.write_json(folder / "table.json", table)
    study_files.write_json(folder / "evaluation.json", evaluation)
    message = re.escape(f"row {row!r} cannot be registered: {reason}")
    with pytest.raises(InputError, match=message):
        set_alias(
            study, BenchmarkConfig(), row=row, table=folder, alias="x", tracking=TrackingConfig()
        )


@pytest.fixture(scope="session")
def foreign_python(tmp_path_factory) -> Path:
    """Return a Python whose environment has all packages of this one but not the project."""
    folder = tmp_path_factory.mktemp("foreign") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    [site_packages] = folder.glob("lib/python*/site-packages")
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not entry.name.startswith(("encore", "_encore", "__editable__")):
            (site_packages / entry.name).symlink_to(entry)
    return folder / "bin" / "python"


@pytest.mark.full
def test_the_champion_loads_without_this_project(world, foreign_python, tmp_path, mlflow_template):
    server = tmp_path / "server"
    store = copy_store(mlflow_template, server / "mlflow.db")
    with mlflow_server(store, server) as url:
        sync(world.study, tracking_uri=url)
        assert world.point(TAU_2, uri=url) == "1"
        done = subprocess.run(
            [foreign_python, "-I", "-c", _LOAD, url, CHAMPION],
            input=json.dumps(world.conversations),
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
        )
    assert done.returncode == 0, done.stderr
    served = json.loads(done.stdout.splitlines()[-1])
    assert np.abs(np.array(served) - world.rewards[TAU_2].ravel()).max() < 1e-4
