"""The local stack: Prefect server, MLflow server and workers on loopback, all state in one folder.

`make up ENGINES=2` and `make down` call this. The folder is ENCORE_STACK_DIR, else `stack/`.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import NoReturn

import httpx

from encore.core.command_parser import new_app, run_main
from encore.core.errors import EncoreError, InputError
from encore.core.terminal import say
from encore.runs.local_engines import engine_environments, visible_gpus
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

COORDINATOR, PREFECT, MLFLOW = "coordinator", "prefect", "mlflow"
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
    """Start servers and workers, wait until they answer, and print their addresses.

    Args:
        engines: Number of engine workers, which share the GPUs, or the cores, equally.
        prefect_port: Port of the Prefect server on loopback.
        mlflow_port: Port of the MLflow server on loopback.

    Raises:
        InputError: Another stack runs in the folder, a port is in use, GPUs cannot be divided.
        EncoreError: A server or worker did not start. Those that were started are stopped.
    """
    stack = Stack(engines=engines, prefect_port=prefect_port, mlflow_port=mlflow_port)
    folder, shares = _folder(), engine_shares(engines)
    if running := {member.name for member in members(folder) if member.is_started}:
        _check_is_same(stack, folder, running)
        say(f"The stack in {folder} is running already.")
        _print_addresses(stack, folder)
        return
    for name, port in (("PREFECT_PORT", prefect_port), ("MLFLOW_PORT", mlflow_port)):
        if _is_open(port):
            raise InputError(f"port {port} is in use: choose another one, make up {name}=...")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _SETTINGS_FILE).write_text(json.dumps(asdict(stack)), encoding="utf-8")
    try:
        environ = _start_servers(stack, folder)
        _register(folder, environ)
        _start_workers(stack, folder, environ, shares)
    except BaseException:
        stop(members(folder), timeout_seconds=_STOP_SECONDS)
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


def _check_is_same(stack: Stack, folder: Path, running: set[str]) -> None:
    """Raise an error if the running stack has other arguments or lacks a process."""
    running_stack = _read_settings(folder)
    if running_stack != stack:
        raise InputError(
            f"the stack in {folder} is running with {running_stack}: make down stops it"
        )
    names = {PREFECT, MLFLOW, COORDINATOR, *(f"engine-{n}" for n in range(stack.engines))}
    if missing := sorted(names - running):
        raise InputError(
            f"the stack in {folder} is running without {', '.join(missing)}: make down stops the "
            "rest, make up then starts all"
        )


def _start_servers(stack: Stack, folder: Path) -> dict[str, str]:
    """Start both servers, wait until they answer, and return the environment of their clients."""
    say("Starting the Prefect server and the MLflow server")
    environ = prefect_environment(folder / "prefect", port=stack.prefect_port)
    environ["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] = "false"
    store = folder / "mlflow"
    store.mkdir(exist_ok=True)
    mlflow = [sys.executable, "-m", "mlflow", "server", "--workers", "1"]
    mlflow += ["--backend-store-uri", f"sqlite:///{store / 'mlflow.db'}"]
    mlflow += ["--artifacts-destination", str(store / "artifacts")]
    mlflow += ["--host", LOOPBACK, "--port", str(stack.mlflow_port)]
    servers = (
        start(PREFECT, server_command(stack.prefect_port), folder, environ, cwd=ROOT),
        start(MLFLOW, mlflow, folder, environ, cwd=ROOT),
    )
    health = (f"{stack.prefect_url}/api/health", f"{stack.mlflow_url}/health")
    for server, url in zip(servers, health, strict=True):
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
    started = start("register", command, folder, environ, cwd=ROOT)
    wait_until(lambda: started.process.poll() == 0, started, timeout_seconds=_START_SECONDS)


def _start_workers(
    stack: Stack, folder: Path, environ: Mapping[str, str], shares: Mapping[str, dict[str, str]]
) -> None:
    say(f"Starting the workers: {', '.join([COORDINATOR, *shares])}")
    begin = datetime.now(UTC)
    worker = [sys.executable, "-m", "prefect", "worker", "start"]
    pools = {COORDINATOR: COORDINATOR_POOL, **dict.fromkeys(shares, ENGINE_POOL)}
    started = []
    for name, pool in pools.items():
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


def _print_addresses(stack: Stack, folder: Path) -> None:
    say(
        f"\n  Prefect   {stack.prefect_url}"
        f"\n  MLflow    {stack.mlflow_url}/#/experiments?workflowType=machine_learning"
        f"\n  Logs      {folder / 'logs'}"
        f"\n\nStart a run: {stack.prefect_url}/deployments, encore-pipeline, Run, Custom run."
        "\nmake down stops everything."
    )


if __name__ == "__main__":
    main()
