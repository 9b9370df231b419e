"""Run a flow as a command: `--help`, one line for an expected error, the exit codes of `encore`."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any, NoReturn

import httpx
import typer
from prefect.client.schemas.objects import State
from prefect.flows import Flow
from prefect.settings import (
    PREFECT_API_URL,
    PREFECT_SERVER_ALLOW_EPHEMERAL_MODE,
    PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS,
    temporary_settings,
)

from encore.cli.output import fail, say
from encore.errors import EncoreError
from encore.settings import quiet_environment

#: A temporary server needs 8 to 17 s, and more on a busy machine; Prefect's own limit is 20.
_SERVER_START_SECONDS = 180
_ANSWER_SECONDS = 20


class _InterruptedError(EncoreError):
    """Ctrl-C or SIGTERM."""

    exit_code = 130

    def __init__(self) -> None:
        super().__init__("interrupted; finished work is kept, the same command continues")


def run_flow(flow: Flow[..., Any], **parameters: Any) -> None:
    """Run a flow to its end in this process and say how it ended.

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
        try:
            state: State[Any] = flow(**parameters, return_state=True)
        except KeyboardInterrupt as error:
            raise _InterruptedError from error
    if state.is_completed():
        say(f"{flow.name}: {state.message}")
        return
    reason = state.result(raise_on_failure=False)
    if isinstance(reason, EncoreError):
        raise reason
    raise EncoreError(f"{flow.name}: {state.message}")


def run_command(main: Callable[..., None]) -> NoReturn:
    """Parse the command line for ``main`` and exit: 0, 1 error, 2 usage, 3 incomplete, 130."""
    quiet_environment(os.environ)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    try:
        app()
    except EncoreError as error:
        _exit(str(error), exit_code=error.exit_code)
    sys.exit(0)


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


def _exit(message: str, *, exit_code: int) -> NoReturn:
    fail(message)
    sys.exit(exit_code)
