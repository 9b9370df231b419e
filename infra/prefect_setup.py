"""Set up a Prefect server for flows: environment, work pools, deployments, crash detection."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from encore.core.errors import InputError
from encore.core.settings import PROCESS_ENVIRONMENT

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.events.schemas.automations import AutomationCore

ROOT = Path(__file__).resolve().parents[1]
LOOPBACK = "127.0.0.1"
#: Work pools: one for flows that plan and ask judges, one for what computes on a GPU.
COORDINATOR_POOL, ENGINE_POOL = "encore", "encore-gpu"
AUTOMATION = "encore: lost flow runs are Crashed"
PoolType = Literal["process", "kubernetes"]
#: Flow runs send a heartbeat every 30 s (infra/prefect.yaml). Five missing ones outlast a link
#: that is cut for a minute.
SILENCE = timedelta(seconds=150)


def prefect_environment(
    home: Path, *, port: int, environ: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Return the environment of a server on loopback that writes under one folder.

    The folder is created. PREFECT_HOME alone moves neither results nor the memo store nor the pages
    of the UI, which would be written into the installed package. Of the caller's settings of
    Prefect, only those of the server's database are kept.
    """
    home.mkdir(parents=True, exist_ok=True)
    kept = {
        name: value
        for name, value in environ.items()
        if not name.startswith("PREFECT_") or name.startswith("PREFECT_SERVER_DATABASE_")
    }
    return {
        **PROCESS_ENVIRONMENT,
        **kept,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{environ.get('PATH', os.defpath)}",
        "PREFECT_HOME": str(home),
        "PREFECT_RESULTS_LOCAL_STORAGE_PATH": str(home / "storage"),
        "PREFECT_SERVER_MEMO_STORE_PATH": str(home / "memo.toml"),
        "PREFECT_SERVER_UI_STATIC_DIRECTORY": str(home / "pages"),
        "PREFECT_SERVER_UI_API_URL": f"http://{LOOPBACK}:{port}/api",
    }


def server_command(port: int) -> list[str]:
    """Return the command that starts a Prefect server on loopback (see `serve`)."""
    return [sys.executable, "-m", "infra.stack", "server", "--port", str(port)]


def serve(*, host: str = LOOPBACK, port: int = 4200) -> None:
    """Run a Prefect server in the foreground that waits for locks and for heartbeats."""
    from prefect.cli import app

    _lock_before_reading()
    asyncio.run(_expect_heartbeats_from_now_on())
    sys.argv = ["prefect", "server", "start", "--host", host, "--port", str(port)]
    app()


def _lock_before_reading() -> None:
    """Have each transaction on SQLite wait for the write lock when it begins.

    Prefect begins most of them without. One that reads, and writes after another has written, then
    fails at once, whatever the timeout: with three idle workers, one click in ten on Run was
    answered with 503, and the log filled with "database is locked".
    """
    from prefect.server.database.configurations import AioSqliteConfiguration

    begin = AioSqliteConfiguration.begin_transaction

    def begin_with_lock(self: AioSqliteConfiguration, session: Any, **_: bool) -> Any:
        return begin(self, session, with_for_update=True)

    # Prefect has no setting for this.
    AioSqliteConfiguration.begin_transaction = begin_with_lock  # type: ignore[method-assign, assignment]


async def _expect_heartbeats_from_now_on() -> None:
    """Move the time of each flow run's next heartbeat into the future.

    The server stores when it expects the next heartbeat of each flow run. After it was away, that
    time is over for live runs too, and the automation would mark them Crashed at once.
    """
    import sqlalchemy
    from prefect.server.database import provide_database_interface

    db = provide_database_interface()
    await db.create_db()
    async with db.session_context(begin_transaction=True) as session:
        until = datetime.now(UTC) + SILENCE
        await session.execute(sqlalchemy.update(db.AutomationBucket).values(end=until))


def register(*, pool_type: PoolType = "process", job_template: Path | None = None) -> None:
    """Create or update work pools, the automation and deployments on the server of PREFECT_API_URL.

    Args:
        pool_type: Type of the work pools: flow runs are processes or Kubernetes jobs.
        job_template: A work pool's base job template, a JSON file. Default: the pool type's own.

    Raises:
        InputError: A pool of another type exists, or a deployment cannot be registered.
    """
    from prefect.client.orchestration import get_client

    template = None if job_template is None else json.loads(job_template.read_text("utf-8"))
    with get_client(sync_client=True) as client:
        for name in (COORDINATOR_POOL, ENGINE_POOL):
            _register_pool(client, name, pool_type, template)
        if not client.read_automations_by_name(AUTOMATION):
            client.create_automation(crash_automation())
    command = [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all"]
    command += ["--prefect-file", "infra/prefect.yaml"]
    environ = {"ENCORE_ROOT": str(ROOT), **os.environ}
    done = subprocess.run(
        command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        output = done.stdout + done.stderr
        raise InputError(f"infra/prefect.yaml: cannot register the deployments: {output}")


def _register_pool(
    client: SyncPrefectClient, name: str, pool_type: str, template: dict[str, Any] | None
) -> None:
    """Create a work pool, or update its job template. Limits that people set stay."""
    from prefect.client.schemas.actions import WorkPoolCreate, WorkPoolUpdate
    from prefect.exceptions import ObjectNotFound
    from prefect.workers.utilities import get_default_base_job_template_for_infrastructure_type

    try:
        pool = client.read_work_pool(name)
    except ObjectNotFound:
        default_template = asyncio.run(
            get_default_base_job_template_for_infrastructure_type(pool_type)
        )
        client.create_work_pool(
            WorkPoolCreate(
                name=name, type=pool_type, base_job_template=template or default_template or {}
            )
        )
        return
    if pool.type != pool_type:
        raise InputError(
            f"work pool {name} has the type {pool.type}, not {pool_type}: delete it, or register "
            f"with --pool-type {pool.type}"
        )
    if template is not None:
        client.update_work_pool(name, WorkPoolUpdate(base_job_template=template))


def crash_automation() -> AutomationCore:
    """Return the automation that marks a flow run Crashed if its heartbeats stop for `SILENCE`."""
    from prefect.client.schemas.objects import StateType
    from prefect.events.actions import ChangeFlowRunState
    from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture
    from prefect.events.schemas.events import ResourceSpecification

    return AutomationCore(
        name=AUTOMATION,
        description=f"No heartbeat came for {SILENCE.total_seconds():g} s.",
        trigger=EventTrigger(
            after={"prefect.flow-run.heartbeat"},
            expect={"prefect.flow-run.*"},  # any event shows that the run is alive
            match=ResourceSpecification({"prefect.resource.id": "prefect.flow-run.*"}),
            for_each={"prefect.resource.id"},
            posture=Posture.Proactive,
            threshold=1,
            within=SILENCE,
        ),
        actions=[
            ChangeFlowRunState(
                state=StateType.CRASHED,
                message=f"No heartbeat for {SILENCE.total_seconds():g} s: its process or its "
                "machine is gone. Retry does what is missing.",
            )
        ],
    )
