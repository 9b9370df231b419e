"""A real server, the deployments of infra/prefect.yaml, a process worker, runs from the API."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import httpx
import pytest

from encore.data.study import open_study
from encore.rating_runs import choose_run, read_run, run_status
from tests.flows.conftest import NUM_PAIRS
from tests.prefect_server import PrefectServer, background_process

ROOT = Path(__file__).resolve().parents[2]


def prefect(*arguments: str, environ: Mapping[str, str]) -> None:
    command = [sys.executable, "-m", "prefect", "--no-prompt", *arguments]
    subprocess.run(command, env=dict(environ), cwd=ROOT, check=True, capture_output=True)


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
    environ = {**server.environ, "ENCORE_ROOT": str(ROOT)}
    environ.pop("PYTHONPATH", None)  # the working directory must be enough
    prefect("work-pool", "create", "encore", "--type", "process", environ=environ)
    prefect("deploy", "--all", "--prefect-file", "infra/prefect.yaml", environ=environ)
    study = tmp_path / "study"
    rating = {
        "judge": {"model": str(tiny_judge), "backend": "transformers"},
        "shard_size": 2,
        "max_reply_tokens": 8,
    }
    with background_process(
        *(sys.executable, "-m", "prefect", "worker", "start", "--pool", "encore", "--limit", "1"),
        environ=environ,
        log=tmp_path / "worker.log",
        cwd=tmp_path,
    ):
        pipeline_id = start_run(
            server,
            "pipeline/encore-pipeline",
            {
                "config": {
                    "study": str(study),
                    "rating": rating,
                    "sources": [f"small={pairs_file}"],
                }
            },
        )
        pipeline = server.wait_for(pipeline_id)
        assert pipeline["state"]["message"] == "3 rated, 0 reused, 0 failed", (
            tmp_path / "worker.log"
        ).read_text()

        failing_id = start_run(
            server,
            "rate-pairs/encore-rate-pairs",
            # A limit that passes with the first batch of replies; another limit, another run key.
            {
                "config": {
                    "study": str(study),
                    **rating,
                    "limit": NUM_PAIRS - 1,
                    "shard": [1],
                    "shard_timeout_seconds": 0.001,
                },
                "attempts": {"shard_retries": 0},
            },
        )
        failing = server.wait_for(failing_id)

        # Both start on the worker, read their parameters and say themselves what is wrong.
        no_study = {"study": str(pairs_file)}
        others = [
            start_run(
                server, "evaluate/encore-evaluate", {"config": {**no_study, "model": "nowhere"}}
            ),
            start_run(server, "recipe/encore-recipe", {**no_study, "recipe": "demo"}),
        ]
        refused = [server.wait_for(one) for one in others]

    assert pipeline["state_type"] == "COMPLETED"
    artifacts = server.artifacts(pipeline_id)
    assert sorted(artifacts) == [
        "failed-shards",
        "rating-progress",
        "rule-statistics",
        "rule-weights",
    ]
    assert artifacts["rating-progress"] == 100.0
    for one in refused:
        assert one["state_type"] == "FAILED"
        message = one["state"]["message"]
        assert f"study {pairs_file}: " in message
        assert "is a file" in message

    assert failing["state_type"] == "FAILED"
    assert failing["state"]["message"] == "0 rated, 0 reused, 1 failed"
    [failed] = json.loads(server.artifacts(failing_id)["failed-shards"])
    assert failed["shard"] == 1
    assert "passed its limit" in failed["error"]
    assert "shard=[1]" in failed["how to rerun"]
    run_dir = choose_run(open_study(study).ratings_dir, key=pipeline_run_key(study))
    assert run_status(run_dir).is_complete


def pipeline_run_key(study: Path) -> str:
    """The run of all pairs."""
    [key] = [
        path.parent.name
        for path in study.glob("ratings/*/run.json")
        if read_run(path.parent).num_pairs == NUM_PAIRS
    ]
    return key
