"""Run a flow as a command: options from its configs, exit codes as those of `encore`."""

from __future__ import annotations

import functools
import inspect
import os
import re
import sys
from typing import Any, NoReturn

import httpx
from prefect import settings
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.flows import Flow

from encore.core.command_parser import run_main, single_command
from encore.core.errors import EncoreError
from encore.core.settings import prepare_environment
from encore.core.terminal import say
from tasks.tracking.store_uri import hide_secrets

#: A temporary server needs 8 to 17 s, and more on a busy machine; Prefect's own limit is 20.
_SERVER_START_SECONDS = 180
_ANSWER_SECONDS = 20
_MAX_ANSWER_LENGTH = 200


def run_command(flow: Flow[..., State[Any]]) -> NoReturn:
    """Parse the command line for a flow, run it and exit, as `run_main` does."""

    @functools.wraps(flow.fn)
    def call(**parameters: Any) -> None:
        run_flow(flow, **parameters)

    call.__signature__ = inspect.signature(flow.fn)  # type: ignore[attr-defined]
    spec = sys.modules["__main__"].__spec__
    call_main(call, name=spec.name if spec else flow.fn.__module__)


def call_main(call: Any, *, name: str) -> NoReturn:
    """Parse the command line for a function of configs, call it and exit."""
    prepare_environment(os.environ)
    run_main(single_command(call, name=f"python -m {name}"))


def run_flow(flow: Flow[..., State[Any]], **parameters: Any) -> Any:
    """Run a flow to its end in this process, say how it ended, and return its result.

    Raises:
        EncoreError: The flow did not complete. The command ends with the error's exit code.
    """
    check_server()
    with settings.temporary_settings(
        set_defaults={
            settings.PREFECT_SERVER_ALLOW_EPHEMERAL_MODE: True,
            settings.PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS: _SERVER_START_SECONDS,
        }
    ):
        try:
            state: State[Any] = flow(**parameters, return_state=True)
        except httpx.TransportError as error:  # Prefect's own call, after a minute of attempts
            raise EncoreError(
                "the Prefect server went away and was not told how the run ended; finished work "
                "is kept, the same command continues"
            ) from error
    if state.is_completed():
        say(f"{flow.name}: {state.message}")
        return state.result()
    reason = state.result(raise_on_failure=False)
    if isinstance(reason, EncoreError | OSError):
        raise reason
    raise EncoreError(f"{flow.name}: {state.message}")


def check_server() -> None:
    """Check that a Prefect server answers at PREFECT_API_URL, if it is set.

    Raises:
        EncoreError: No service answers, or one that is no Prefect server.
    """
    api_url = settings.PREFECT_API_URL.value()
    if not api_url:
        return
    public_url = hide_secrets(api_url, uri=api_url)
    http_settings = {"timeout": httpx.Timeout(_ANSWER_SECONDS)}
    try:
        with (
            settings.temporary_settings(updates={settings.PREFECT_CLIENT_MAX_RETRIES: 0}),
            get_client(httpx_settings=http_settings, sync_client=True) as client,
        ):
            version = str(client.api_version())
    except httpx.TransportError as error:
        reason = hide_secrets(str(error) or type(error).__name__, uri=api_url)
        raise EncoreError(
            f"Prefect server {public_url}: it does not answer ({reason}); start it "
            "with `make up` or `prefect server start`, or unset PREFECT_API_URL to run without one"
        ) from error
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        version = str(error).partition("\n")[0]
    if not re.match(r"\d+\.\d+", version):
        raise EncoreError(
            f"PREFECT_API_URL {public_url}: this is not the API of a Prefect server "
            f"({hide_secrets(version, uri=api_url)[:_MAX_ANSWER_LENGTH]}); expected an address "
            "such as http://127.0.0.1:4200/api, and PREFECT_API_AUTH_STRING where it wants a "
            "password; correct it, or unset it to run without a server"
        )
