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

from encore.core.errors import EncoreError
from encore.core.options import run_main, single_command
from encore.core.settings import prepare_environment
from encore.core.terminal import say
from tasks.tracking.store_uri import hide_secrets

#: A temporary server needs 8 to 17 s, and more on a busy machine; Prefect's own limit is 20.
_SERVER_START_SECONDS = 180
_ANSWER_SECONDS = 20
_LONGEST_FOUND = 200
#: The parameter that a parent gives to its engines' runs; no option of a command.
_OF_A_PARENT = "engine"


def run_command(flow: Flow[..., Any]) -> NoReturn:
    """Parse the command line for a flow, run it and exit, as `run_main` does."""

    @functools.wraps(flow.fn)
    def call(**parameters: Any) -> None:
        run_flow(flow, **parameters)

    every = inspect.signature(flow.fn)
    given = [one for name, one in every.parameters.items() if name != _OF_A_PARENT]
    call.__signature__ = every.replace(parameters=given)  # type: ignore[attr-defined]
    spec = sys.modules["__main__"].__spec__
    call_main(call, name=spec.name if spec else flow.fn.__module__)


def call_main(call: Any, *, name: str) -> NoReturn:
    """The same for a function of configs."""
    prepare_environment(os.environ)
    run_main(single_command(call, name=f"python -m {name}"))


def run_flow(flow: Flow[..., Any], **parameters: Any) -> Any:
    """Run a flow to its end in this process, say how it ended, and return its result.

    Raises:
        EncoreError: It did not complete; its exit code is the command's.
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
    """Look what answers at PREFECT_API_URL, if it is set.

    Raises:
        EncoreError: Nothing, or something that is no Prefect server.
    """
    if not (given := settings.PREFECT_API_URL.value()):
        return
    url = hide_secrets(given, uri=given)
    asking = {"timeout": httpx.Timeout(_ANSWER_SECONDS)}
    try:
        with (
            settings.temporary_settings(updates={settings.PREFECT_CLIENT_MAX_RETRIES: 0}),
            get_client(httpx_settings=asking, sync_client=True) as client,
        ):
            found = str(client.api_version())
    except httpx.TransportError as error:
        reason = hide_secrets(str(error) or type(error).__name__, uri=given)
        raise EncoreError(
            f"Prefect server {url}: it does not answer ({reason}); start it "
            "with `make up` or `prefect server start`, or unset PREFECT_API_URL to run without one"
        ) from error
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        found = str(error).partition("\n")[0]
    if not re.match(r"\d+\.\d+", found):
        raise EncoreError(
            f"PREFECT_API_URL {url}: this is not the API of a Prefect server "
            f"({hide_secrets(found, uri=given)[:_LONGEST_FOUND]}); expected an address such as "
            "http://127.0.0.1:4200/api, and PREFECT_API_AUTH_STRING where it wants a password; "
            "correct it, or unset it to run without a server"
        )
