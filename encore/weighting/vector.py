"""A weight vector over rules, on the simplex if it exists, and what it was made from."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from encore.versions import installed_version

#: Sum of weights may differ from 1 by this: rounding over thousands of rules stays far below.
_TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where ratings came from, as far as it is known; None where it is not.

    Attributes:
        run_key: The run of `encore rate`.
        judge: The judge.
        data_sha256: Digest of the run's preference pairs (`encore.data.pairs.data_digest`).
        rules_sha256: Digest of the run's rule texts and their order.
        ratings_sha256: SHA-256 over the sorted SHA-256 of the files that were read, one hex digest
            a line: the same for every name and order of the files.
        num_shards: Shards of the run's plan; 0 where there is no plan.
        num_missing_shards: Those that are not in it.
    """

    run_key: str | None = None
    judge: str | None = None
    data_sha256: str | None = None
    rules_sha256: str | None = None
    ratings_sha256: str | None = None
    num_shards: int = 0
    num_missing_shards: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """What stands behind one weight vector.

    Attributes:
        uses_labels: Whether people's preferences entered, so that accuracy on them is flattered.
        uses_benchmark: Whether a benchmark's answers entered.
        tau: The temperature; None where the scheme has none.
        num_ratings: Ratings that are not null, over all rules.
        num_nulls: Null ratings.
        num_pairs: Preference pairs that the ratings are of.
        num_pairs_used: Pairs whose labels the scheme learnt from; None where it learns from none.
        origin: Where the ratings came from.
        log_base: Of the entropies. It acts as a temperature: base 2 at tau 2 is base e at 2 ln 2.
        encore_version: The version that made it.
    """

    uses_labels: bool
    uses_benchmark: bool
    tau: float | None
    num_ratings: int
    num_nulls: int
    num_pairs: int
    num_pairs_used: int | None
    origin: Origin = field(default_factory=Origin)
    log_base: str = "e"
    encore_version: str | None = field(default_factory=partial(installed_version, "encore-reward"))

    def as_dict(self) -> dict[str, Any]:
        """One flat JSON object."""
        found: dict[str, Any] = dataclasses.asdict(self)
        origin: dict[str, Any] = found.pop("origin")
        return found | origin


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightVector:
    """Weights of rules, in rule order: none negative, sum 1.

    Attributes:
        scheme: The weighting scheme that made it.
        rule_ids: The rules.
        weights: One per rule.
        params: The scheme's parameters, as reported.
        provenance: What it was made from; None for weights set by hand. It takes no part in
            comparing two vectors.

    Raises:
        ValueError: Not a point of the simplex, or not one weight per rule.
    """

    scheme: str
    rule_ids: tuple[str, ...]
    weights: tuple[float, ...]
    params: Mapping[str, float | str] = field(default_factory=dict)
    provenance: Provenance | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        problem = self._problem()
        if problem:
            raise ValueError(f"weights of scheme {self.scheme}: {problem}")

    def _problem(self) -> str:
        """What keeps the weights from being one point of the simplex; empty if nothing does."""
        num_rules = len(self.rule_ids)
        if not num_rules:
            return "no rule; expected at least one"
        if len(set(self.rule_ids)) != num_rules:
            return "a rule is there more than once"
        if len(self.weights) != num_rules:
            return f"{len(self.weights)} weights for {num_rules} rules; expected one each"
        for rule_id, weight in zip(self.rule_ids, self.weights, strict=True):
            if not 0.0 <= weight <= 1.0:  # also refuses NaN
                return f"{weight} for rule {rule_id}; expected a number in [0, 1]"
        total = math.fsum(self.weights)
        return "" if abs(total - 1.0) <= _TOLERANCE else f"their sum is {total}; expected 1"

    def as_dict(self) -> dict[str, Any]:
        """The JSON of ``encore weights --json``."""
        return {
            "scheme": self.scheme,
            "params": dict(self.params),
            "rule_ids": list(self.rule_ids),
            "weights": list(self.weights),
            "provenance": None if self.provenance is None else self.provenance.as_dict(),
        }
