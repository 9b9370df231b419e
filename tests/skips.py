"""Skips that CI allows, with their reasons.

A test skips itself where something that it needs is missing: a browser, a GPU, real data. That is
right on a user's machine, but a CI run that skips every browser test says nothing about pages.
With ENCORE_STRICT_SKIPS=1 (`.ci/run`, `make test-full`) a skip fails its test, unless its reason
is in `ALLOWED_SKIPS`.
"""

from __future__ import annotations

import os
import re

import pytest

STRICT_VARIABLE = "ENCORE_STRICT_SKIPS"
#: A pattern for the reason of a skip: why CI cannot provide what the test needs.
ALLOWED_SKIPS = {
    r"needs an accelerator": "the machines of CI have no GPU",
    r"flash attention needs a GPU": "the machines of CI have no GPU",
    r"Docker Compose 2 is not installed": "Debian's own packages do not have it",
    r"real data \(\.\./shared/data\) is not there": "its licences do not let us ship it",
    r"ENCORE_PYRIT_WHEEL names no wheel of pyrit": "its texts are not ours to ship",
    r"python3\.12 is not installed": "a trainer's client needs it, and ENCORE does not",
    r"the pins are complete for Linux only": "other systems install without the pins",
}


def is_allowed(reason: str) -> bool:
    """Return True if tests may be skipped for this reason everywhere."""
    return any(re.search(pattern, reason) for pattern in ALLOWED_SKIPS)


def fail_unknown_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Turn a skip into a failure if skips are strict and its reason is not in the table.

    An expected failure (`xfail`), which pytest reports as skipped too, stays as it is.
    """
    is_strict = os.environ.get(STRICT_VARIABLE) == "1"
    if not (is_strict and report.skipped) or hasattr(report, "wasxfail"):
        return
    reason = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
    if not is_allowed(reason):
        report.outcome = "failed"
        report.longrepr = (
            f"{reason}\n{STRICT_VARIABLE}=1 allows no skip for this reason. Install what is "
            "missing (on Debian: .ci/packages), or add the reason to tests/skips.py."
        )
