"""Make a function a flow: name its runs, report a failure, wait for the server at the end."""

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

from encore.core.folder_watches import sending_studies
from tasks.notify import notify_of_failure
from tasks.server_calls import begin_flow_run, silence_outage_logs, wait_for_server

Parameters = ParamSpec("Parameters")

#: Fields of a config or a flow that name the study, the first one that is set.
_STUDY_FIELDS = ("study", "ratings", "out")


def study_flow(
    name: str, *, stage: str
) -> Callable[[Callable[Parameters, State]], Flow[Parameters, State]]:
    """Make a function a flow.

    Before it returns or fails it waits for a Prefect server that is away: Prefect's own call of the
    final state would otherwise raise after a minute, and the run would stay Running.

    Args:
        name: Name of the flow on Prefect's pages.
        stage: Name of the stage in the names of its runs, e.g. ``my-study: rate``.
    """

    def decorate(function: Callable[Parameters, State]) -> Flow[Parameters, State]:
        @functools.wraps(function)
        def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> State:
            begin_flow_run()
            silence_outage_logs()
            try:
                with sending_studies():
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
    """Return a flow run's name: study, or the judge that is served, stage, recipe."""
    paths = [
        _value(fields, name)
        for fields in (parameters, parameters.get("config"))
        for name in _STUDY_FIELDS
    ]
    if judge := _value(parameters.get("config"), "judge") if not any(paths) else None:
        paths = [_value(judge, "model")]
    study = Path(next((path for path in paths if path), ".")).resolve().name
    recipe = parameters.get("recipe")
    name = f"{study}: {stage}"
    return name if recipe is None else f"{name} {_value(recipe, 'name') or recipe}"


def _value(fields: Any, name: str) -> Any:
    return fields.get(name) if isinstance(fields, Mapping) else getattr(fields, name, None)
