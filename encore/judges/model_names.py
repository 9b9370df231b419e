"""Compare the name of the model in an answer with the name of the judge that was asked."""

from __future__ import annotations

import shlex
from typing import Any

from encore.judges.judge_options import JudgeConfig

#: Longest name of a model that is proposed as an option.
_MAX_LENGTH = 200


def is_name_of(name: Any, model: str) -> bool:
    """Return True if a server's name of a model is the judge's with another prefix or a date.

    >>> is_name_of("openai/gpt-4o-2024-11-20", "gpt-4o"), is_name_of("gpt-4", "gpt-4o")
    (True, False)
    """
    if not isinstance(name, str):
        return False
    last_name, last_model = name.rpartition("/")[2], model.rstrip("/").rpartition("/")[2]
    return name.startswith(model) or (bool(last_model) and last_name.startswith(last_model))


def advice_on_name(name: Any, config: JudgeConfig) -> str:
    """Return what the user can do about an answer of another model."""
    if not isinstance(name, str) or not name.isprintable() or len(name) > _MAX_LENGTH:
        return "check --judge and --base-url"
    names = [*config.served_models, name]
    options = " ".join(f"--served-model {shlex.quote(accepted)}" for accepted in names)
    return f"if that is your judge, add {options}; else check --judge and --base-url"
