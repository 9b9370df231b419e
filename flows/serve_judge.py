"""Flow: one vLLM server with a judge, for runs of `rate-pairs`.

Runs of a deployment start it on the GPU work pool. It ends when it is cancelled, when its process
died too often, and when no run has asked it for a while.
"""

from __future__ import annotations

import contextlib
import contextvars
import os
import re
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from prefect.artifacts import TableArtifact
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, WorkPoolFilter
from prefect.client.schemas.objects import State, StateType
from prefect.states import Completed

from encore.core.errors import InputError
from encore.core.settings import prepare_environment
from encore.judges.gpu_groups import visible_gpus
from encore.judges.server_process import get_text
from encore.judges.vllm_engine import VllmJudge
from encore.judges.vllm_servers import LocalServers, served_name
from flows.study_flow import study_flow
from tasks.artifacts import LiveArtifact
from tasks.pool_servers import (
    ADDRESS_KEY,
    GPU_POOL,
    MIN_KEEP_SECONDS,
    ServeConfig,
    is_loopback,
    judge_key,
)
from tasks.server_calls import best_effort, run_logger

HOST_VARIABLE = "ENCORE_JUDGE_HOST"
_POLL_SECONDS = 2.0
#: A flow run that no worker took for so long waits for a GPU.
_WAITING_SECONDS = 20.0
#: Requests that the server answered, without those for its health and its figures.
_NUM_REQUESTS = re.compile(r"^http_requests_total\{.*\} (\S+)$", re.MULTILINE)


@study_flow("serve-judge", stage="serve")
def serve_judge(config: ServeConfig) -> State:
    """Serve a judge by one vLLM server on this worker's GPUs, until no run asks it any more.

    Its log is this run's log. Its address, host and GPUs are in the artifact `judge-server`.
    """
    prepare_environment()
    judge = VllmJudge(config.judge, is_here=False)  # as the run that asks sees it
    host = own_address(os.environ.get(HOST_VARIABLE, ""))
    with contextlib.ExitStack() as stack:
        log_dir = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="encore-server-")))
        servers = LocalServers(
            shares=[{}],  # its worker's environment has them
            log_dir=log_dir,
            host=host,
            api_key=None if is_loopback(f"//{host}") else judge_key(),
        )
        stack.enter_context(_log_of(log_dir / "server-0.log"))
        stack.callback(servers.close)
        return Completed(message=_serve(judge, servers, keep_seconds=60 * config.keep_minutes))


def _serve(judge: VllmJudge, servers: LocalServers, *, keep_seconds: float) -> str:
    """Serve a judge until no run asks the server any more; return why it ended.

    Raises:
        JudgeUnavailableError: The server died too often.
    """
    address, num_requests, asked_at = "", 0.0, time.monotonic()
    artifact = LiveArtifact(ADDRESS_KEY)
    servers.start(judge)
    while True:
        urls = servers.check()
        if urls and urls[0] != address:  # it began, or began again
            address, asked_at = urls[0], time.monotonic()
            artifact.show(_address_table(judge, address))
        metrics = (get_text(address, "/metrics", api_key=servers.api_key) or "") if urls else ""
        newest = sum(map(float, _NUM_REQUESTS.findall(metrics)))
        if newest != num_requests or not urls:
            num_requests, asked_at = newest, time.monotonic()
        idle_seconds = time.monotonic() - asked_at
        if idle_seconds > max(keep_seconds, MIN_KEEP_SECONDS):
            return f"no run asked it for {idle_seconds:.0f} s"
        if idle_seconds > MIN_KEEP_SECONDS and (waiting_run := best_effort(_waiting_run)):
            return f"no run asks it, and flow run {waiting_run} waits for the GPU"
        time.sleep(_POLL_SECONDS)


def _address_table(judge: VllmJudge, address: str) -> TableArtifact:
    gpus = ", ".join(visible_gpus()) or f"none, cores: {os.environ.get('OMP_NUM_THREADS', 'all')}"
    row = {
        "judge": served_name(judge),
        "address": address,
        "host": socket.gethostname(),
        "GPUs": gpus,
    }
    return TableArtifact(table=[row], description="The server that this run is.")


def own_address(name: str) -> str:
    """Return the address that servers listen on: loopback without a name, ``auto`` the host's own.

    Raises:
        InputError: The name is not one of this host, or ``auto`` gives loopback.
    """
    if not name:
        return "127.0.0.1"
    try:
        address = socket.gethostbyname(socket.gethostname() if name == "auto" else name)
        with socket.socket() as listener:
            listener.bind((address, 0))
    except OSError as error:
        raise InputError(
            f"{HOST_VARIABLE} {name}: {error}; expected a name or an address of this host "
            f"({socket.gethostname()}), by which the host of the coordinator reaches it"
        ) from error
    if name == "auto" and address.startswith("127."):
        raise InputError(
            f"{HOST_VARIABLE} auto: this host's own name {socket.gethostname()} means {address}, "
            "which no other host reaches; give a name or an address of this host"
        )
    return address if name == "auto" else name


def _waiting_run() -> str:
    """Return the name of a flow run that waits for a worker of the pool; empty if none does."""
    before = datetime.now(UTC) - timedelta(seconds=_WAITING_SECONDS)

    late_runs = FlowRunFilter.model_validate(
        {
            "state": {"type": {"any_": [StateType.SCHEDULED]}},
            "next_scheduled_start_time": {"before_": before},
        }
    )
    pool = WorkPoolFilter.model_validate({"name": {"any_": [GPU_POOL]}})
    with get_client(sync_client=True) as client:
        runs = client.read_flow_runs(flow_run_filter=late_runs, work_pool_filter=pool, limit=1)
    return runs[0].name if runs else ""


@contextlib.contextmanager
def _log_of(path: Path) -> Iterator[None]:
    """Show the lines of a growing log in the flow run's log, while the context is open."""
    path.touch()
    is_over = threading.Event()
    follow = contextvars.copy_context().run
    thread = threading.Thread(target=follow, args=[_follow, path, is_over], daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _follow(path: Path, is_over: threading.Event) -> None:
    unfinished_line = b""
    with path.open("rb") as log:
        while True:
            was_over = is_over.wait(1.0)
            *lines, unfinished_line = (unfinished_line + log.read()).split(b"\n")
            for line in lines:
                run_logger().info("%s", line.decode(errors="replace").rstrip())
            if was_over:
                return
