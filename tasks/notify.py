"""Send a message when a flow run fails, through a notification block of the Prefect server."""

from __future__ import annotations

import os
from typing import Any

from prefect.blocks.core import Block
from prefect.client.schemas.objects import FlowRun, State
from prefect.flows import Flow
from prefect.logging.loggers import flow_run_logger
from prefect.utilities.urls import url_for

#: Name of the block as TYPE/NAME, e.g. ``slack-webhook/encore``. Unset: no message.
BLOCK_VARIABLE = "ENCORE_NOTIFY_BLOCK"


def notify_of_failure(flow: Flow[..., Any], flow_run: FlowRun, state: State[Any]) -> None:
    """Send study, stage, message and a link to the run's page. Log one line if that fails.

    A hook of Prefect for runs that failed or crashed: its arguments are given by name. What a block
    raises may hold its address, which is a secret: only the error's type is logged.
    """
    block_name = os.environ.get(BLOCK_VARIABLE)
    if not block_name or flow_run.parameters.get("engine"):  # its parent sends a message
        return
    body = f"{state.name}: {state.message}"
    if page := url_for(flow_run):
        body += f"\n{page}"
    try:
        import prefect.blocks.notifications  # noqa: F401  # registers the types of blocks

        load: Any = Block.load  # Prefect's types leave out `_sync`
        block = load(block_name, _sync=True)
        block.notify(body, subject=f"ENCORE {flow_run.name}", _sync=True)
    except Exception as error:  # noqa: BLE001  # any service may be behind the block
        flow_run_logger(flow_run, flow).warning(
            "No message was sent: block %s of %s raised %s; check it on the Prefect server's page "
            "Blocks",
            *(block_name, BLOCK_VARIABLE, type(error).__name__),
        )
