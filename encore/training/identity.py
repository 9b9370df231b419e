"""What a training run is: a key that follows from its settings and data, and from no machine."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from encore.errors import InputError

_MISSING = "nothing"


def canonical_json(value: Any) -> str:
    """The one way to write a value as JSON that digests are taken of."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def first_difference(recorded: Any, wanted: Any) -> str | None:
    """The first place where two JSON values differ, with both; None where they are equal.

    Example: ``config.learning_rate is 2e-05 there and 1e-05 here``.
    """
    here = json.loads(canonical_json(wanted))  # tuples and paths become what JSON makes of them
    there = json.loads(canonical_json(recorded))
    return next(_differences(there, here, name=""), None)


def refuse_other_identity(
    recorded: Mapping[str, Any], wanted: Mapping[str, Any], *, place: str
) -> None:
    """Refuse to continue what another configuration began.

    Args:
        recorded: What the run on disk is.
        wanted: What is asked for now.
        place: Which file or folder holds the former, for the message.

    Raises:
        InputError: They differ: the first place, both values, what to do.
    """
    difference = first_difference(recorded, wanted)
    if difference is not None:
        raise InputError(
            f"{place} belongs to another training run: {difference}; give the same settings to "
            "continue it, or another --out to train anew"
        )


def _differences(there: Any, here: Any, *, name: str) -> Iterator[str]:
    if isinstance(there, dict) and isinstance(here, dict):
        for key in (*there, *(key for key in here if key not in there)):
            inner = f"{name}.{key}" if name else str(key)
            yield from _differences(there.get(key, _MISSING), here.get(key, _MISSING), name=inner)
    elif there != here:
        yield f"{name} is {_shown(there)} there and {_shown(here)} here"


def _shown(value: Any) -> str:
    return value if value == _MISSING else json.dumps(value, ensure_ascii=False)
