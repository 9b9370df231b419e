"""How every flow is made: its runs are named, a failure is told, the server hears of the end."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ParamSpec

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.flows import Flow
from prefect.runtime import flow_run

from tasks.notify import notify_of_failure
from tasks.server import forget_waiting_calls, wait_for_server

Parameters = ParamSpec("Parameters")

#: Of a config or a flow, in this order: what says where the study is.
_STUDY_FIELDS = ("study", "ratings", "out")


def study_flow(
    name: str, *, stage: str
) -> Callable[[Callable[Parameters, State]], Flow[Parameters, State]]:
    """Make a function a flow.

    Before it returns or fails it waits for a Prefect server that is away: Prefect's own call of the
    final state would otherwise raise after a minute, and the run would stay Running.

    Args:
        name: Of the flow.
        stage: For the names of its runs, e.g. ``my-study: rate``.
    """

    def decorate(function: Callable[Parameters, State]) -> Flow[Parameters, State]:
        @functools.wraps(function)
        def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> State:
            forget_waiting_calls()
            try:
                state = function(*args, **kwargs)
            except Exception:
                wait_for_server()
                raise
            wait_for_server()
            return state

        # Prefect would look up the names of types in this module.
        run.__signature__ = inspect.signature(function, eval_str=True)  # type: ignore[attr-defined]
        return flow(
            name=name,
            flow_run_name=lambda: run_name(stage, flow_run.parameters),
            persist_result=False,
            result_serializer="json",  # of an error, which Prefect keeps; its default is pickle
            on_failure=[notify_of_failure],
            on_crashed=[notify_of_failure],
        )(run)

    return decorate


def run_name(stage: str, parameters: Mapping[str, Any]) -> str:
    """A flow run's name: study and stage, the recipe, which engine."""
    config = parameters.get("config")
    places = [_value(one, name) for one in (parameters, config) for name in _STUDY_FIELDS]
    study = Path(next((place for place in places if place), ".")).resolve().name
    recipe, engine = parameters.get("recipe"), parameters.get("engine")
    name = f"{study}: {stage}"
    if recipe is not None:
        name += f" {_value(recipe, 'name') or recipe}"
    return f"{name}, {engine.label}" if engine is not None else name


def _value(of: Any, name: str) -> Any:
    return of.get(name) if isinstance(of, Mapping) else getattr(of, name, None)
