"""Compare JSON with recorded golden values, or record it.

Golden values lie in recorded/NAME.json. `ENCORE_RECORD_GOLDEN=1 pytest tests/golden -k NAME` writes
them again and fails every test that it wrote for, so that a recording run is never mistaken for a
passing one. Rewrite a file only for a finding that the commit names. A missing file fails its test.
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
#: Golden files that this process wrote; the fixture `fail_while_recording` empties it.
RECORDED_NAMES: list[str] = []

#: Floats that follow from the input by arithmetic.
EXACT = 1e-9
#: Losses, and results of solvers or of sums in single precision.
SOLVED = 1e-5
#: Values computed from the golden study's ridge probe. It has fewer responses than dimensions, so
#: it amplifies the rounding of a CPU's kernels: one commit on two CPUs differed by 3e-5, and on
#: one CPU two commits agree to `SOLVED`.
PROBED = 2e-4
#: The same after 20 steps of training from that probe (measured: losses 1e-3, R² 4e-3).
TRAINED_FROM_PROBE = 1e-2
#: A tolerance: the key must be there, with any value (versions, times, paths).
ANY = math.inf

Tolerances = Mapping[str, float]


def assert_same(actual: Any, golden: Any, tolerances: Tolerances | None = None) -> None:
    """Compare JSON values: text, keys, counts and None exactly, floats within a tolerance.

    Args:
        actual: The value that the program gives now.
        golden: The recorded value.
        tolerances: Tolerance by a pattern of key paths, such as ``rows.*.score``. The last pattern
            that matches counts; without one, `EXACT`. Relative for floats above 1, absolute
            below. `ANY` accepts every value of every type.
    """
    differences: list[str] = []
    _compare(actual, golden, "", tolerances or {}, differences)
    assert not differences, (
        f"{len(differences)} differences:\n"
        + "\n".join(differences[:40])
        + "\nIf you intend them: CONTRIBUTING.md, 'Golden files'"
    )


def check_golden(name: str, actual: Any, tolerances: Tolerances | None = None) -> None:
    """Compare a value with recorded/NAME.json, or record it if recording is on.

    What equals its recorded value within its tolerance is recorded as it was, so that the diff of a
    recording shows nothing but changes.
    """
    actual = as_json_values(actual)
    if is_recording() and (RECORDED / f"{name}.json").exists():
        actual = _keep_same(actual, read_golden(name), "", tolerances or {})
    assert_same(actual, read_or_record_golden(name, actual), tolerances)


def check_no_name_lost(name: str, actual: Mapping[str, Sequence[str]]) -> None:
    """Check that all names in recorded/NAME.json are still there; new ones are allowed."""
    golden: dict[str, list[str]] = read_or_record_golden(name, actual)
    missing = {key: sorted(set(names) - set(actual.get(key, ()))) for key, names in golden.items()}
    missing = {key: names for key, names in missing.items() if names}
    assert not missing, f"{name}: lost {missing}"


def read_or_record_golden(name: str, actual: Any) -> Any:
    """Read the recorded value; if recording is on, write it first (the test then fails)."""
    if not is_recording():
        return read_golden(name)
    RECORDED.mkdir(exist_ok=True)
    (RECORDED / f"{name}.json").write_text(compact_json(actual), encoding="utf-8")
    RECORDED_NAMES.append(name)
    return as_json_values(actual)


def is_recording() -> bool:
    """Return True if golden values are written instead of compared."""
    return os.environ.get(RECORD_VARIABLE) == "1"


def mask_keys_and_paths(value: Any) -> Any:
    """Replace every run's key in texts by KEY, and temporary paths by PATH.

    Keys are compared in one file only, `run-keys.json`.
    """
    if isinstance(value, dict):
        return {key: mask_keys_and_paths(item) for key, item in value.items()}
    if isinstance(value, list):
        return [mask_keys_and_paths(item) for item in value]
    if isinstance(value, str):
        return "PATH" if "/pytest-of-" in value else re.sub(r"\b[0-9a-f]{16}\b", "KEY", value)
    return value


def read_golden(name: str) -> Any:
    """Read a recorded value."""
    return json.loads((RECORDED / f"{name}.json").read_text(encoding="utf-8"))


def as_json_values(value: Any) -> Any:
    """Convert a value as writing and reading JSON does: tuples become lists, NaN is an error."""
    return json.loads(json.dumps(value, allow_nan=False))


def compact_json(value: Any) -> str:
    """Write JSON with a line for every item of the two outer levels, so that diffs are readable."""
    value = as_json_values(value)
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


def _tolerance(key_path: str, tolerances: Tolerances) -> float:
    matching = [
        tolerance for pattern, tolerance in tolerances.items() if fnmatchcase(key_path, pattern)
    ]
    return matching[-1] if matching else EXACT


def _compare(
    actual: Any, golden: Any, key_path: str, tolerances: Tolerances, differences: list[str]
) -> None:
    tolerance = _tolerance(key_path, tolerances)
    if tolerance == ANY:
        return
    if isinstance(golden, dict) and isinstance(actual, dict):
        if missing := sorted(set(golden) - set(actual)):
            differences.append(f"{key_path or 'top'}: lost {missing}")
        if new := sorted(set(actual) - set(golden)):
            differences.append(f"{key_path or 'top'}: new {new}")
        for key in golden.keys() & actual.keys():
            key_path_of_value = f"{key_path}.{key}" if key_path else key
            _compare(actual[key], golden[key], key_path_of_value, tolerances, differences)
    elif isinstance(golden, list) and isinstance(actual, list):
        if len(golden) != len(actual):
            differences.append(f"{key_path}: {len(actual)} items, golden {len(golden)}")
        for index, (actual_item, golden_item) in enumerate(zip(actual, golden, strict=False)):
            key_path_of_item = f"{key_path}.{index}" if key_path else str(index)
            _compare(actual_item, golden_item, key_path_of_item, tolerances, differences)
    elif not _same_value(actual, golden, tolerance):
        differences.append(f"{key_path}: {actual!r}, golden {golden!r} (tolerance {tolerance:g})")


def _keep_same(actual: Any, golden: Any, key_path: str, tolerances: Tolerances) -> Any:
    """Return the actual value with every part that equals its golden value replaced by that."""
    differences: list[str] = []
    _compare(actual, golden, key_path, tolerances, differences)
    if not differences:
        return golden
    prefix = f"{key_path}." if key_path else ""
    if isinstance(golden, dict) and isinstance(actual, dict):
        return {
            key: _keep_same(value, golden[key], f"{prefix}{key}", tolerances)
            if key in golden
            else value
            for key, value in actual.items()
        }
    if isinstance(golden, list) and isinstance(actual, list):
        kept = [
            _keep_same(actual_item, golden_item, f"{prefix}{index}", tolerances)
            for index, (actual_item, golden_item) in enumerate(zip(actual, golden, strict=False))
        ]
        return kept + actual[len(kept) :]
    return actual


def _same_value(actual: Any, golden: Any, tolerance: float) -> bool:
    are_numbers = all(
        isinstance(value, int | float) and not isinstance(value, bool) for value in (actual, golden)
    )
    if not are_numbers or (tolerance <= EXACT and not isinstance(golden, float)):
        return type(actual) is type(golden) and actual == golden
    if tolerance <= EXACT and not isinstance(actual, float):
        return False
    return abs(actual - golden) <= tolerance * max(1.0, abs(golden))
