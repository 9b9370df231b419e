"""The flow `evaluate`: the table of `encore benchmark`, every row in MLflow, nothing twice."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE
from prefect.artifacts import Artifact
from prefect.client.schemas.objects import State

import flows.evaluate as module
from encore.benchmarks.benchmark_config import BenchmarkConfig, PairsConfig, RowsConfig
from encore.benchmarks.run import run_benchmark
from encore.cli.benchmark import benchmark
from encore.data.study import open_study
from encore.errors import EncoreError, InputError
from flows.evaluate import evaluate, main
from tasks.benchmark import EvaluatedStudy
from tasks.track import MlflowStore, TrackingRefusedError, TrackingUnavailableError
from tests.benchmarks.table_world import jsonl_rows, write_jsonl
from tests.flows.test_command import last_line, run, with_server, without_server
from tests.scores.models import make_model
from tests.tasks.mlflow_store import Logged, copied, new_template
from tests.training.studies import make_study, write_ratings

__all__ = ["with_server", "without_server"]  # fixtures

pytestmark = pytest.mark.usefixtures("prefect_api")

NUM_PAIRS = 10
EvaluateFlow = Callable[..., State[Any]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("evaluation")
    make_study(folder / "study", num_pairs=8)
    write_ratings(folder / "study", folder / "ratings.parquet")
    make_model(folder / "model")
    make_model(folder / "initial", head_ids=("reward",), seed=1)
    write_jsonl(folder / "rows.jsonl", jsonl_rows(NUM_PAIRS, subsets=("refuse", "respond")))
    new_template(folder)
    return folder


@pytest.fixture
def study(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made / "study", tmp_path / "study"))


@pytest.fixture
def store_uri(made: Path, tmp_path: Path) -> str:
    return copied(made / "mlflow.db", tmp_path / "store" / "mlflow.db")


@pytest.fixture
def start(made: Path, study: Path, store_uri: str, monkeypatch: pytest.MonkeyPatch) -> EvaluateFlow:
    """The flow on a small model and ten pairs; retries at once."""
    for name in ("benchmark_study", "track_benchmark", "register"):
        at_once = getattr(module, name).with_options(retry_delay_seconds=0)
        monkeypatch.setattr(module, name, at_once)

    def run_it(**parameters: Any) -> State[Any]:
        arguments = {
            "model": str(made / "model"),
            "reward_models": {"initial": str(made / "initial")},
            "benchmark": "generic",
            "data": made / "rows.jsonl",
            "ratings": str(made / "ratings.parquet"),
            "schemes": ["encore"],
            "taus": [2.0],
            "tracking_uri": store_uri,
            "experiment": "evaluations",
        }
        return evaluate(study, return_state=True, **{**arguments, **parameters})

    return run_it


def error_of(state: State[Any]) -> EncoreError:
    assert state.is_failed()
    error = state.result(raise_on_failure=False)
    assert isinstance(error, EncoreError)
    return error


def test_the_flow_makes_the_table_of_the_command_and_logs_every_row(
    start, made, study, store_uri, tmp_path
):
    state = start()
    assert state.is_completed(), state.message
    evaluated = state.result()
    assert isinstance(evaluated, EvaluatedStudy)
    assert state.message.startswith("3 rows, 20 pairs scored, 3 logged; ")
    config = BenchmarkConfig(
        model=str(made / "model"),
        reward_models=(f"initial={made / 'initial'}",),
        pairs=PairsConfig(benchmark="generic", data=made / "rows.jsonl"),
        ratings=made / "ratings.parquet",
        rows=RowsConfig(schemes=("encore",), taus=(2.0,)),
        out=tmp_path / "by-call",
    )
    by_call = run_benchmark(open_study(study), config)
    assert by_call.json_path.read_bytes() == (evaluated.out / "table.json").read_bytes()

    shown = Artifact.get("benchmark-table")
    assert shown.data == by_call.markdown_path.read_text(encoding="utf-8")
    assert "evaluations" in Artifact.get("mlflow-evaluation").data

    runs = Logged(store_uri, experiment="evaluations").runs()
    rows = {one.data.params["row"]: one for one in runs if "row" in one.data.params}
    assert set(rows) == {"uniform", "encore (τ 2)", "initial"}
    assert len(runs) == 4
    flow_runs = {one.data.tags["encore.prefect_flow_run"] for one in runs}
    assert flow_runs == {str(state.state_details.flow_run_id)}
    assert rows["initial"].data.params["model"] == "initial"
    assert len(rows["uniform"].data.params["model_sha256"]) == 64


def test_running_again_scores_and_logs_nothing(start, store_uri):
    start()
    assert start().message.startswith("3 rows, scored before, 0 logged; ")
    assert len(Logged(store_uri, experiment="evaluations").runs()) == 4


def test_when_mlflow_was_away_the_same_command_only_logs(start, monkeypatch):
    calls = []

    def away(store):
        calls.append(store)
        raise MlflowException("connection refused")

    with monkeypatch.context() as patched:
        patched.setattr(MlflowStore, "client", property(away))
        state = start()
    error = error_of(state)
    assert isinstance(error, TrackingUnavailableError)
    assert "the table is in" in str(error)
    assert len(calls) == 3  # it may come back: two more attempts
    # What is finished is kept with the flow run, whatever MLflow does.
    assert Artifact.get("benchmark-table").flow_run_id == state.state_details.flow_run_id
    assert start().message.startswith("3 rows, scored before, 3 logged; ")


def test_what_mlflow_refuses_is_sent_once(start, monkeypatch):
    calls = []

    def refuse(store):
        calls.append(store)
        raise MlflowException("too long", error_code=INVALID_PARAMETER_VALUE)

    monkeypatch.setattr(MlflowStore, "client", property(refuse))
    error = error_of(start())
    assert isinstance(error, TrackingRefusedError)
    assert "refused" in str(error)
    assert len(calls) == 1


def test_a_candidate_is_registered_and_what_became_of_it_is_said(start, store_uri):
    state = start(candidate="encore (τ 2)", registered_model="mine")
    assert state.message.endswith("mine version 1 is the champion: there was no champion before")
    assert state.result().registered.champion == "1"
    assert Artifact.get("candidate").data.startswith("mine version 1")
    second = start(candidate="initial", registered_model="mine")
    # Ten pairs exclude no difference of a point, and none is left out of account.
    assert "mine version 2 is a candidate, not the champion" in second.message


def test_a_candidate_that_is_no_row_is_refused_before_anything_is_logged(start, store_uri):
    error = error_of(start(candidate="encore (τ 3)"))
    assert isinstance(error, InputError)
    assert "(there are: 'uniform', 'encore (τ 2)', 'initial')" in str(error)
    assert experiment_in(store_uri) is None


def experiment_in(uri: str) -> Any:
    from mlflow import MlflowClient

    return MlflowClient(uri).get_experiment_by_name("evaluations")


def test_bad_input_is_tried_once_and_named(start):
    assert "generic, nowhere.jsonl: no such file" in str(
        error_of(start(data=Path("nowhere.jsonl")))
    )
    assert "registered model 'a b'" in str(error_of(start(registered_model="a b")))


def test_the_command_has_every_option_of_the_library_command():
    """But for how it prints and how it computes."""
    own = set(benchmark.__annotations__)
    left_out = {"table", "as_json", "layout", "tokens_per_microbatch", "name", "return"}
    assert own - left_out <= set(main.__annotations__)


def test_help_teaches():
    shown = run("flows.evaluate", "--help")
    assert shown.returncode == 0
    assert "Example: python -m flows.evaluate" in shown.stdout
    assert "--margin" in shown.stdout


@pytest.mark.full
def test_as_a_command_it_ends_in_one_line(made, study, with_server):
    arguments = (
        *("flows.evaluate", str(study), "--model", str(made / "model")),
        *("--reward-model", f"initial={made / 'initial'}", "--benchmark", "generic"),
        *("--data", str(made / "rows.jsonl"), "--ratings", str(made / "ratings.parquet")),
        *("--scheme", "encore", "--tau", "2", "--candidate", "encore (τ 2)"),
    )
    result = run(*arguments, environ=with_server)
    assert result.returncode == 0, result.stderr
    assert last_line(result).startswith("evaluate: 3 rows, 20 pairs scored, 3 logged; ")
    assert (study / "mlflow.db").is_file()
    assert "3 rows, scored before, 0 logged" in last_line(run(*arguments, environ=with_server))
    result = run(*arguments, "--candidate", "nobody", environ=with_server)
    assert result.returncode == 1
    assert last_line(result).startswith("error: candidate 'nobody'")
