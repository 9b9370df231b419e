"""What a weighting scheme is: statistics of rules in, a weight vector out."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from encore.errors import InputError
from encore.statistics import RuleStats
from encore.weighting.vector import WeightVector


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemeOptions:
    """Parameters of all schemes; each takes those that it declares.

    Attributes:
        tau: Temperature: large approaches uniform, small the rule of lowest entropy. The paper's
            default is 2.
    """

    tau: float = 2.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.tau) and self.tau > 0):
            raise InputError(f"--tau {self.tau}: expected a finite number above 0 (the paper: 2)")


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightingScheme:
    """A way to weigh rules.

    Attributes:
        name: As on the command line.
        summary: One line on what it does.
        uses_labels: Whether people's preferences enter, so that accuracy on them is flattered.
        options: The fields of `SchemeOptions` that it takes.
        weigh: The scheme itself.
    """

    name: str
    summary: str
    uses_labels: bool
    options: tuple[str, ...]
    weigh: Callable[[Sequence[RuleStats], SchemeOptions], WeightVector]
