"""What encore's configs use of pydantic, for a bare machine: attributes and defaults, no checks.

The measurement on a GPU has to run where only torch, transformers and a few more are installed.
Nothing is validated there because nothing comes from outside.
"""

from __future__ import annotations

import importlib.util
import sys
import types
from collections.abc import Callable
from typing import Any


class _BaseModel:
    def __init__(self, **values: Any) -> None:
        for name in type(self).__annotations__:
            setattr(self, name, values.get(name, getattr(type(self), name, None)))


def _field(*, default: Any = None, **_constraints: Any) -> Any:
    return default


def _passes(*_arguments: Any, **_options: Any) -> Callable[[Any], Any]:
    return lambda function: function


def install_if_missing() -> None:
    """Stand in for pydantic in this process if it is not installed."""
    if importlib.util.find_spec("pydantic") is not None:
        return
    module = types.ModuleType("pydantic")
    module.__dict__.update(
        BaseModel=_BaseModel,
        ConfigDict=dict,
        Field=_field,
        field_validator=_passes,
        model_validator=_passes,
    )
    sys.modules["pydantic"] = module
