"""The local stack: Prefect server, MLflow server and workers on loopback, all state in one folder.

`make up ENGINES=2` and `make down` call this. The folder is ENCORE_STACK_DIR, else `stack/`.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Mapping, Set
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import NoReturn

import httpx

from encore.core.command_parser import new_app, run_main
from encore.core.errors import EncoreError, InputError
from encore.core.terminal import say
from encore.judges.gpu_groups import engine_environments, visible_gpus
from infra.prefect_setup import (
    COORDINATOR_POOL,
    ENGINE_POOL,
    LOOPBACK,
    ROOT,
    prefect_environment,
    register,
    serve,
    server_command,
)
from infra.processes import members, start, stop, wait_until
from tasks.tracking.log_runs import experiment_page
from tasks.tracking.tracking_options import DEFAULT_EXPERIMENT

COORDINATOR, PREFECT, MLFLOW = "coordinator", "prefect", "mlflow"
_REGISTER = "register"
#: A worker that asks for work every 2 s starts a run within seconds. A worker that is gone counts
#: as online for three of its heartbeats.
WORKER_SETTINGS = {"PREFECT_WORKER_QUERY_SECONDS": "2", "PREFECT_WORKER_HEARTBEAT_SECONDS": "10"}
_SETTINGS_FILE = "stack.json"
_START_SECONDS = 240.0
_STOP_SECONDS = 30.0
_ANSWER_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """Arguments of `up`, which are kept in the folder.

    Attributes:
        engines: Number of engine workers.
        prefect_port: Port of the Prefect server on loopback.
        mlflow_port: Port of the MLflow server on loopback.
    """

    engines: int = 1
    prefect_port: int = 4200
    mlflow_port: int = 5000

    def __str__(self) -> str:
        ports = f"PREFECT_PORT={self.prefect_port} MLFLOW_PORT={self.mlflow_port}"
        return f"ENGINES={self.engines} {ports}"

    @property
    def prefect_url(self) -> str:
        """Return the address of the Prefect server and its UI."""
        return f"http://{LOOPBACK}:{self.prefect_port}"

    @property
    def mlflow_url(self) -> str:
        """Return the address of the MLflow server and its UI."""
        return f"http://{LOOPBACK}:{self.mlflow_port}"


def main() -> NoReturn:
    """Run a command and exit with the exit codes of `encore`."""
    app = new_app("python -m infra.stack", help=str(__doc__))
    for command in (up, down, register):
        app.command(command)
    app.command(serve, name="server")
    run_main(app)


def up(*, engines: int = 1, prefect_port: int = 4200, mlflow_port: int = 5000) -> None:
    """Start the servers and workers that do not run, wait for them, and print the addresses.

    Args:
        engines: Number of engine workers, which share the GPUs, or the cores, equally.
        prefect_port: Port of the Prefect server on loopback.
        mlflow_port: Port of the MLflow server on loopback.

    Raises:
        InputError: Another stack runs in the folder, a port is in use, GPUs cannot be divided.
        EncoreError: A server or worker did not start. Those that this call started are stopped.
    """
    stack = Stack(engines=engines, prefect_port=prefect_port, mlflow_port=mlflow_port)
    folder, shares = _folder(), engine_shares(engines)
    before = members(folder)
    running = {member.name for member in before if member.is_started}
    if running and (running_stack := _read_settings(folder)) != stack:
        raise InputError(
            f"the stack in {folder} is running with {running_stack}: make down stops it"
        )
    missing = {PREFECT, MLFLOW, COORDINATOR, *shares} - running
    if not missing:
        say(f"The stack in {folder} is running already.")
        _print_addresses(stack, folder)
        return
    lost_servers = missing & {PREFECT, MLFLOW}  # a child of one may still hold its port
    stop(
        [member for member in before if member.name in lost_servers], timeout_seconds=_STOP_SECONDS
    )
    for name, port in ((PREFECT, prefect_port), (MLFLOW, mlflow_port)):
        if name in missing and _is_open(port):
            option = f"{name.upper()}_PORT"
            raise InputError(f"port {port} is in use: choose another one, make up {option}=...")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _SETTINGS_FILE).write_text(json.dumps(asdict(stack)), encoding="utf-8")
    try:
        environ = _start_servers(stack, folder, missing)
        if PREFECT in missing:
            _register(folder, environ)
        _start_workers(stack, folder, environ, shares, missing)
    except BaseException:
        new = set(members(folder)) - set(before)
        started = [member for member in new if member.name in {*missing, _REGISTER}]
        stop(started, timeout_seconds=_STOP_SECONDS)
        raise
    _print_addresses(stack, folder)


def down() -> None:
    """Stop flow runs, then workers, then servers; all state stays in the folder.

    Raises:
        EncoreError: A process still runs or a port is still open. The message names them.
    """
    folder = _folder()
    processes = members(folder)
    if not processes:
        say(f"No stack is running in {folder}.")
        return
    # Flow runs first: they, or else their workers, tell the server that they have ended.
    work = [member for member in processes if member.name not in (PREFECT, MLFLOW)]
    stop([member for member in work if not member.is_started], timeout_seconds=_STOP_SECONDS)
    stop([member for member in work if member.is_started], timeout_seconds=_STOP_SECONDS)
    stop(members(folder), timeout_seconds=_STOP_SECONDS)
    stack = _read_settings(folder)
    open_ports = [port for port in (stack.prefect_port, stack.mlflow_port) if _is_open(port)]
    remaining = [f"{member.name} (process {member.process.pid})" for member in members(folder)]
    remaining += [f"port {port}" for port in open_ports]
    if remaining:
        raise EncoreError(f"cannot stop {', '.join(remaining)}")
    say(f"Stopped {len(processes)} processes. All state stays in {folder}.")


def engine_shares(engines: int) -> dict[str, dict[str, str]]:
    """Return the environment variables of each engine worker: an equal part of the GPUs or cores.

    Raises:
        InputError: The GPUs cannot be divided equally among the engines.
    """
    gpus = visible_gpus()
    if engines < 1 or len(gpus) % engines:
        devices = f"{len(gpus)} GPUs ({','.join(gpus)})" if gpus else "the cores"
        raise InputError(f"ENGINES={engines} does not divide {devices} into equal groups")
    shares = engine_environments(engines, max(1, len(gpus) // engines))
    return {f"engine-{number}": share for number, share in enumerate(shares)}


def _start_servers(stack: Stack, folder: Path, missing: Set[str]) -> dict[str, str]:
    """Start the missing servers, wait for them, and return the environment of their clients."""
    environ = prefect_environment(folder / "prefect", port=stack.prefect_port)
    environ["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] = "false"
    store = folder / "mlflow"
    store.mkdir(exist_ok=True)
    mlflow = [sys.executable, "-m", "mlflow", "server", "--workers", "1"]
    mlflow += ["--backend-store-uri", f"sqlite:///{store / 'mlflow.db'}"]
    mlflow += ["--artifacts-destination", str(store / "artifacts")]
    mlflow += ["--host", LOOPBACK, "--port", str(stack.mlflow_port)]
    servers = {
        PREFECT: (server_command(stack.prefect_port), f"{stack.prefect_url}/api/health"),
        MLFLOW: (mlflow, f"{stack.mlflow_url}/health"),
    }
    started = []
    for name, (command, url) in servers.items():
        if name in missing:
            say(f"Starting the server {name}")
            started.append((start(name, command, folder, environ, cwd=ROOT), url))
    for server, url in started:
        wait_until(partial(_answers, url), server, timeout_seconds=_START_SECONDS)
    return environ | {
        "PREFECT_API_URL": f"{stack.prefect_url}/api",
        "MLFLOW_TRACKING_URI": stack.mlflow_url,
        "ENCORE_ROOT": str(ROOT),
        **WORKER_SETTINGS,
    }


def _register(folder: Path, environ: Mapping[str, str]) -> None:
    say("Registering work pools, deployments and the automation")
    command = [sys.executable, "-m", "infra.stack", "register"]
    started = start(_REGISTER, command, folder, environ, cwd=ROOT)
    wait_until(lambda: started.process.poll() == 0, started, timeout_seconds=_START_SECONDS)


def _start_workers(
    stack: Stack,
    folder: Path,
    environ: Mapping[str, str],
    shares: Mapping[str, dict[str, str]],
    missing: Set[str],
) -> None:
    """Start the missing workers and wait until they are online."""
    begin = datetime.now(UTC)
    worker = [sys.executable, "-m", "prefect", "worker", "start"]
    pools = {COORDINATOR: COORDINATOR_POOL, **dict.fromkeys(shares, ENGINE_POOL)}
    started = []
    for name, pool in pools.items():
        if name not in missing:
            continue
        say(f"Starting the worker {name}")
        limit = ["--limit", "1"] if pool == ENGINE_POOL else []
        command = [*worker, "--name", name, "--pool", pool, *limit]
        share = shares.get(name, {})
        started.append(start(name, command, folder, {**environ, **share}, cwd=ROOT))
    for process in started:
        is_ready = partial(_is_online, stack, pools[process.name], process.name, since=begin)
        wait_until(is_ready, process, timeout_seconds=_START_SECONDS)


def _is_online(stack: Stack, pool: str, name: str, *, since: datetime) -> bool:
    """Return True if a worker of a pool has sent a heartbeat since a time."""
    url = f"{stack.prefect_url}/api/work_pools/{pool}/workers/filter"
    workers = httpx.post(url, json={}, timeout=_ANSWER_SECONDS, trust_env=False).json()
    return any(
        worker["name"] == name and datetime.fromisoformat(worker["last_heartbeat_time"]) >= since
        for worker in workers
    )


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=_ANSWER_SECONDS, trust_env=False).is_success
    except httpx.TransportError:
        return False


def _is_open(port: int) -> bool:
    """Return True if a program listens on a port of the loopback address."""
    with socket.socket() as client:
        return client.connect_ex((LOOPBACK, port)) == 0


def _folder() -> Path:
    return Path(os.environ.get("ENCORE_STACK_DIR") or ROOT / "stack").absolute()


def _read_settings(folder: Path) -> Stack:
    return Stack(**json.loads((folder / _SETTINGS_FILE).read_text("utf-8")))


def _experiment_page(stack: Stack) -> str:
    """Return the page of the runs of ENCORE's experiment, which is made if it is not there.

    One click on an experiment in MLflow's list leads to its view for language models, without runs.
    """
    url = f"{stack.mlflow_url}/api/2.0/mlflow/experiments"
    with httpx.Client(timeout=_ANSWER_SECONDS, trust_env=False) as client:
        answer = client.get(f"{url}/get-by-name", params={"experiment_name": DEFAULT_EXPERIMENT})
        if answer.is_success:
            experiment_id = answer.json()["experiment"]["experiment_id"]
        else:
            answer = client.post(f"{url}/create", json={"name": DEFAULT_EXPERIMENT})
            experiment_id = answer.raise_for_status().json()["experiment_id"]
    return f"{stack.mlflow_url}{experiment_page(experiment_id)}"


def _print_addresses(stack: Stack, folder: Path) -> None:
    say(
        f"\n  Prefect   {stack.prefect_url}"
        f"\n  MLflow    {_experiment_page(stack)}"
        f"\n  Logs      {folder / 'logs'}"
        f"\n\nStart a run: {stack.prefect_url}/deployments, encore-demo, Run, Quick run, Run."
        "\nmake down stops everything."
    )


if __name__ == "__main__":
    main()
