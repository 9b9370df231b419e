"""Run a flow as a command: options from its configs, exit codes as those of `encore`."""

from __future__ import annotations

import functools
import os
from typing import Any, NoReturn

import httpx
from prefect.client.schemas.objects import State
from prefect.flows import Flow
from prefect.settings import (
    PREFECT_API_URL,
    PREFECT_SERVER_ALLOW_EPHEMERAL_MODE,
    PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS,
    temporary_settings,
)

from encore.errors import EncoreError
from encore.options import run_main, single_command
from encore.settings import prepare_environment
from encore.terminal import say

#: A temporary server needs 8 to 17 s, and more on a busy machine; Prefect's own limit is 20.
_SERVER_START_SECONDS = 180
_ANSWER_SECONDS = 20


def run_command(flow: Flow[..., Any]) -> NoReturn:
    """Parse the command line for a flow, run it and exit, as `encore.options.run_main` does."""

    @functools.wraps(flow.fn)
    def call(**parameters: Any) -> None:
        run_flow(flow, **parameters)

    call_main(call, name=flow.fn.__module__)


def call_main(call: Any, *, name: str) -> NoReturn:
    """The same for a function of configs."""
    prepare_environment(os.environ)
    run_main(single_command(call, name=f"python -m {name}"))


def run_flow(flow: Flow[..., Any], **parameters: Any) -> Any:
    """Run a flow to its end in this process, say how it ended, and return its result.

    Raises:
        EncoreError: It did not complete; its exit code is the command's.
    """
    _check_server()
    with temporary_settings(
        set_defaults={
            PREFECT_SERVER_ALLOW_EPHEMERAL_MODE: True,
            PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS: _SERVER_START_SECONDS,
        }
    ):
        state: State[Any] = flow(**parameters, return_state=True)
    if state.is_completed():
        say(f"{flow.name}: {state.message}")
        return state.result()
    reason = state.result(raise_on_failure=False)
    if isinstance(reason, EncoreError | OSError):
        raise reason
    raise EncoreError(f"{flow.name}: {state.message}")


def _check_server() -> None:
    url = PREFECT_API_URL.value()
    if not url:
        return
    try:
        httpx.get(f"{url.rstrip('/')}/health", timeout=_ANSWER_SECONDS)
    except httpx.TransportError as error:
        raise EncoreError(
            f"Prefect server {url}: it does not answer ({error}); start it with `prefect server "
            "start`, or unset PREFECT_API_URL to run without one"
        ) from error
