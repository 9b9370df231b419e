"""The flow `train-reward-model`: the model of `encore train`, shown in MLflow as it grows."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prefect.client.schemas.objects import State
from prefect.settings import PREFECT_API_URL

from encore.core.errors import InputError
from encore.training.training_options import TrainingRunConfig
from flows.train_reward_model import TrainingAttempts, train_reward_model
from tasks import stage_task
from tasks.flow_reporter import FlowReporter
from tasks.tracking.tracking_options import TrackingConfig
from tests.flows.conftest import artifact, error_of
from tests.tasks.tracking.mlflow_store import Logged
from tests.worlds.studies import file_digests
from tests.worlds.trainings import RULES, backbone_config, make_world, train_command

pytestmark = [pytest.mark.services, pytest.mark.usefixtures("prefect_api")]

NUM_STEPS = 12
TrainFlow = Callable[..., State[Any]]


@pytest.fixture(scope="module")
def training_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_world(tmp_path_factory.mktemp("training"), num_pairs=24)


@pytest.fixture
def train(training_folder: Path, store_uri: str, tmp_path: Path, monkeypatch) -> TrainFlow:
    """Return a function that runs the flow on the small study, without retry pauses."""
    monkeypatch.setattr(stage_task, "_RETRY_DELAYS_SECONDS", [0.0])

    def start(
        *,
        study: Path | None = None,
        out: str = "run",
        tracking_uri: str = store_uri,
        retries: int = 2,
        **options: Any,
    ) -> State[Any]:
        config = {
            "backbone": backbone_config(training_folder / "tiny"),
            "ratings": training_folder / "ratings.parquet",
            "out": tmp_path / out,
            "batch_pairs": 4,
            "learning_rate": 1e-3,
            "evaluate_every": 4,
            "checkpoint_every": 4,
            "evaluation_share": 0.2,
            "max_steps": NUM_STEPS,
            "epochs": 100,
        }
        return train_reward_model(
            study or training_folder / "study",
            TrainingRunConfig(**{**config, **options}),
            TrackingConfig(tracking_uri=tracking_uri),
            TrainingAttempts(retries=retries),
            return_state=True,
        )

    return start


def weights_of(out: Path) -> dict[str, str]:
    """Return the SHA-256 of each weight file of the model in a run's folder."""
    digests = file_digests(out / "model", "**/*.safetensors")
    assert digests
    return digests


def break_at(monkeypatch: pytest.MonkeyPatch, step: int, *errors: BaseException) -> None:
    """Raise the next error each time that training reaches a step."""
    pending_errors = list(errors)
    advanced = FlowReporter.advanced

    def breaking(self, count: int = 1, *, note: str = "") -> None:
        advanced(self, count, note=note)
        if self._num_done == step and pending_errors:
            raise pending_errors.pop(0)

    monkeypatch.setattr(FlowReporter, "advanced", breaking)


def losses(logged: Logged) -> list[float]:
    history = logged.client.get_metric_history(logged.run().info.run_id, "train/loss")
    return [point.value for point in sorted(history, key=lambda point: point.step)]


def test_the_flow_makes_the_model_of_the_command_and_shows_it(
    train, training_folder, store_uri, tmp_path
):
    state = train()
    assert state.is_completed(), state.message
    assert state.message == f"trained: {NUM_STEPS} steps"
    rows = json.loads(artifact("training-evaluation", training_folder / "study").data)
    assert [row["head"] for row in rows] == sorted(RULES)
    assert all(row.keys() == {"head", "R²", "accuracy"} for row in rows)
    logged = Logged(store_uri)
    assert logged.run().info.run_id in artifact("mlflow-run", training_folder / "study").data
    assert "--host 127.0.0.1" in artifact("mlflow-run", training_folder / "study").data
    assert float(artifact("training-progress", training_folder / "study").data) == 100.0
    assert logged.run().info.status == "FINISHED"
    assert logged.steps("train/loss") == list(range(1, NUM_STEPS + 1))
    assert logged.steps("eval/loss") == [4, 8, 12]
    assert logged.steps(f"eval/r2/{RULES[0]}") == [4, 8, 12]
    assert sorted(logged.models()) == ["model", *(f"step-{step:08d}" for step in (4, 8, 12))]
    assert logged.run().data.params["config.learning_rate"] == "0.001"
    assert logged.run().data.tags["encore.prefect_flow_run"]

    steps = {"evaluate_every": 4, "checkpoint_every": 4, "max_steps": NUM_STEPS}
    options = {"batch_pairs": 4, "evaluation_share": 0.2, **steps}
    command = [sys.executable, *train_command(training_folder, out=tmp_path / "by-cli", **options)]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    assert weights_of(tmp_path / "run") == weights_of(tmp_path / "by-cli")

    before = losses(logged)
    assert train().message == f"was trained before: {NUM_STEPS} steps"
    assert losses(Logged(store_uri)) == before


def test_a_retry_goes_on_from_the_checkpoint_in_the_same_mlflow_run(
    train, store_uri, tmp_path, monkeypatch
):
    broken = RuntimeError("the device fell off the bus")
    break_at(monkeypatch, 6, broken, OSError("a cable was pulled"))
    assert train(retries=0).is_failed()
    assert Logged(store_uri).run().info.status == "FAILED"
    # What was trained after the last checkpoint too: nothing is lost.
    assert Logged(store_uri).steps("train/loss") == [1, 2, 3, 4, 5, 6]

    break_at(monkeypatch, 8, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        train()
    assert Logged(store_uri).run().info.status == "KILLED"

    state = train(retries=1)
    assert state.is_completed(), state.message
    logged = Logged(store_uri)
    assert logged.run().info.status == "FINISHED"
    assert logged.steps("train/loss") == list(range(1, NUM_STEPS + 1))
    assert logged.steps("eval/loss") == [4, 8, 12]


def test_an_error_that_a_retry_cannot_mend_is_tried_once(train, monkeypatch, tmp_path):
    assert "no such directory" in str(error_of(train(study=tmp_path / "nowhere")))
    assert not (tmp_path / "nowhere").exists()
    prefect_url = str(PREFECT_API_URL.value()).removesuffix("/api")
    assert "another service answers" in str(error_of(train(tracking_uri=prefect_url)))
    break_at(monkeypatch, 2, InputError("a value that is none"), InputError("again"))
    assert str(error_of(train(retries=3))) == "a value that is none"


def test_without_mlflow_the_model_is_trained_and_the_outage_reported(
    train, training_folder, tmp_path
):
    state = train(tracking_uri="http://127.0.0.1:9", max_steps=2, evaluation_share=0.0)
    assert state.message.startswith("trained: 2 steps; MLflow was away")
    assert weights_of(tmp_path / "run")
    assert "did not answer" in artifact("mlflow-run", training_folder / "study").data
    assert (
        artifact("training-evaluation", training_folder / "study").description
        == "No pairs were held out."
    )
