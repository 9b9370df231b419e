"""The local stack: Prefect server, MLflow server and workers on loopback, all state in one folder.

`make up ENGINES=2` and `make down` call this. The folder is ENCORE_STACK_DIR, else `stack/`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import httpx

from encore.errors import EncoreError, InputError
from encore.terminal import fail, say
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
_START_SECONDS = 240.0
_STOP_SECONDS = 30.0
_ANSWER_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """What `up` was asked for; it is kept in the folder."""

    engines: int = 1
    prefect_port: int = 4200
    mlflow_port: int = 5000

    def __str__(self) -> str:
        ports = f"PREFECT_PORT={self.prefect_port} MLFLOW_PORT={self.mlflow_port}"
        return f"ENGINES={self.engines} {ports}"

    @property
    def prefect_url(self) -> str:
        """Where the Prefect server and its UI answer."""
        return f"http://{LOOPBACK}:{self.prefect_port}"

    @property
    def mlflow_url(self) -> str:
        """Where the MLflow server and its UI answer."""
        return f"http://{LOOPBACK}:{self.mlflow_port}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0: it is as the command says."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    options = _parser().parse_args(arguments)
    folder = Path(os.environ.get("ENCORE_STACK_DIR") or ROOT / "stack").absolute()
    try:
        match options.command:
            case "up":
                ports = {"prefect_port": options.prefect_port, "mlflow_port": options.mlflow_port}
                up(Stack(engines=options.engines, **ports), folder)
            case "down":
                down(folder)
            case "register":
                register(pool_type=options.pool_type, job_template=options.job_template)
            case "server":
                serve(host=options.host, port=options.port)
    except EncoreError as error:
        fail(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        fail("interrupted")
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="infra.stack", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("up", help="start servers and workers, wait until they answer")
    command.add_argument("--engines", type=int, default=1, help="how many engine workers")
    command.add_argument("--prefect-port", type=int, default=4200)
    command.add_argument("--mlflow-port", type=int, default=5000)
    commands.add_parser("down", help="stop every process of the stack; the folder stays")
    command = commands.add_parser(
        "register", help="create or update work pools, deployments and automation on a server"
    )
    command.add_argument("--pool-type", choices=("process", "kubernetes"), default="process")
    command.add_argument("--job-template", type=Path, help="base job template, a JSON file")
    command = commands.add_parser("server", help="run a Prefect server in the foreground")
    command.add_argument("--host", default=LOOPBACK)
    command.add_argument("--port", type=int, default=4200)
    return parser


def up(stack: Stack, folder: Path) -> None:
    """Start the stack, wait until everything answers, say where.

    Raises:
        InputError: Another stack runs in the folder, a port is in use, GPUs cannot be divided.
        EncoreError: Something did not start. What was started before is stopped.
    """
    engines = divide_machine(stack.engines, gpus=visible_gpus(os.environ), cores=os.cpu_count())
    if running := {member.name for member in members(folder) if member.is_started}:
        _check_is_same(stack, folder, running - {"register"})
        say(f"The stack in {folder} is running already.")
        _say_where(stack, folder)
        return
    for name, port in (("PREFECT_PORT", stack.prefect_port), ("MLFLOW_PORT", stack.mlflow_port)):
        if _is_open(port):
            raise InputError(f"port {port} is in use: choose another one, make up {name}=...")
    folder.mkdir(parents=True, exist_ok=True)
    _settings_file(folder).write_text(json.dumps(asdict(stack)), encoding="utf-8")
    try:
        environ = _start_servers(stack, folder)
        _register(folder, environ)
        _start_workers(stack, folder, environ, engines)
    except BaseException:
        stop(members(folder), timeout_seconds=_STOP_SECONDS)
        raise
    _say_where(stack, folder)


def down(folder: Path) -> None:
    """Stop workers with their flow runs, then servers; all state stays in the folder.

    Raises:
        EncoreError: A process or a port is left: which.
    """
    found = members(folder)
    if not found:
        say(f"No stack is running in {folder}.")
        return
    servers = {PREFECT, MLFLOW}  # they answer until the last flow run has said that it ends
    stop([one for one in found if one.name not in servers], timeout_seconds=_STOP_SECONDS)
    stop(members(folder), timeout_seconds=_STOP_SECONDS)
    left = [f"{member.name} (process {member.process.pid})" for member in members(folder)]
    stack = _read_settings(folder)
    left += [f"port {one}" for one in (stack.prefect_port, stack.mlflow_port) if _is_open(one)]
    if left:
        raise EncoreError(f"cannot stop {', '.join(left)}")
    say(f"Stopped {len(found)} processes. All state stays in {folder}.")


def visible_gpus(environ: Mapping[str, str]) -> list[str]:
    """The GPUs of CUDA_VISIBLE_DEVICES, else of this machine."""
    if "CUDA_VISIBLE_DEVICES" in environ:
        names = environ["CUDA_VISIBLE_DEVICES"].split(",")
    elif tool := shutil.which("nvidia-smi"):
        command = [tool, "--query-gpu=index", "--format=csv,noheader"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        names = done.stdout.splitlines() if done.returncode == 0 else []
    else:
        names = []
    return [name.strip() for name in names if name.strip()]


def divide_machine(
    engines: int, *, gpus: Sequence[str], cores: int | None
) -> dict[str, dict[str, str]]:
    """The environment of each engine worker: an equal part of the GPUs, or of the cores.

    Raises:
        InputError: The number of GPUs does not divide.
    """
    if engines < 1:
        raise InputError(f"ENGINES={engines}: expected 1 or more")
    names = [f"engine-{number}" for number in range(engines)]
    if not gpus:
        part = {
            "OMP_NUM_THREADS": str(max(1, (cores or 1) // engines)),
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        }
        return dict.fromkeys(names, part)
    if len(gpus) % engines:
        possible = [str(n) for n in range(1, len(gpus) + 1) if len(gpus) % n == 0]
        raise InputError(
            f"ENGINES={engines} does not divide {len(gpus)} GPUs ({', '.join(gpus)}): choose "
            f"{' or '.join(possible)}"
        )
    size = len(gpus) // engines
    return {
        name: {"CUDA_VISIBLE_DEVICES": ",".join(gpus[number * size : (number + 1) * size])}
        for number, name in enumerate(names)
    }


def _check_is_same(stack: Stack, folder: Path, running: set[str]) -> None:
    has = _read_settings(folder)
    if has != stack:
        raise InputError(f"the stack in {folder} is running with {has}: make down stops it")
    wanted = {PREFECT, MLFLOW, COORDINATOR, *(f"engine-{n}" for n in range(stack.engines))}
    if missing := sorted(wanted - running):
        raise InputError(
            f"the stack in {folder} is running without {', '.join(missing)}: make down stops the "
            "rest, make up then starts all"
        )


def _start_servers(stack: Stack, folder: Path) -> dict[str, str]:
    """The environment of the servers' clients, when both servers answer."""
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
    stack: Stack, folder: Path, environ: Mapping[str, str], engines: Mapping[str, dict[str, str]]
) -> None:
    say(f"Starting the workers: {', '.join([COORDINATOR, *engines])}")
    begin = datetime.now(UTC)
    worker = [sys.executable, "-m", "prefect", "worker", "start"]
    pools = {COORDINATOR: COORDINATOR_POOL, **dict.fromkeys(engines, ENGINE_POOL)}
    started = []
    for name, pool in pools.items():
        limit = ["--limit", "1"] if pool == ENGINE_POOL else []
        command = [*worker, "--name", name, "--pool", pool, *limit]
        part = engines.get(name, {})
        started.append(start(name, command, folder, {**environ, **part}, cwd=ROOT))
    for one in started:
        is_ready = partial(_is_online, stack, pools[one.name], one.name, since=begin)
        wait_until(is_ready, one, timeout_seconds=_START_SECONDS)


def _is_online(stack: Stack, pool: str, name: str, *, since: datetime) -> bool:
    """Whether a worker of a pool has been heard of since a time."""
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
    """Whether somebody listens on a port of the loopback address."""
    with socket.socket() as client:
        return client.connect_ex((LOOPBACK, port)) == 0


def _settings_file(folder: Path) -> Path:
    return folder / "stack.json"


def _read_settings(folder: Path) -> Stack:
    return Stack(**json.loads(_settings_file(folder).read_text("utf-8")))


def _say_where(stack: Stack, folder: Path) -> None:
    say("")
    say(f"  Prefect   {stack.prefect_url}")
    say(f"  MLflow    {stack.mlflow_url}/#/experiments?workflowType=machine_learning")
    say(f"  Logs      {folder / 'logs'}")
    say("")
    say(f"Start a run: {stack.prefect_url}/deployments, encore-pipeline, Run, Custom run.")
    say("make down stops everything.")


if __name__ == "__main__":
    sys.exit(main())
