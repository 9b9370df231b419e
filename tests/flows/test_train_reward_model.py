"""The flow `train-reward-model`: the model of `encore train`, artifacts, one MLflow run."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prefect.artifacts import Artifact
from prefect.client.schemas.objects import State

import flows.train_reward_model as module
from encore.errors import EncoreError, InputError
from encore.files import file_sha256
from encore.model.config import BackboneConfig
from encore.training.config import TrainingConfig
from encore.training.run import TrainingRun
from flows.train_reward_model import train_reward_model
from tasks.track import TrackingUnavailableError
from tasks.train import TrainedModel
from tasks.train_progress import FlowReporter
from tests.flows.test_command import last_line, run, with_server, without_server
from tests.tasks.mlflow_store import Logged, copied, new_template
from tests.training.studies import RULES, backbone_config, make_backbone, make_study, write_ratings

__all__ = ["with_server", "without_server"]  # fixtures

pytestmark = pytest.mark.usefixtures("prefect_api")

NUM_STEPS = 12
CONFIG = TrainingConfig(
    batch_pairs=4,
    learning_rate=1e-3,
    evaluate_every=4,
    checkpoint_every=4,
    evaluation_share=0.2,
    max_steps=NUM_STEPS,
    epochs=100,
)
TrainFlow = Callable[..., State[Any]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("training")
    make_backbone(folder / "tiny")
    make_study(folder / "study", num_pairs=24)
    write_ratings(folder / "study", folder / "ratings.parquet")
    new_template(folder)
    return folder


@pytest.fixture
def backbone(made: Path) -> BackboneConfig:
    return backbone_config(made / "tiny")


@pytest.fixture
def store_uri(made: Path, tmp_path: Path) -> str:
    return copied(made / "mlflow.db", tmp_path / "store" / "mlflow.db")


@pytest.fixture
def train(
    made: Path, backbone: BackboneConfig, store_uri: str, tmp_path: Path, monkeypatch
) -> TrainFlow:
    """The flow on the small study, its runs in folders of this test; retries come at once."""
    at_once = module.train_model.with_options(retry_delay_seconds=0)
    monkeypatch.setattr(module, "train_model", at_once)

    def start(*, out: str = "run", **parameters: Any) -> State[Any]:
        arguments: dict[str, Any] = {
            "backbone": backbone,
            "training": CONFIG,
            "ratings": made / "ratings.parquet",
            "tracking_uri": store_uri,
            "out": tmp_path / out,
        }
        return train_reward_model(made / "study", return_state=True, **{**arguments, **parameters})

    return start


def weights_of(out: Path) -> dict[str, str]:
    """Digests of the weight files of the model in a run's folder."""
    model_dir = TrainingRun(folder=out, identity={}).model_dir
    files = sorted(model_dir.rglob("*.safetensors"))
    assert files
    return {str(path.relative_to(model_dir)): file_sha256(path) for path in files}


def artifact(key: str) -> Any:
    found = Artifact.get(key)
    assert found is not None
    return found


def error_of(state: State[Any]) -> EncoreError:
    assert state.is_failed()
    error = state.result(raise_on_failure=False)
    assert isinstance(error, EncoreError)
    return error


def break_at(monkeypatch: pytest.MonkeyPatch, step: int, *errors: Exception) -> None:
    """Let the training raise at a step, an error for each time that it gets there."""
    left = list(errors)
    stepped = FlowReporter.stepped

    def breaking(self, record):
        stepped(self, record)
        if record.step == step and left:
            raise left.pop(0)

    monkeypatch.setattr(FlowReporter, "stepped", breaking)


def test_the_flow_trains_shows_the_heads_and_logs_to_mlflow(train, store_uri, tmp_path):
    state = train()

    assert state.is_completed(), state.message
    assert state.message == f"trained: {NUM_STEPS} steps"
    assert isinstance(state.result(), TrainedModel)
    rows = json.loads(artifact("training-evaluation").data)
    assert [row["head"] for row in rows] == sorted(RULES)
    assert all(row.keys() == {"head", "R²", "accuracy"} for row in rows)
    run_artifact = artifact("mlflow-run")
    logged = Logged(store_uri)
    assert logged.run().info.run_id in run_artifact.data
    assert "--host 127.0.0.1" in run_artifact.data
    assert float(artifact("training-progress").data) == 100.0
    assert logged.run().info.status == "FINISHED"
    assert logged.steps("train/loss") == list(range(1, NUM_STEPS + 1))
    assert logged.steps("eval/loss") == [4, 8, 12]
    models = logged.models()
    assert sorted(models) == ["model", *(f"step-{step:08d}" for step in (4, 8, 12))]
    assert all(
        {metric.key for metric in model.metrics} >= {"eval/loss", f"eval/r2/{RULES[0]}"}
        for model in models.values()
    )
    params = logged.run().data.params
    assert params["config.learning_rate"] == "0.001"
    assert params["config.checkpoint_every"] == "4"
    assert params["versions.torch"]


def test_cli_and_flow_make_the_same_model(train, made, tmp_path):
    assert train(out="by-flow").is_completed()
    command = [
        *(sys.executable, "-m", "encore.cli", "train", str(made / "study")),
        *("--backbone", str(made / "tiny"), "--max-length", "64"),
        *("--ratings", str(made / "ratings.parquet"), "--out", str(tmp_path / "by-cli")),
        *("--batch-pairs", "4", "--learning-rate", "1e-3", "--epochs", "100"),
        *("--evaluate-every", "4", "--checkpoint-every", "4", "--evaluation-share", "0.2"),
        *("--max-steps", str(NUM_STEPS)),
    ]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    assert weights_of(tmp_path / "by-flow") == weights_of(tmp_path / "by-cli")


def test_running_again_trains_nothing_and_logs_nothing_twice(train, store_uri, tmp_path):
    train()
    before = weights_of(tmp_path / "run")

    again = train()

    assert again.message == f"was trained before: {NUM_STEPS} steps"
    assert weights_of(tmp_path / "run") == before
    assert Logged(store_uri).steps("train/loss") == list(range(1, NUM_STEPS + 1))


def test_a_retry_goes_on_from_the_checkpoint_in_the_same_mlflow_run(
    train, store_uri, tmp_path, monkeypatch, made
):
    undisturbed = copied(made / "mlflow.db", tmp_path / "other" / "mlflow.db")
    assert train(out="undisturbed", tracking_uri=undisturbed).is_completed()
    broken = RuntimeError("the device fell off the bus")
    break_at(monkeypatch, 6, broken, OSError("a cable was pulled"))

    state = train(training_retries=2)

    assert state.is_completed(), state.message
    assert weights_of(tmp_path / "run") == weights_of(tmp_path / "undisturbed")
    logged = Logged(store_uri)
    assert logged.run().info.status == "FINISHED"
    for metric in ("train/loss", "train/epoch"):
        assert logged.steps(metric) == list(range(1, NUM_STEPS + 1))
    assert logged.steps("eval/loss") == [4, 8, 12]
    assert losses(logged) == losses(Logged(undisturbed))


def losses(logged: Logged) -> list[float]:
    history = logged.client.get_metric_history(logged.run().info.run_id, "train/loss")
    return [point.value for point in sorted(history, key=lambda point: point.step)]


def test_without_retries_the_run_fails_and_the_next_one_goes_on(
    train, store_uri, tmp_path, monkeypatch
):
    break_at(monkeypatch, 6, RuntimeError("the device fell off the bus"))
    assert train(training_retries=0).is_failed()
    assert Logged(store_uri).run().info.status == "FAILED"
    # The last partial batch too: nothing that was trained is lost.
    assert Logged(store_uri).steps("train/loss") == [1, 2, 3, 4, 5, 6]

    assert train().message == f"trained: {NUM_STEPS} steps"
    assert Logged(store_uri).run().info.status == "FINISHED"
    assert Logged(store_uri).steps("train/loss") == list(range(1, NUM_STEPS + 1))


def test_what_a_retry_cannot_mend_is_tried_once(train, monkeypatch):
    break_at(monkeypatch, 2, InputError("a value that is none"), InputError("again"))
    assert str(error_of(train(training_retries=3))) == "a value that is none"


def test_a_tracker_that_is_not_there_is_named_before_anything_is_trained(train, tmp_path):
    error = error_of(train(tracking_uri="http://127.0.0.1:9"))
    assert isinstance(error, TrackingUnavailableError)
    assert "MLflow http://127.0.0.1:9: " in str(error)
    assert not (tmp_path / "run").exists()


def test_a_password_among_the_parameters_is_refused_and_not_repeated(train, tmp_path):
    message = str(error_of(train(tracking_uri="http://me:hunter2@127.0.0.1:9")))
    assert "MLFLOW_TRACKING_URI" in message
    assert "hunter2" not in message
    assert not (tmp_path / "run").exists()


def test_a_study_that_is_not_there_gets_no_store(tmp_path, backbone):
    state = train_reward_model(tmp_path / "nowhere", backbone, return_state=True)
    assert "no such directory" in str(error_of(state))
    assert not (tmp_path / "nowhere").exists()


def test_the_default_store_is_a_file_in_the_study(train, made, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    copied(made / "mlflow.db", made / "study" / "mlflow.db")
    state = train(tracking_uri=None, training=CONFIG.model_copy(update={"max_steps": 1}))
    assert state.is_completed()
    uri = f"sqlite:///{(made / 'study' / 'mlflow.db').resolve()}"
    assert state.result().tracked.uri == uri
    assert Logged(uri).run().info.status == "FINISHED"


def test_a_model_without_held_out_pairs_says_so(train):
    training = CONFIG.model_copy(update={"evaluation_share": 0.0, "max_steps": 2})
    assert train(training=training).is_completed()
    assert artifact("training-evaluation").description == "No pairs were held out."


def test_the_form_of_the_parameters_has_bounds_and_descriptions():
    schema = train_reward_model.parameters.model_dump()
    assert set(schema["required"]) == {"study", "backbone"}
    assert "encore ingest" in schema["properties"]["study"]["description"]
    rate = schema["definitions"]["TrainingConfig"]["properties"]["learning_rate"]
    assert rate["description"]
    assert rate["exclusiveMinimum"] == 0
    assert schema["definitions"]["BackboneConfig"]["properties"]["model"]["description"]


def test_help_teaches_and_a_missing_option_is_a_usage_error():
    shown = run("flows.train_reward_model", "--help")
    assert shown.returncode == 0
    assert "Example: python -m flows.train_reward_model" in shown.stdout
    assert run("flows.train_reward_model").returncode == 2


def test_a_password_on_the_command_line_reaches_mlflow_and_nothing_else(
    made, with_server, tmp_path
):
    result = run(
        *("flows.train_reward_model", str(made / "study"), "--backbone", str(made / "tiny")),
        *("--tracking-uri", "http://me:hunter2@127.0.0.1:9"),
        environ=with_server,
    )
    assert result.returncode == 1
    assert last_line(result).startswith("error: MLflow http://me:***@127.0.0.1:9: ")
    assert "hunter2" not in result.stdout + result.stderr


def test_a_result_has_a_line_for_what_mlflow_lacks(train):
    trained = train(training=CONFIG.model_copy(update={"max_steps": 1})).result()
    late = dataclasses.replace(trained.tracked, num_waiting=3)
    assert dataclasses.replace(trained, tracked=late).summary == (
        "trained: 1 steps; 3 entries are not in MLflow yet, the same command logs them"
    )
