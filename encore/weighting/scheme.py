"""What a weighting scheme is: evidence about rules in, a weight vector out."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from encore.errors import InputError

if TYPE_CHECKING:
    from encore.weighting.evidence import Evidence
    from encore.weighting.vector import WeightVector

DEFAULT_TAU = 2.0
DEFAULT_K = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemeOptions:
    """Parameters of all schemes; each takes those that it declares.

    Attributes:
        tau: Temperature: large approaches uniform, small the rule of lowest entropy. The paper's
            default is 2.
        seed: Of schemes that draw by chance.
        k: Number of rules to select; the paper's appendix on rule selection takes 5.
        rule: The one rule of scheme ``single``.
    """

    tau: float = DEFAULT_TAU
    seed: int = 0
    k: int = DEFAULT_K
    rule: str | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.tau) and self.tau > 0):
            raise InputError(f"--tau {self.tau}: expected a finite number above 0 (the paper: 2)")
        if self.seed < 0:
            raise InputError(f"--seed {self.seed}: expected a whole number, 0 or above")
        if self.k < 1:
            raise InputError(f"--k {self.k}: expected at least one rule (the paper: 5)")


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightingScheme:
    """A way to weigh rules.

    A scheme gives a rule the same weight wherever it stands among the rules. A scheme that uses
    labels takes them from `Evidence.read_pairs` alone: what it is tested on is held out there.

    Attributes:
        name: As on the command line.
        summary: One line on what it does.
        uses_labels: Whether people's preferences enter, so that accuracy on them is flattered.
        uses_benchmark: Whether a benchmark's answers enter, so that its score is flattered.
        options: The fields of `SchemeOptions` that it takes.
        weigh: The scheme itself.
    """

    name: str
    summary: str
    uses_labels: bool
    uses_benchmark: bool
    options: tuple[str, ...]
    weigh: Callable[[Evidence, SchemeOptions], WeightVector]

    @property
    def leakage(self) -> str:
        """What it sees that accuracy is measured with, for a table."""
        return leakage(uses_labels=self.uses_labels, uses_benchmark=self.uses_benchmark)


def leakage(*, uses_labels: bool, uses_benchmark: bool) -> str:
    """The leakage flag in words: what a scheme sees of the answers it is measured by."""
    seen = [
        name
        for name, is_seen in (("labels", uses_labels), ("benchmark", uses_benchmark))
        if is_seen
    ]
    return " and ".join(seen) or "none"
