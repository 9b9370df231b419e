"""The local stack divides the GPUs, refuses what cannot work and leaves nothing behind."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from encore.core.errors import EncoreError, InputError
from encore.data.rating_runs import list_runs, run_status
from encore.data.study import open_study
from infra import processes
from infra.prefect_setup import AUTOMATION, COORDINATOR_POOL, ENGINE_POOL, ROOT, prefect_environment
from infra.stack import Stack, down, engine_shares, up
from tasks.artifacts import artifact_key
from tests.worlds.servers import PrefectServer, free_port
from tests.worlds.studies import numbered_pairs, write_lines

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a stack that does not exist yet."""
    monkeypatch.setenv("ENCORE_STACK_DIR", str(tmp_path / "deep" / "stack"))
    return tmp_path / "deep" / "stack"


@pytest.mark.parametrize(("engines", "groups"), [(1, ["0,1,2,3"]), (2, ["0,1", "2,3"])])
def test_gpus_are_divided_into_groups_that_share_none(
    engines: int, groups: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    shares = engine_shares(engines)
    assert list(shares) == [f"engine-{number}" for number in range(engines)]
    assert [share["CUDA_VISIBLE_DEVICES"] for share in shares.values()] == groups


@pytest.mark.parametrize("engines", [3, 8, 0])
def test_a_number_of_engines_that_does_not_divide_is_refused(
    engines: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    with pytest.raises(InputError, match=rf"ENGINES={engines} .* 4 GPUs \(0,1,2,3\)"):
        engine_shares(engines)


def test_settings_of_another_server_are_removed_from_the_environment(tmp_path: Path) -> None:
    outer_environ = {"PREFECT_API_KEY": "x", "PREFECT_SERVER_DATABASE_TIMEOUT": "60", "HOME": "/h"}
    environ = prefect_environment(tmp_path / "a" / "b", port=1, environ=outer_environ)
    assert "PREFECT_API_KEY" not in environ
    assert (environ["PREFECT_SERVER_DATABASE_TIMEOUT"], environ["HOME"]) == ("60", "/h")
    assert Path(environ["PREFECT_HOME"]).is_dir()  # its parent did not exist


def test_a_port_in_use_is_refused_by_name(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        with pytest.raises(InputError, match=rf"port {port} is in use.*MLFLOW_PORT"):
            up(prefect_port=free_port(), mlflow_port=port)
    assert not folder.exists()


def test_a_process_that_does_not_start_is_reported_with_its_last_line(tmp_path: Path) -> None:
    started = processes.start(
        *("engine-0", [sys.executable, "-c", "print('no such pool')"], tmp_path, os.environ),
        cwd=tmp_path,
    )
    with pytest.raises(EncoreError, match="engine-0 ended with 0: no such pool"):
        processes.wait_until(lambda: False, started, timeout_seconds=60)


def test_orphans_of_a_stack_are_stopped_and_other_stacks_are_not(tmp_path: Path) -> None:
    # The parent ends after its child's first line: until a process runs, its environment is empty.
    child = [sys.executable, "-uc", "import time; print(); time.sleep(600)"]
    parent = f"from subprocess import PIPE, Popen; Popen({child!r}, stdout=PIPE).stdout.readline()"
    own_folder, other_folder = tmp_path / "own", tmp_path / "other"
    dead = processes.start(
        "engine-0", [sys.executable, "-c", parent], own_folder, os.environ, cwd=ROOT
    )
    foreign = processes.start("engine-0", SLEEP, other_folder, os.environ, cwd=ROOT)
    dead.process.wait()
    try:
        [orphan] = processes.members(own_folder)
        assert (orphan.name, orphan.is_started) == ("engine-0", False)
        processes.stop([orphan], timeout_seconds=20)
        assert processes.members(own_folder) == []
        assert foreign.process.poll() is None
    finally:
        foreign.process.kill()
        foreign.process.wait()


def test_down_reports_that_no_stack_is_running(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    down()
    assert f"No stack is running in {folder}" in " ".join(capsys.readouterr().err.splitlines())


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
    """Check the online workers of each pool, all deployments and the automation."""

    def post(path: str) -> list[dict[str, Any]]:
        url = f"{stack.prefect_url}/api/{path}/filter"
        return list(httpx.post(url, json={}, trust_env=False).raise_for_status().json())

    def online(pool: str) -> set[str]:
        workers = post(f"work_pools/{pool}/workers")
        return {worker["name"] for worker in workers if worker["status"] == "ONLINE"}

    assert online(COORDINATOR_POOL) == {"coordinator"}
    assert online(ENGINE_POOL) == {"engine-0", "engine-1"}
    written = yaml.safe_load((ROOT / "infra" / "prefect.yaml").read_text(encoding="utf-8"))
    registered = {(entry["name"], entry["work_pool_name"]) for entry in post("deployments")}
    assert registered == {
        (entry["name"], entry["work_pool"]["name"]) for entry in written["deployments"]
    }
    assert [automation["name"] for automation in post("automations")] == [AUTOMATION]


def assert_deployments_run(stack: Stack, folder: Path, judge: Path) -> None:
    """Run a pipeline from the API, and two flows that fail with messages of their own."""
    server = PrefectServer(url=stack.prefect_url, folder=folder, environ={})
    pairs_file = write_lines(folder.parent / "pairs.jsonl", numbered_pairs(6))
    study = folder.parent / "study"
    rating = {"judge": {"model": str(judge), "max_model_len": 1024}, "shard_size": 2}
    rating |= {"max_reply_tokens": 8, "engines": "auto"}
    # Two real vLLM servers, each with its share of the cores.
    config = {"study": str(study), "sources": [f"small={pairs_file}"], "rating": rating}
    no_study = {"study": str(pairs_file)}
    pipeline_id = server.start_run("pipeline/encore-pipeline", config=config)
    refused_ids = [
        server.start_run("evaluate/encore-evaluate", **no_study, config={"model": "nowhere"}),
        server.start_run("recipe/encore-recipe", **no_study, recipe="demo"),
    ]
    pipeline = server.wait_for(pipeline_id)
    logs = "".join(path.read_text("utf-8", "replace") for path in folder.rglob("*.log"))
    assert pipeline["state"]["message"] == "3 rated, 0 reused, 0 failed", logs
    assert (pipeline["state_type"], pipeline["name"]) == ("COMPLETED", "study: pipeline")
    artifacts = server.artifacts(pipeline_id)
    artifact_names = {"engines", "failed-shards", "mlflow-run"}
    artifact_names |= {"rating-progress", "report", "rule-statistics", "rule-weights"}
    assert set(artifacts) == {artifact_key(key, study) for key in artifact_names}
    assert artifacts[artifact_key("rating-progress", study)] == 100.0
    assert run_status(list_runs(open_study(study).ratings_dir)[0]).is_complete
    for run in map(server.wait_for, refused_ids):
        assert run["state_type"] == "FAILED"
        assert f"study {pairs_file}: " in run["state"]["message"]


@pytest.mark.services
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
        gpus.clear()
        code, message = command("up", **asdict(stack))
        assert code == 0, message
        assert_is_registered(stack)
        assert_deployments_run(stack, folder, tiny_judge)
    finally:
        code, message = command("down")
    assert code == 0, message
    assert_nothing_is_left(stack, folder)
