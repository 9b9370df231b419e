"""Engines as runs of a deployment on the GPU work pool, one worker each."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter
from prefect.client.schemas.objects import StateType, WorkerStatus
from prefect.context import TaskRunContext
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelled, Cancelling

from encore.core.config import StageConfig
from encore.core.errors import EncoreError
from encore.rating.rating_config import RateConfig
from encore.runs.engine_messages import EngineSpec
from encore.runs.engine_supervisor import EngineState
from encore.scoring.scoring_config import ScoreConfig
from tasks.artifacts import EngineTable
from tasks.server import best_effort, run_logger

GPU_POOL = "encore-gpu"
_OVER = {StateType.COMPLETED, StateType.FAILED}
_LOST = {StateType.CRASHED, StateType.CANCELLED, StateType.CANCELLING}
_LIVE = [StateType.SCHEDULED, StateType.PENDING, StateType.RUNNING]
#: Asked no more often than this for the state of a run, which is needed only when it is over.
_ASK_SECONDS = 3.0
#: A run that a worker has taken begins within seconds; its worker died if it does not.
_PENDING_SECONDS = 180.0
_WAITING = EngineState("waiting")


def num_pool_engines(engines: int | Literal["auto"]) -> int:
    """How many engines a run starts; ``auto``: the pool's workers, within its concurrency limit.

    Raises:
        EncoreError: ``auto``, and no worker of the pool is online.
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


def by_pool(
    deployment: str, config: RateConfig | ScoreConfig, attempts: StageConfig
) -> dict[str, Any]:
    """What `encore.runs.engine_supervisor.supervise` takes for engines on the GPU work pool.

    Args:
        deployment: Of an engine, ``flow/deployment``.
        config: Of the stage.
        attempts: How hard a shard is tried.
    """
    return {
        "launcher": PoolLauncher(deployment=deployment, config=config, attempts=attempts),
        "num_engines": num_pool_engines(config.engines),
        "show": EngineTable(config.study).show,
    }


@dataclass(slots=True)
class _Run:
    """A flow run that is an engine; ``id`` is None until the server has taken it."""

    spec: EngineSpec
    id: UUID | None = None
    known: EngineState = _WAITING
    asked: float = 0.0
    pending_since: float | None = None


@dataclass(slots=True, kw_only=True)
class PoolLauncher:
    """An `encore.runs.engine_supervisor.Launcher`: each engine is a run of a deployment.

    Attributes:
        deployment: Its name, ``flow/deployment``.
        config: Of the stage; study and model paths hold on every worker.
        attempts: How hard a shard is tried.
    """

    deployment: str
    config: StageConfig
    attempts: StageConfig
    runs: dict[str, _Run] = field(default_factory=dict)

    def adopt(self, run_key: str) -> Sequence[EngineSpec]:
        """Engines of this run that an earlier parent started, or another one."""
        wanted = {"tags": {"all_": [_tag(run_key)]}, "state": {"type": {"any_": _LIVE}}}
        runs = FlowRunFilter.model_validate(wanted)
        for run in _ask(lambda client: client.read_flow_runs(flow_run_filter=runs)) or ():
            spec = EngineSpec.model_validate(run.parameters["engine"])
            self.runs[spec.name] = _Run(spec, id=run.id)
        return tuple(run.spec for run in self.runs.values())

    def start(self, spec: EngineSpec) -> None:
        """Ask for a run; while the server is away, `state` asks again."""
        run = self.runs.setdefault(spec.name, _Run(spec))
        context = TaskRunContext.get()
        parameters = {
            "config": json.loads(self.config.model_dump_json()),
            "attempts": json.loads(self.attempts.model_dump_json()),
            "engine": spec.model_dump(),
        }

        def create(client: SyncPrefectClient) -> Any:
            try:
                deployment = client.read_deployment_by_name(self.deployment)
            except ObjectNotFound:
                missing = f"the server has no deployment {self.deployment}; `make up` registers it"
                run.known = EngineState("ended", missing)
                return None
            return client.create_flow_run_from_deployment(
                deployment.id,
                parameters=parameters,
                tags=[_tag(spec.run_key)],
                idempotency_key=spec.name,
                parent_task_run_id=context.task_run.id if context else None,
            )

        made = _ask(create)
        if made is not None:
            run.id = made.id
            run_logger().info("%s: flow run %s", spec.label, made.name)

    def state(self, name: str) -> EngineState:
        """By the flow run; while the server is away, what was known last."""
        run = self.runs[name]
        if time.monotonic() - run.asked < _ASK_SECONDS:
            return run.known
        run.asked = time.monotonic()
        if run.id is None:
            self.start(run.spec)
        elif found := _ask(partial(_state_of, run_id=run.id)):
            run.known = _known(run, *found)
        return run.known

    def stop(self, name: str, *, kill: bool = False) -> None:  # noqa: ARG002 - a worker kills what does not end
        """Cancel the run: its worker ends the process, or no worker takes it any more."""
        run = self.runs[name]
        if run.id is not None and run.known.state in ("waiting", "running"):
            _ask(partial(_cancel, run_id=run.id), later=f"stop-{name}")

    def close(self) -> None:
        """Nothing: the workers end their processes."""


def _known(run: _Run, kind: StateType | None, message: str) -> EngineState:
    if kind is None or kind in _LOST:
        word = "its flow run is gone" if kind is None else f"its flow run is {kind.value}"
        return EngineState("lost", f"{word}: {message}" if message else word)
    if kind in _OVER:
        return EngineState("ended", message if kind == StateType.FAILED else "")
    if kind == StateType.PENDING:
        run.pending_since = run.pending_since or time.monotonic()
        if time.monotonic() - run.pending_since > _PENDING_SECONDS:
            return EngineState("lost", f"pending for {_PENDING_SECONDS:g} s")
    return EngineState("running" if kind == StateType.RUNNING else "waiting")


def _tag(run_key: str) -> str:
    return f"encore-run-{run_key}"


def _ask(call: Callable[[SyncPrefectClient], Any], *, later: str | None = None) -> Any:
    def ask() -> Any:
        with get_client(sync_client=True) as client:
            return call(client)

    return best_effort(ask, later=later)


def _state_of(client: SyncPrefectClient, run_id: UUID) -> tuple[StateType | None, str]:
    try:
        state = client.read_flow_run(run_id).state
    except ObjectNotFound:
        return None, ""
    return (state.type, state.message or "") if state else (StateType.SCHEDULED, "")


def _cancel(client: SyncPrefectClient, run_id: UUID) -> None:
    kind, _ = _state_of(client, run_id)
    if kind == StateType.SCHEDULED:
        client.set_flow_run_state(run_id, Cancelled(message="The run needs no further engine."))
    elif kind in _LIVE:
        client.set_flow_run_state(run_id, Cancelling(message="Stopped by the run's parent."))
