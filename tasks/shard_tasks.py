"""Show each shard as a task run of the flow run that rates it: state, attempts, duration, error.

The task runs are for people. A thread of its own tells the server of them, at best effort, and the
rating never waits for it. What is done is read from files, never from task runs.
"""

from __future__ import annotations

import contextvars
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from queue import Full, Queue
from threading import Thread
from uuid import UUID, uuid4

import httpx
from prefect import Task
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import LogCreate
from prefect.client.schemas.objects import State
from prefect.context import FlowRunContext
from prefect.exceptions import PrefectException
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings
from prefect.states import Cancelled, Completed, Failed, Retrying, Running

from encore.core.errors import ShardClosedError
from encore.runs.run_files import Shard
from encore.runs.shard_runner import Job
from tasks.server_calls import best_effort, is_server_away, run_logger

logger = logging.getLogger(__name__)

#: Changes of state that wait to be told. Beyond this, a change is dropped.
_MAX_WAITING = 1000
#: Time for the last changes of state to be told, once the work is done.
_END_SECONDS = 10.0
_MAX_MESSAGE_CHARACTERS = 2000

_TASK: Task[[], None] = Task(fn=lambda: None, name="shard")


@dataclass(slots=True)
class _ShardTask:
    """Task run of one shard. ``is_created`` and ``has_failed`` are the sending thread's."""

    name: str
    id: UUID = field(default_factory=uuid4)
    num_attempts: int = 0
    is_created: bool = False
    has_failed: bool = False


@dataclass(slots=True)
class _ShardTasks:
    """Task runs of the shards that this flow run works on.

    Attributes:
        flow_run_id: Id of the flow run.
        changes: Changes of state that the server was not told of; None ends the thread.
        tasks: Task runs by shard index.
    """

    flow_run_id: UUID
    changes: Queue[tuple[_ShardTask, State] | None] = field(
        default_factory=lambda: Queue(_MAX_WAITING)
    )
    tasks: dict[int, _ShardTask] = field(default_factory=dict)

    @contextmanager
    def watch(self, job: Job, shard: Shard) -> Iterator[None]:
        """Tell how an attempt at a shard of a job begins, and how it ends with its file written."""
        task = self.tasks.setdefault(shard.index, _ShardTask(f"shard {shard.index}"))
        task.num_attempts += 1
        self._tell(task, Running() if task.num_attempts == 1 else Retrying())
        try:
            yield
        except BaseException as error:
            message = f"{type(error).__name__}: {error}"[:_MAX_MESSAGE_CHARACTERS]
            is_closed = isinstance(error, ShardClosedError)  # the budget is used up
            is_cancelled = job.cancelled.is_set() or is_closed or not isinstance(error, Exception)
            self._tell(
                task, Cancelled(message=message) if is_cancelled else Failed(message=message)
            )
            raise
        self._tell(task, Completed())

    def _tell(self, task: _ShardTask, state: State) -> None:
        with suppress(Full):
            self.changes.put_nowait((task, state))

    def send(self) -> None:
        """Tell the server of changes until the last one. This is the thread's function."""
        with (
            temporary_settings(updates={PREFECT_CLIENT_MAX_RETRIES: 0}),
            get_client(sync_client=True) as client,
        ):
            while (change := self.changes.get()) is not None:
                task, state = change
                send_change = partial(self._send_change, client, task, state)
                # `best_effort` looks whether the server is there, which takes longer than the call.
                if not is_server_away():
                    with suppress(httpx.HTTPError, PrefectException):
                        send_change()
                        continue
                if best_effort(send_change):
                    continue
                # While the server is away, only the end of a task that it shows waits, a failure,
                # and what comes after one.
                task.has_failed |= state.is_failed()
                if state.is_final() and (task.is_created or task.has_failed):
                    send = partial(self._send_with_client, task, state)  # this client may be closed
                    best_effort(send, retry_name=f"shard-task-{task.id}")

    def report_missing(self) -> None:
        """Log how many shards the pages do not show, as soon as the server can store the line."""
        tasks = self.tasks.values()
        num_missing = sum(not (task.is_created or task.has_failed) for task in tasks)
        if num_missing:
            message = (
                f"{num_missing} of {len(tasks)} shards of this run are not shown as task runs: the "
                "Prefect server was away; `encore status` lists what is done"
            )
            best_effort(partial(run_logger().warning, message), retry_name="missing-shard-tasks")

    def _send_with_client(self, task: _ShardTask, state: State) -> None:
        with get_client(sync_client=True) as client:
            self._send_change(client, task, state)

    def _send_change(self, client: SyncPrefectClient, task: _ShardTask, state: State) -> bool:
        if task.is_created:
            client.set_task_run_state(task.id, state, force=True)
        else:
            client.create_task_run(
                _TASK,
                self.flow_run_id,
                dynamic_key=str(task.id),
                id=task.id,
                name=task.name,
                state=state,
            )
            task.is_created = True
        if state.is_failed():  # the page of a task run shows its log, but not its state's message
            line = {
                "name": "encore.shard",
                "level": logging.ERROR,
                "message": f"{task.name}: {state.message}",
                "timestamp": state.timestamp,
                "flow_run_id": self.flow_run_id,
                "task_run_id": task.id,
            }
            client.create_logs([LogCreate.model_validate(line)])
        return True


@contextmanager
def shard_tasks() -> Iterator[Callable[[Job], Job]]:
    """Show the shards of jobs as task runs of the current flow run, while the context is open.

    The value returns a job whose shards are shown, given a job.
    """
    context = FlowRunContext.get()
    if context is None or context.flow_run is None:
        yield lambda job: job
        return
    task_runs = _ShardTasks(context.flow_run.id)
    sender = Thread(
        target=partial(contextvars.copy_context().run, task_runs.send),
        name="shard-tasks",
        daemon=True,
    )
    sender.start()
    try:
        yield lambda job: replace(job, watch=partial(task_runs.watch, job))
    finally:
        with suppress(Full):
            task_runs.changes.put(None, timeout=_END_SECONDS)
        sender.join(_END_SECONDS)
        task_runs.report_missing()
