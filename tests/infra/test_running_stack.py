"""A stack comes up, again with another number of engines, runs deployments and leaves nothing."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from encore.data.rating_runs import list_runs, run_status
from encore.data.study import open_study
from infra import processes
from infra.prefect_setup import AUTOMATION, COORDINATOR_POOL, ENGINE_POOL, ROOT
from infra.stack import Stack
from tasks.artifacts import artifact_key
from tests.worlds.servers import PrefectServer, free_port
from tests.worlds.studies import numbered_pairs, write_lines

pytestmark = [pytest.mark.services, pytest.mark.timeout(1800)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a stack that does not exist yet."""
    monkeypatch.setenv("ENCORE_STACK_DIR", str(tmp_path / "deep" / "stack"))
    return tmp_path / "deep" / "stack"


def started_members(folder: Path) -> list[processes.Member]:
    """Return the processes that the stack itself started, without their children."""
    return [member for member in processes.members(folder) if member.is_started]


def gpus_of(member: processes.Member) -> str:
    return member.process.environ()["CUDA_VISIBLE_DEVICES"]


def assert_nothing_is_left(stack: Stack, folder: Path) -> None:
    assert processes.members(folder) == []
    for port in (stack.prefect_port, stack.mlflow_port):
        with socket.socket() as client:
            assert client.connect_ex(("127.0.0.1", port)) != 0
    assert (folder / "prefect" / "prefect.db").is_file()


def assert_is_registered(stack: Stack) -> None:
    """Check that the workers of each pool are online; check all deployments and the automation."""

    def post(path: str) -> list[dict[str, Any]]:
        url = f"{stack.prefect_url}/api/{path}/filter"
        return list(httpx.post(url, json={}, trust_env=False).raise_for_status().json())

    def online(pool: str) -> set[str]:
        workers = post(f"work_pools/{pool}/workers")
        return {worker["name"] for worker in workers if worker["status"] == "ONLINE"}

    assert online(COORDINATOR_POOL) == {"coordinator"}
    engines = {f"engine-{number}" for number in range(stack.engines)}
    # A worker that has ended is listed for a while: the first stack has two engines.
    assert engines <= online(ENGINE_POOL) <= {"engine-0", "engine-1"}
    written = yaml.safe_load((ROOT / "infra" / "prefect.yaml").read_text(encoding="utf-8"))
    registered = {(entry["name"], entry["work_pool_name"]) for entry in post("deployments")}
    assert registered == {
        (entry["name"], entry["work_pool"]["name"]) for entry in written["deployments"]
    }
    assert [automation["name"] for automation in post("automations")] == [AUTOMATION]


def assert_deployments_run(stack: Stack, folder: Path, judge: Path) -> None:
    """Run a pipeline from the API, and a flow that fails with a message of its own."""
    server = PrefectServer(url=stack.prefect_url, folder=folder, environ={})
    pairs_file = write_lines(folder.parent / "pairs.jsonl", numbered_pairs(6))
    study = folder.parent / "study"
    rating = {"judge": {"model": str(judge), "max_model_len": 1024}, "shard_size": 2}
    rating |= {"max_reply_tokens": 8, "engines": "auto"}
    # A real vLLM server, run by the engine's worker.
    config = {"study": str(study), "sources": [f"small={pairs_file}"], "rating": rating}
    no_study = {"study": str(pairs_file)}
    pipeline_id = server.start_run("pipeline/encore-pipeline", config=config)
    refused_id = server.start_run("recipe/encore-recipe", **no_study, recipe="demo")
    pipeline = server.wait_for(pipeline_id, seconds=900)
    logs = "".join(path.read_text("utf-8", "replace") for path in folder.rglob("*.log"))
    assert pipeline["state"]["message"] == "3 rated, 0 reused, 0 failed", logs
    assert (pipeline["state_type"], pipeline["name"]) == ("COMPLETED", "study: pipeline")
    artifacts = server.artifacts(pipeline_id)
    artifact_names = {"engines", "failed-shards", "mlflow-run"}
    artifact_names |= {"rating-progress", "report", "rule-statistics", "rule-weights"}
    assert set(artifacts) == {artifact_key(key, study) for key in artifact_names}
    assert artifacts[artifact_key("rating-progress", study)] == 100.0
    assert run_status(list_runs(open_study(study).ratings_dir)[0]).is_complete
    refused = server.wait_for(refused_id)
    assert refused["state_type"] == "FAILED"
    assert f"study {pairs_file}: " in refused["state"]["message"]


def test_a_stack_runs_deployments_comes_up_twice_and_leaves_no_process_and_no_port(
    folder: Path, tiny_judge: Path
) -> None:
    stack = Stack(engines=2, prefect_port=free_port(), mlflow_port=free_port())
    gpus = {"CUDA_VISIBLE_DEVICES": "7,5"}

    def command(name: str, **options: int) -> tuple[int, str]:
        arguments = [f"--{key.replace('_', '-')}={value}" for key, value in options.items()]
        environ = {
            **os.environ,
            **gpus,
            "PREFECT_API_URL": "http://127.0.0.1:9/api",  # another server's: stays out
        }
        environ.pop("PYTHONPATH", None)  # the working directory must be enough
        done = subprocess.run(
            [sys.executable, "-m", "infra.stack", name, *arguments],
            check=False,
            env=environ,
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
        return done.returncode, done.stderr

    try:
        code, message = command("up", **asdict(stack))
        assert code == 0, message
        assert stack.prefect_url in message
        assert stack.mlflow_url in message
        assert_is_registered(stack)
        assert httpx.get(stack.prefect_url, trust_env=False).is_success  # the pages of the UI
        engines = [member for member in started_members(folder) if member.name.startswith("engine")]
        assert {engine.name: gpus_of(engine) for engine in engines} == {
            "engine-0": "7",
            "engine-1": "5",
        }

        before = {member.process.pid for member in started_members(folder)}
        code, message = command("up", **asdict(stack))
        assert (code, "is running already" in message) == (0, True)
        assert {member.process.pid for member in started_members(folder)} == before
        code, message = command("up", engines=1)
        assert (code, "is running with ENGINES=2 " in message) == (1, True)

        for process in [engine.process for engine in engines if engine.name == "engine-1"]:
            process.kill()
            process.wait()
        code, message = command("up", **asdict(stack))
        assert (code, "Starting the worker engine-1" in message) == (0, True)
        assert message.count("Starting") == 1
        after = {member.process.pid: member.name for member in started_members(folder)}
        assert len(before - after.keys()) == 1
        assert {after[pid] for pid in after.keys() - before} == {"engine-1"}
        assert_is_registered(stack)

        assert command("down")[0] == 0
        assert_nothing_is_left(stack, folder)
        stack = replace(stack, engines=1)
        gpus.clear()
        code, message = command("up", **asdict(stack))
        assert code == 0, message
        assert_is_registered(stack)
        assert_deployments_run(stack, folder, tiny_judge)
    finally:
        code, message = command("down")
    assert code == 0, message
    assert_nothing_is_left(stack, folder)
