"""vLLM servers on the GPU work pool: runs of the flow `serve-judge`, as a rating run sees them.

A server stays loaded when its run ends, and the next run with the same judge asks it again. All
that a run knows of its servers it reads through Prefect's API: no folder is shared with them.
"""

from __future__ import annotations

import json
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit
from uuid import UUID

from prefect.blocks.system import Secret
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import ArtifactFilter, FlowRunFilter
from prefect.client.schemas.objects import FlowRun, State, StateType, WorkerStatus
from prefect.client.schemas.sorting import ArtifactSort
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound
from prefect.states import Cancelled, Crashed
from pydantic import SecretStr

from encore.core.config import StageConfig, option
from encore.core.errors import EncoreError, JudgeUnavailableError
from encore.judges.judge_options import JudgeConfig
from encore.judges.server_process import get_text
from encore.judges.vllm_engine import VllmJudge
from encore.judges.vllm_servers import served_name
from tasks.server_calls import best_effort, run_logger

Result = TypeVar("Result")

GPU_POOL = "encore-gpu"
DEPLOYMENT = "serve-judge/encore-serve-judge"
#: Key of the artifact in which a server tells its address, and name of the block with the key that
#: servers on a network want.
ADDRESS_KEY, KEY_BLOCK = "judge-server", "encore-judge-key"
#: A server that nobody asks for so long has no run.
MIN_KEEP_SECONDS = 45.0
#: Pause between two looks at the states of the servers' runs, which also ask the servers.
_LOOK_SECONDS = 5.0
#: A run that a worker has taken begins within seconds, a pod after its image was pulled.
_PENDING_SECONDS = 600.0
_MAX_RESTARTS = 3
_LIVE_STATES = [StateType.SCHEDULED, StateType.PENDING, StateType.RUNNING]
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


class ServersConfig(StageConfig):
    """Options of the servers that a run of a deployment starts on the GPU work pool."""

    keep_minutes: float = option(10.0, ge=0, le=10_080, hidden=True)
    """Keep the judge loaded for so long after its last run, for the next one. 0: it ends with the
    run. A run that waits for the GPU ends an idle server at once."""


class ServeConfig(ServersConfig):
    """Options of one vLLM server on the GPU work pool."""

    judge: JudgeConfig


def judge_tag(name: str) -> str:
    """Return the tag of the flow runs that serve a judge under a name."""
    return f"encore-judge-{name}"


def judge_key() -> str:
    """Return the key of the pool's servers on a network; the first caller makes its block."""
    block: Any  # Prefect's type of it is that of its asynchronous twin
    try:
        block = Secret.load(KEY_BLOCK)
    except ValueError:  # there is no such block
        block = Secret(value=SecretStr(secrets.token_urlsafe(32)))
        try:
            block.save(KEY_BLOCK)
        except (ValueError, ObjectAlreadyExists):  # another server made it meanwhile
            block = Secret.load(KEY_BLOCK)
    return str(block.get())


def is_loopback(url: str) -> bool:
    """Return True if only programs of the same host reach an address."""
    return urlsplit(url).hostname in _LOOPBACK


def num_pool_servers(engines: int | Literal["auto"]) -> int:
    """Return the number of servers to start.

    Args:
        engines: The number itself, or ``auto`` for one for each worker of the pool that is online,
            within the pool's concurrency limit.

    Raises:
        EncoreError: ``auto`` was given, and no worker of the pool is online.
    """
    if engines != "auto":
        return engines
    with get_client(sync_client=True) as client:
        workers = client.read_workers_for_work_pool(GPU_POOL)
        limit = client.read_work_pool(GPU_POOL).concurrency_limit
    num_online = sum(worker.status == WorkerStatus.ONLINE for worker in workers)
    if not num_online:
        raise EncoreError(
            f"engines auto: no worker of the work pool {GPU_POOL} is online; start one (`make up`, "
            f"or `prefect worker start --pool {GPU_POOL} --limit 1`), or give a number"
        )
    return num_online if limit is None else max(1, min(num_online, limit))


@dataclass(slots=True)
class _Slot:
    """One of the servers, through its restarts.

    Attributes:
        number: Number of the server, from 0.
        run_id: Its present flow run; None until the Prefect server has taken one.
        server: What the server tells of itself: address, host, GPUs; empty until it answers.
        pending_since: Monotonic time since when a worker has the run and it has not begun.
        num_restarts: Number of runs before the present one.
        error: Why it was given up; empty while it was not.
    """

    number: int
    run_id: UUID | None = None
    server: dict[str, str] = field(default_factory=dict)
    pending_since: float | None = None
    num_restarts: int = 0
    error: str = ""


@dataclass(slots=True, kw_only=True)
class PoolServers:
    """Servers (`encore.judges.vllm_servers.ServerSource`) that are flow runs on the GPU work pool.

    Attributes:
        config: The judge to serve. Its paths hold on every worker.
        num_servers: Number of servers to have.
        keep_minutes: Time that they stay loaded after their last run.
        api_key: Key that they want; None while all of them are on loopback.
        show: Called from time to time while the servers work, to show how they are.
    """

    config: JudgeConfig
    num_servers: int
    keep_minutes: float
    api_key: str | None = field(default=None, init=False)
    show: Callable[[], None] = field(default=lambda: None, init=False)
    _name: str = field(default="", init=False)
    _slots: list[_Slot] = field(default_factory=list, init=False)
    _next_look: float = field(default=0.0, init=False)

    @property
    def are_here(self) -> bool:
        """Return False: they run on machines of the pool."""
        return False

    def start(self, judge: VllmJudge, /) -> None:
        """Take the servers that run with this judge; `check` starts the missing ones."""
        self._name = served_name(judge)
        self._slots = [_Slot(number) for number in range(self.num_servers)]
        live_runs = _call(self._live_runs) or []
        for slot, run in zip(self._slots, live_runs, strict=False):
            slot.run_id = run.id
            run_logger().info("%s is there: flow run %s", self._label(slot), run.name)

    def check(self) -> Sequence[str]:
        """Replace lost servers; return the base URLs of those that are there to be asked.

        Raises:
            JudgeUnavailableError: None is left to be asked.
        """
        if time.monotonic() >= self._next_look:
            for slot in self._slots:
                if not slot.error:
                    self._look(slot)
                if slot.server:  # one that nobody asks ends
                    get_text(slot.server["address"], "/v1/models", api_key=self.api_key)
            self._next_look = time.monotonic() + _LOOK_SECONDS
        if all(slot.error for slot in self._slots):
            errors = "; ".join(slot.error for slot in self._slots)
            raise JudgeUnavailableError(
                f"no server of the judge is left: {errors}; finished work is kept: put this right "
                "and run again"
            )
        self.show()
        urls = [slot.server["address"] for slot in self._slots if slot.server]
        if self.api_key is None and not all(map(is_loopback, urls)):
            self.api_key = best_effort(judge_key)
        return urls

    def close(self) -> None:
        """Leave the servers to the next run; cancel those that have not answered yet."""
        for slot in self._slots:
            run_id = slot.run_id
            if run_id is not None and not slot.server and not slot.error:
                message = "The run that wanted this server has ended."
                _set_state(run_id, Cancelled(message=message))

    def rows(self, asked: Sequence[dict[str, object]]) -> list[dict[str, object]]:
        """Return a table of the servers: host, GPUs, restarts, and what the client says of each.

        Args:
            asked: Rows of the client (`encore.judges.http_judge.HttpJudge.server_rows`).
        """
        rows_by_address = {str(row["address"]).rstrip("/"): row for row in asked}
        rows = []
        for slot in self._slots:
            row: dict[str, object] = {"engine": slot.number + 1, **slot.server}
            row |= rows_by_address.get(slot.server.get("address", ""), {})
            row["state"] = slot.error or row.get("state", "loading")
            rows.append(row | {"restarts": slot.num_restarts})
        return rows

    def _look(self, slot: _Slot) -> None:
        """Read the state of a slot's flow run, and start another one if it has ended."""
        if slot.run_id is None:
            self._create(slot)
            return
        run = _call(partial(_read_run, run_id=slot.run_id))
        if run is None or run.state is None:  # the Prefect server is away
            return
        state = run.state
        if state.type == StateType.PENDING:
            slot.pending_since = slot.pending_since or time.monotonic()
            if time.monotonic() - slot.pending_since > _PENDING_SECONDS:
                message = f"It did not begin within {_PENDING_SECONDS:.0f} s: its worker is lost."
                _set_state(run.id, Crashed(message=message))
        elif state.type == StateType.RUNNING:
            slot.server = _call(partial(_read_server, run_id=run.id)) or slot.server
            if slot.server:
                self._check_host(slot)
        elif state.is_final() or state.is_cancelling():
            self._replace(slot, run)

    def _replace(self, slot: _Slot, run: FlowRun) -> None:
        """Start another run in a slot, or give the slot up."""
        assert run.state is not None
        slot.server, slot.run_id, slot.pending_since = {}, None, None
        ending = f"flow run {run.name} is {run.state.name}"
        ending += f": {run.state.message}" if run.state.message else ""
        label = self._label(slot)
        if run.state.type in (StateType.CANCELLED, StateType.CANCELLING):
            slot.error = f"{label} was cancelled ({ending})"
        elif slot.num_restarts >= _MAX_RESTARTS:
            slot.error = f"{label}: {ending}, after {slot.num_restarts} restarts"
        else:
            slot.num_restarts += 1
            run_logger().info("%s is started again: %s", label, ending)
            self._create(slot)

    def _create(self, slot: _Slot) -> None:
        """Create a flow run for a slot. While the Prefect server is away, `check` tries again."""
        config = ServeConfig(judge=self.config, keep_minutes=self.keep_minutes)

        def create(client: SyncPrefectClient) -> FlowRun | None:
            try:
                deployment = client.read_deployment_by_name(DEPLOYMENT)
            except ObjectNotFound:
                slot.error = f"the Prefect server has no deployment {DEPLOYMENT}: `make up`"
                return None
            return client.create_flow_run_from_deployment(
                deployment.id,
                parameters={"config": json.loads(config.model_dump_json())},
                tags=[judge_tag(self._name)],
            )

        if run := _call(create):
            slot.run_id = run.id
            run_logger().info("%s: flow run %s", self._label(slot), run.name)

    def _check_host(self, slot: _Slot) -> None:
        """Give up a server that listens on another host's loopback."""
        host, url = slot.server["host"], slot.server["address"]
        if is_loopback(url) and host != socket.gethostname():
            slot.error = (
                f"{self._label(slot)} listens on the loopback of {host}, and this run is on "
                f"{socket.gethostname()}: set ENCORE_JUDGE_HOST in the environment of that worker "
                "to a name or address by which this host reaches it"
            )
            slot.server = {}

    def _live_runs(self, client: SyncPrefectClient) -> list[FlowRun]:
        """Return the flow runs that serve this judge, those that run first."""
        live_runs = FlowRunFilter.model_validate(
            {"tags": {"all_": [judge_tag(self._name)]}, "state": {"type": {"any_": _LIVE_STATES}}}
        )
        runs = client.read_flow_runs(flow_run_filter=live_runs)
        return sorted(runs, key=lambda run: run.state_type != StateType.RUNNING)

    def _label(self, slot: _Slot) -> str:
        return f"server {slot.number + 1} of {self.num_servers} for {self._name}"


def _call(call: Callable[[SyncPrefectClient], Result]) -> Result | None:
    """Call the Prefect server at best effort."""

    def call_with_client() -> Result:
        with get_client(sync_client=True) as client:
            return call(client)

    return best_effort(call_with_client)


def _set_state(run_id: UUID, state: State) -> None:
    _call(lambda client: client.set_flow_run_state(run_id, state, force=True))


def _read_run(client: SyncPrefectClient, run_id: UUID) -> FlowRun:
    """Return a flow run. One that somebody deleted is Crashed."""
    try:
        return client.read_flow_run(run_id)
    except ObjectNotFound:
        return FlowRun(id=run_id, flow_id=run_id, state=Crashed(message="It was deleted."))


def _read_server(client: SyncPrefectClient, run_id: UUID) -> dict[str, str]:
    """Return what a server tells of itself; empty before it answers."""
    artifacts = client.read_artifacts(
        artifact_filter=ArtifactFilter.model_validate(
            {"flow_run_id": {"any_": [run_id]}, "key": {"any_": [ADDRESS_KEY]}}
        ),
        sort=ArtifactSort.UPDATED_DESC,
        limit=1,
    )
    return dict(json.loads(str(artifacts[0].data))[0]) if artifacts else {}
