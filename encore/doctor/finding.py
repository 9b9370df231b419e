"""What a check found, what it expected, and what to do about the difference."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of the doctor's table. ``fail`` is something without which `encore` cannot work."""

    check: str
    found: str
    expected: str
    verdict: Verdict = "ok"
    next_step: str = ""


def is_broken(findings: Iterable[Finding]) -> bool:
    """Whether something required is missing or wrong; warnings do not count."""
    return any(finding.verdict == "fail" for finding in findings)
