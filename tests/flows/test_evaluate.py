"""The flow `evaluate`: the table of `encore benchmark`, every row in MLflow, nothing twice."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prefect.client.schemas.objects import State

from encore.benchmarks.benchmark_options import BenchmarkConfig, BenchmarkRunOptions
from encore.benchmarks.run_benchmark import run_benchmark
from encore.data.study import open_study
from flows.evaluate import AliasConfig, evaluate
from flows.score import ScoringAttempts
from tasks import stage_task
from tasks.tracking.tracking_options import TrackingConfig
from tests.flows.conftest import artifact, error_of
from tests.tasks.tracking.mlflow_store import Logged
from tests.tasks.tracking.study_files import make_evaluation

pytestmark = [pytest.mark.services, pytest.mark.usefixtures("prefect_api")]

NUM_PAIRS = 10
EvaluateFlow = Callable[..., State[Any]]


@pytest.fixture(scope="module")
def evaluation(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, BenchmarkConfig]:
    """Make a study and the config of its benchmark."""
    folder = tmp_path_factory.mktemp("evaluation")
    return folder / "study", make_evaluation(folder, num_pairs=NUM_PAIRS)


@pytest.fixture
def study(evaluation: tuple[Path, BenchmarkConfig], tmp_path: Path) -> Path:
    return Path(shutil.copytree(evaluation[0], tmp_path / "study"))


@pytest.fixture
def evaluation_config(evaluation: tuple[Path, BenchmarkConfig]) -> BenchmarkConfig:
    return evaluation[1]


@pytest.fixture
def start(
    evaluation_config: BenchmarkConfig, study: Path, store_uri: str, monkeypatch: pytest.MonkeyPatch
) -> EvaluateFlow:
    """Return a function that runs the flow on a small model and ten pairs, without retry pauses."""
    monkeypatch.setattr(stage_task, "_RETRY_DELAYS_SECONDS", [0.0])

    def run_flow(
        *, tracking_uri: str = store_uri, aliases: AliasConfig | None = None, **options: Any
    ) -> State[Any]:
        config = evaluation_config.model_copy(update=options)
        return evaluate(
            study,
            config,
            tracking=TrackingConfig(tracking_uri=tracking_uri),
            aliases=aliases or AliasConfig(),
            attempts=ScoringAttempts(retries=1),
            return_state=True,
        )

    return run_flow


def test_the_flow_makes_the_table_of_the_command_and_shows_every_row(
    start, evaluation_config, study, store_uri, tmp_path
):
    # Away first: the table is there, and the next call catches up.
    away = start(tracking_uri="http://127.0.0.1:9")
    assert away.message.startswith("3 rows, 20 pairs scored, MLflow was away; ")
    state = start()
    assert state.message.startswith("3 rows, scored before, 4 runs logged; ")
    how = BenchmarkRunOptions(out=tmp_path / "by-call")
    by_call = run_benchmark(open_study(study), evaluation_config, how)
    table = Path(state.result()) / "table.json"
    assert (by_call.out / "table.json").read_bytes() == table.read_bytes()
    assert artifact("benchmark-table", study).data == by_call.markdown_path.read_text(
        encoding="utf-8"
    )

    experiments = Logged(store_uri, experiment="Default").client.search_experiments()
    [name] = [
        experiment.name
        for experiment in experiments
        if experiment.name.startswith("encore-generic-")
    ]
    runs = Logged(store_uri, experiment=name).runs()
    assert set(runs) == {"study", "uniform", "encore (τ 2)", "initial"}
    assert runs["study"].info.run_id in artifact("mlflow-run", study).data
    flow_runs = {run.data.tags["encore.prefect_flow_run"] for run in runs.values()}
    assert flow_runs == {str(state.state_details.flow_run_id)}
    assert start().message.startswith("3 rows, scored before, 0 runs logged; ")


def test_rows_are_registered_under_their_aliases(start, store_uri):
    state = start(aliases=AliasConfig(candidate="encore (τ 2)", registered_model="mine"))
    assert state.message.endswith("; mine version 1 is the candidate")
    champion = AliasConfig(champion="initial", registered_model="mine")
    assert start(aliases=champion).message.endswith("; mine version 2 is the champion")
    error = error_of(start(aliases=AliasConfig(candidate="encore (τ 3)")))
    assert "(these can: 'uniform', 'encore (τ 2)', 'initial')" in str(error)
