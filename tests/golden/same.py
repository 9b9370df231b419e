"""Comparing what is there with what was recorded, and recording it.

Golden values lie in recorded/NAME.json. `ENCORE_RECORD_GOLDEN=1 pytest tests/golden -k NAME` writes
them anew and fails every test that it wrote for, so that a recording run is never mistaken for a
passing one. A file is rewritten only for a finding that the commit names; a file that is missing is
never made silently.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).parent / "recorded"
RECORD_VARIABLE = "ENCORE_RECORD_GOLDEN"
WRITTEN: list[str] = []

#: Floats that follow from the input by arithmetic.
EXACT = 1e-9
#: Losses, and what a solver or a sum in single precision ends with.
SOLVED = 1e-5
#: What follows from the golden study's ridge probe. It has fewer responses than hidden sizes, so it
#: amplifies the rounding of a CPU's kernels: one commit on two CPUs differed by 3e-5, and on one
#: CPU two commits agree to `SOLVED`.
PROBED = 2e-4
#: The same after 20 steps of training from that probe (measured: losses 1e-3, R² 4e-3).
TRAINED_FROM_PROBE = 1e-2
#: As a tolerance: present, but of any value (versions, times, places).
ANY = math.inf

Tolerances = Mapping[str, float]


def assert_same(actual: Any, golden: Any, tolerances: Tolerances | None = None) -> None:
    """Compare JSON values: text, keys, counts and None exactly, floats within a tolerance.

    Args:
        actual: What is there now.
        golden: What was recorded.
        tolerances: By a pattern for the place of a value, such as ``rows.*.score``; the last that
            fits counts, without one `EXACT`. Relative for floats beyond 1, absolute below; `ANY`
            takes every value, whatever its type.
    """
    differences: list[str] = []
    _compare(actual, golden, "", tolerances or {}, differences)
    assert not differences, f"{len(differences)} differences:\n" + "\n".join(differences[:40])


def check_golden(name: str, actual: Any, tolerances: Tolerances | None = None) -> None:
    """Compare with recorded/NAME.json, or write it where recording was asked for."""
    assert_same(as_json(actual), golden_or_record(name, actual), tolerances)


def check_kept(name: str, actual: Mapping[str, Sequence[str]]) -> None:
    """Every name recorded in recorded/NAME.json is still there; new ones may have come."""
    golden: dict[str, list[str]] = golden_or_record(name, actual)
    lost = {key: sorted(set(names) - set(actual.get(key, ()))) for key, names in golden.items()}
    lost = {key: names for key, names in lost.items() if names}
    assert not lost, f"{name}: lost {lost}"


def golden_or_record(name: str, actual: Any) -> Any:
    """What was recorded; or write it, where recording was asked for (the test fails at its end)."""
    if os.environ.get(RECORD_VARIABLE) != "1":
        return golden_of(name)
    RECORDED.mkdir(exist_ok=True)
    (RECORDED / f"{name}.json").write_text(compact_json(actual), encoding="utf-8")
    WRITTEN.append(name)
    return as_json(actual)


def masked(value: Any) -> Any:
    """The value with KEY for every run's key in its texts and PATH for temporary folders.

    Keys are compared in one place, `run-keys.json`.
    """
    if isinstance(value, dict):
        return {key: masked(item) for key, item in value.items()}
    if isinstance(value, list):
        return [masked(item) for item in value]
    if isinstance(value, str):
        return "PATH" if "/pytest-of-" in value else re.sub(r"\b[0-9a-f]{16}\b", "KEY", value)
    return value


def golden_of(name: str) -> Any:
    """What was recorded."""
    return json.loads((RECORDED / f"{name}.json").read_text(encoding="utf-8"))


def as_json(value: Any) -> Any:
    """The value as JSON would give it back: tuples are lists, NaN is refused."""
    return json.loads(json.dumps(value, allow_nan=False))


def compact_json(value: Any) -> str:
    """JSON with a line for every item of the two outer levels: small, and its diff is readable."""
    value = as_json(value)
    if isinstance(value, dict):
        lines = [f"{json.dumps(key)}: {_one_level(item)}" for key, item in value.items()]
        return "{\n" + ",\n".join(lines) + "\n}\n"
    return _one_level(value) + "\n"


def _one_level(value: Any) -> str:
    if isinstance(value, list) and value and not _is_scalar(value[0]):
        return "[\n" + ",\n".join(map(_dense, value)) + "\n]"
    if isinstance(value, dict) and any(not _is_scalar(item) for item in value.values()):
        lines = [f"{json.dumps(key)}: {_dense(item)}" for key, item in value.items()]
        return "{\n" + ",\n".join(lines) + "\n}"
    return _dense(value)


def _dense(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _is_scalar(value: Any) -> bool:
    return not isinstance(value, dict | list)


def _tolerance(place: str, tolerances: Tolerances) -> float:
    found = EXACT
    for pattern, tolerance in tolerances.items():
        if fnmatchcase(place, pattern):
            found = tolerance
    return found


def _compare(
    actual: Any, golden: Any, place: str, tolerances: Tolerances, differences: list[str]
) -> None:
    tolerance = _tolerance(place, tolerances)
    if tolerance == ANY:
        return
    if isinstance(golden, dict) and isinstance(actual, dict):
        if lost := sorted(set(golden) - set(actual)):
            differences.append(f"{place or 'top'}: lost {lost}")
        if new := sorted(set(actual) - set(golden)):
            differences.append(f"{place or 'top'}: new {new}")
        for key in golden.keys() & actual.keys():
            inside = f"{place}.{key}" if place else key
            _compare(actual[key], golden[key], inside, tolerances, differences)
    elif isinstance(golden, list) and isinstance(actual, list):
        if len(golden) != len(actual):
            differences.append(f"{place}: {len(actual)} items, golden {len(golden)}")
        for index, (now, then) in enumerate(zip(actual, golden, strict=False)):
            inside = f"{place}.{index}" if place else str(index)
            _compare(now, then, inside, tolerances, differences)
    elif not _same_value(actual, golden, tolerance):
        differences.append(f"{place}: {actual!r}, golden {golden!r} (tolerance {tolerance:g})")


def _same_value(actual: Any, golden: Any, tolerance: float) -> bool:
    numbers = all(
        isinstance(one, int | float) and not isinstance(one, bool) for one in (actual, golden)
    )
    if not numbers or (tolerance <= EXACT and not isinstance(golden, float)):
        return type(actual) is type(golden) and actual == golden
    if tolerance <= EXACT and not isinstance(actual, float):
        return False
    return abs(actual - golden) <= tolerance * max(1.0, abs(golden))
