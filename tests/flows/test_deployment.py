"""A real server, the deployments of infra/prefect.yaml, a process worker, runs from the API."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import httpx
import pytest

from encore.data.rating_runs import choose_run, run_status
from encore.data.study import open_study
from infra.prefect_setup import COORDINATOR_POOL, ENGINE_POOL, ROOT
from infra.stack import WORKER_SETTINGS
from tasks.artifacts import artifact_key
from tests.prefect_server import PrefectServer, background_process


@contextlib.contextmanager
def worker(pool: str, environ: Mapping[str, str], log: Path) -> Iterator[None]:
    command = (sys.executable, "-m", "prefect", "worker", "start", "--pool", pool, "--limit", "1")
    with background_process(*command, environ=environ, log=log, cwd=log.parent):
        yield


def start_run(server: PrefectServer, name: str, parameters: Mapping[str, object]) -> str:
    deployment = httpx.get(f"{server.url}/api/deployments/name/{name}", timeout=60)
    deployment_id = deployment.raise_for_status().json()["id"]
    body = {"parameters": parameters, "state": {"type": "SCHEDULED"}}
    return str(server.post(f"deployments/{deployment_id}/create_flow_run", body)["id"])


@pytest.mark.services
def test_a_worker_runs_the_deployments_from_the_api(
    prefect_server: PrefectServer, tmp_path: Path, pairs_file: Path, tiny_judge: Path
) -> None:
    server = prefect_server
    environ = {**server.environ, **WORKER_SETTINGS, "ENCORE_ROOT": str(ROOT)}
    environ.pop("PYTHONPATH", None)  # the working directory must be enough
    register = [sys.executable, "-m", "infra.stack", "register"]
    subprocess.run(register, env=environ, cwd=ROOT, check=True, capture_output=True)
    study = tmp_path / "study"
    config = {"study": str(study), "sources": [f"small={pairs_file}"]}
    rating = {
        "judge": {"model": str(tiny_judge), "backend": "transformers"},
        "shard_size": 2,
        "max_reply_tokens": 8,
    }
    with (
        worker(COORDINATOR_POOL, environ, tmp_path / "worker.log"),
        worker(ENGINE_POOL, environ, tmp_path / "engine.log"),
    ):
        pipeline_id = start_run(
            server, "pipeline/encore-pipeline", {"config": {**config, "rating": rating}}
        )
        pipeline = server.wait_for(pipeline_id)
        assert pipeline["state"]["message"] == "3 rated, 0 reused, 0 failed", (
            tmp_path / "worker.log"
        ).read_text()

        # Both start on the worker, read their parameters and fail with their own message.
        no_study = {"study": str(pairs_file)}
        refused_ids = [
            start_run(
                server, "evaluate/encore-evaluate", {"config": {**no_study, "model": "nowhere"}}
            ),
            start_run(server, "recipe/encore-recipe", {**no_study, "recipe": "demo"}),
        ]
        refused_runs = [server.wait_for(run_id) for run_id in refused_ids]

    assert pipeline["state_type"] == "COMPLETED"
    artifacts = server.artifacts(pipeline_id)
    artifact_names = {"engines", "failed-shards", "mlflow-run"}
    artifact_names |= {"rating-progress", "rule-statistics", "rule-weights"}
    assert set(artifacts) == {artifact_key(key, study) for key in artifact_names}
    assert artifacts[artifact_key("rating-progress", study)] == 100.0
    assert pipeline["name"] == "study: pipeline"
    for run in refused_runs:
        assert run["state_type"] == "FAILED"
        message = run["state"]["message"]
        assert f"study {pairs_file}: " in message

    assert run_status(choose_run(open_study(study).ratings_dir)).is_complete
