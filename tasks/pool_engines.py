"""Start engines as runs of a deployment on the GPU work pool, one worker each."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, TypedDict, TypeVar
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter
from prefect.client.schemas.objects import FlowRun, StateType, WorkerStatus
from prefect.context import FlowRunContext
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelled, Cancelling, Pending
from prefect.tasks import Task

from encore.core.config import StageConfig
from encore.core.errors import EncoreError
from encore.rating.rating_options import RateConfig
from encore.runs.engine_messages import EngineSpec
from encore.runs.engine_supervisor import EngineState, ShowEngines
from encore.scoring.scoring_options import ScoreConfig
from tasks.artifacts import EngineTable
from tasks.server_calls import best_effort, run_logger

Result = TypeVar("Result")

GPU_POOL = "encore-gpu"
_ENDED_STATES = {StateType.COMPLETED, StateType.FAILED}
_LOST_STATES = {StateType.CRASHED, StateType.CANCELLED, StateType.CANCELLING}
_LIVE_STATES = [StateType.SCHEDULED, StateType.PENDING, StateType.RUNNING]
#: Pause between two requests for the state of a run, which is needed only when it has ended.
_STATE_SECONDS = 3.0
#: A run that a worker has taken begins within seconds. If it does not, its worker has died.
_PENDING_SECONDS = 180.0
_WAITING = EngineState("waiting")


class PoolEngines(TypedDict):
    """Arguments of `encore.runs.engine_supervisor.supervise` for engines on the GPU work pool.

    Attributes:
        launcher: Starts and stops the engines.
        num_engines: Number of engines to start.
        show: Shows a table of the engines on Prefect's pages.
    """

    launcher: PoolLauncher
    num_engines: int
    show: ShowEngines


def num_pool_engines(engines: int | Literal["auto"]) -> int:
    """Return the number of engines to start.

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


def pool_engines(
    deployment: str, config: RateConfig | ScoreConfig, attempts: StageConfig
) -> PoolEngines:
    """Return what a supervisor needs to have engines on the GPU work pool.

    Args:
        deployment: Name of the engines' deployment, ``flow/deployment``.
        config: Configuration of the stage, which every engine is given.
        attempts: Number of attempts at a shard, which every engine is given.

    Raises:
        EncoreError: The number of engines is ``auto``, and no worker is online.
    """
    return {
        "launcher": PoolLauncher(deployment=deployment, config=config, attempts=attempts),
        "num_engines": num_pool_engines(config.engines),
        "show": EngineTable(config.study).show,
    }


@dataclass(slots=True)
class _EngineRun:
    """A flow run that is an engine. ``id`` is None until the server has taken it."""

    spec: EngineSpec
    id: UUID | None = None
    last_state: EngineState = _WAITING
    last_request: float = 0.0  # monotonic time of the last request for the state
    pending_since: float | None = None


@dataclass(slots=True, kw_only=True)
class PoolLauncher:
    """An `encore.runs.engine_supervisor.Launcher`: each engine is a run of a deployment.

    Attributes:
        deployment: Name of the deployment, ``flow/deployment``.
        config: Configuration of the stage. Its study and model paths hold on every worker.
        attempts: Number of attempts at a shard.
        runs: Flow runs by engine name.
    """

    deployment: str
    config: StageConfig
    attempts: StageConfig
    runs: dict[str, _EngineRun] = field(default_factory=dict)

    def adopt(self, run_key: str) -> Sequence[EngineSpec]:
        """Return the live engines of a run, which an earlier or another supervisor started."""
        live_engines = FlowRunFilter.model_validate(
            {"tags": {"all_": [_tag(run_key)]}, "state": {"type": {"any_": _LIVE_STATES}}}
        )
        flow_runs = _call_server(lambda client: client.read_flow_runs(flow_run_filter=live_engines))
        for flow_run in flow_runs or ():
            spec = EngineSpec.model_validate(flow_run.parameters["engine"])
            self.runs[spec.name] = _EngineRun(spec, id=flow_run.id)
        return tuple(run.spec for run in self.runs.values())

    def start(self, spec: EngineSpec) -> None:
        """Create a flow run for an engine. While the server is away, `state` tries again."""
        run = self.runs.setdefault(spec.name, _EngineRun(spec))
        context = FlowRunContext.get()
        parameters = {
            "config": json.loads(self.config.model_dump_json()),
            "attempts": json.loads(self.attempts.model_dump_json()),
            "engine": spec.model_dump(),
        }

        def create(client: SyncPrefectClient) -> FlowRun | None:
            try:
                deployment = client.read_deployment_by_name(self.deployment)
            except ObjectNotFound:
                error = f"the server has no deployment {self.deployment}; `make up` registers it"
                run.last_state = EngineState("ended", error)
                return None
            # A task run of its own: the server gives it the state of the engine's flow run.
            parent_task_run_id = None
            if context is not None and context.flow_run is not None:
                parent_task_run_id = client.create_task_run(
                    Task(fn=lambda: None, name="engine"),
                    context.flow_run.id,
                    dynamic_key=spec.name,
                    name=spec.label,
                    state=Pending(),
                ).id
            return client.create_flow_run_from_deployment(
                deployment.id,
                parameters=parameters,
                tags=[_tag(spec.run_key)],
                idempotency_key=spec.name,
                parent_task_run_id=parent_task_run_id,
            )

        flow_run = _call_server(create)
        if flow_run is not None:
            run.id = flow_run.id
            run_logger().info("%s: flow run %s", spec.label, flow_run.name)

    def state(self, name: str) -> EngineState:
        """Return the state of an engine's flow run; while the server is away, the last one."""
        run = self.runs[name]
        if time.monotonic() - run.last_request < _STATE_SECONDS:
            return run.last_state
        run.last_request = time.monotonic()
        if run.id is None:
            self.start(run.spec)
        elif answer := _call_server(partial(_read_state, run_id=run.id)):
            run.last_state = _engine_state(run, *answer)
        return run.last_state

    def stop(self, name: str, *, kill: bool = False) -> None:  # noqa: ARG002 - a worker kills what does not end
        """Cancel the flow run: its worker ends the process, or no worker takes it any more."""
        run = self.runs[name]
        if run.id is not None and run.last_state.state in ("waiting", "running"):
            _call_server(partial(_cancel, run_id=run.id), retry_name=f"stop-{name}")

    def close(self) -> None:
        """Do nothing: the workers end their processes."""


def _engine_state(run: _EngineRun, state_type: StateType | None, message: str) -> EngineState:
    """Return the state of an engine from the state of its flow run (None: it is gone)."""
    if state_type is None or state_type in _LOST_STATES:
        reason = f"its flow run is {'gone' if state_type is None else state_type.value}"
        return EngineState("lost", f"{reason}: {message}" if message else reason)
    if state_type in _ENDED_STATES:
        return EngineState("ended", message if state_type == StateType.FAILED else "")
    if state_type == StateType.PENDING:
        run.pending_since = run.pending_since or time.monotonic()
        if time.monotonic() - run.pending_since > _PENDING_SECONDS:
            return EngineState("lost", f"pending for {_PENDING_SECONDS:g} s")
    return EngineState("running" if state_type == StateType.RUNNING else "waiting")


def _tag(run_key: str) -> str:
    return f"encore-run-{run_key}"


def _call_server(
    call: Callable[[SyncPrefectClient], Result], *, retry_name: str | None = None
) -> Result | None:
    """Call the server with a client of its own (see `best_effort`)."""

    def call_with_client() -> Result:
        with get_client(sync_client=True) as client:
            return call(client)

    return best_effort(call_with_client, retry_name=retry_name)


def _read_state(client: SyncPrefectClient, run_id: UUID) -> tuple[StateType | None, str]:
    """Return type and message of a flow run's state; None if the run does not exist."""
    try:
        state = client.read_flow_run(run_id).state
    except ObjectNotFound:
        return None, ""
    return (state.type, state.message or "") if state else (StateType.SCHEDULED, "")


def _cancel(client: SyncPrefectClient, run_id: UUID) -> None:
    state_type, _ = _read_state(client, run_id)
    if state_type == StateType.SCHEDULED:
        client.set_flow_run_state(run_id, Cancelled(message="The run needs no further engine."))
    elif state_type in _LIVE_STATES:
        client.set_flow_run_state(run_id, Cancelling(message="Stopped by the run's parent."))
