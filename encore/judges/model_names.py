"""Compare the name of the model in an answer with the name of the judge that was asked."""

from __future__ import annotations

import re
import shlex
from typing import Any

from encore.judges.judge_options import JudgeConfig

#: What may follow a model's name: a date, a number of four digits, a version, or how new it is.
_RELEASE = re.compile(r"[-@:_](?:\d{4}(?:-?\d{2}-?\d{2})?|v\d[\d.]*|latest)(?:-preview)?|-preview")
#: Longest name of a model that is proposed as an option.
_MAX_LENGTH = 200


def is_name_of(name: Any, model: str) -> bool:
    """Return True if a server's name of a model is the judge's with another prefix or a release.

    A name that merely begins like the judge's is another model: it needs `--served-model`.

    >>> is_name_of("openai/gpt-4o-2024-11-20", "gpt-4o"), is_name_of("gpt-4o-mini", "gpt-4o")
    (True, False)
    """
    if not isinstance(name, str):
        return False
    last_name, last_model = name.rpartition("/")[2], model.rstrip("/").rpartition("/")[2]
    if name == model or not last_model or not last_name.startswith(last_model):
        return name == model
    rest_of_name = last_name.removeprefix(last_model)
    return not rest_of_name or _RELEASE.fullmatch(rest_of_name) is not None


def advice_on_name(name: Any, config: JudgeConfig) -> str:
    """Return what the user can do about an answer of another model."""
    if not isinstance(name, str) or not name.isprintable() or len(name) > _MAX_LENGTH:
        return "check --judge and --base-url"
    names = [*config.served_models, name]
    options = " ".join(f"--served-model {shlex.quote(accepted)}" for accepted in names)
    return f"if that is your judge, add {options}; else check --judge and --base-url"
