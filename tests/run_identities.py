"""Compare identities of runs, so that a test can change one ingredient at a time.

A change that alters two parts at once would hide that one of them is not in the run's key.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from encore.runs.identity import differences, run_key_of


def differing_parts(first: Mapping[str, Any], second: Mapping[str, Any]) -> set[str]:
    """Return the paths of the parts that differ; the two keys differ exactly if there are any."""
    paths = {path for path, _, _ in differences(first, second)}
    assert (run_key_of(first) != run_key_of(second)) == bool(paths)
    return paths
