"""A weight vector over rules, on the simplex if it exists, what it was made from, and its heads."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from encore.core.errors import InputError
from encore.core.versions import installed_version

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
class Provenance(Origin):
    """What stands behind one weight vector, and where the ratings came from.

    Attributes:
        uses_labels: Whether people's preferences entered, so that accuracy on them is flattered.
        uses_benchmark: Whether a benchmark's answers entered; no scheme of ours takes any.
        tau: The temperature; None where the scheme has none.
        num_ratings: Ratings that are not null, over all rules.
        num_nulls: Null ratings.
        num_pairs: Preference pairs that the ratings are of.
        num_pairs_used: Pairs whose labels the scheme learnt from; None where it learns from none.
        log_base: Of the entropies. It acts as a temperature: base 2 at tau 2 is base e at 2 ln 2.
        encore_version: The version that made it.
    """

    uses_labels: bool
    uses_benchmark: bool = False
    tau: float | None
    num_ratings: int
    num_nulls: int
    num_pairs: int
    num_pairs_used: int | None
    log_base: str = "e"
    encore_version: str | None = field(default_factory=partial(installed_version, "encore-reward"))


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightVector:
    """Weights of rules, in rule order: none negative, sum 1.

    Attributes:
        scheme: The weighting scheme that made it.
        params: The scheme's parameters, as reported.
        rule_ids: The rules.
        weights: One per rule.
        provenance: What it was made from; None for weights set by hand. It takes no part in
            comparing two vectors.

    Raises:
        ValueError: Not a point of the simplex, or not one weight per rule.
    """

    scheme: str
    params: Mapping[str, float | str] = field(default_factory=dict)
    rule_ids: tuple[str, ...]
    weights: tuple[float, ...]
    provenance: Provenance | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        num_rules, total = len(set(self.rule_ids)), math.fsum(self.weights)
        if not len(self.weights) == len(self.rule_ids) == num_rules > 0:
            problem = f"{len(self.weights)} weights for {num_rules} rules; expected one each"
        elif not all(0.0 <= weight <= 1.0 for weight in self.weights):  # also refuses NaN
            problem = f"{self.weights}; expected numbers in [0, 1]"
        elif abs(total - 1.0) > _TOLERANCE:
            problem = f"their sum is {total}; expected 1"
        else:
            return
        raise ValueError(f"weights of scheme {self.scheme}: {problem}")

    def as_dict(self) -> dict[str, Any]:
        """The JSON of ``encore weights --json``."""
        return dataclasses.asdict(self)


def head_weights(weights: Mapping[str, float], *, head_ids: Sequence[str]) -> NDArray[np.float64]:
    """The weights of a model's heads from any composer, in head order, float64, shape [R].

    They need not be positive or sum to 1: composing is linear whatever they are.

    Args:
        weights: By rule id.
        head_ids: The R heads, in order.

    Raises:
        InputError: Weights for other rules than the heads, one that is no finite number, or all 0.
    """
    strangers, unweighed = sorted(set(weights) - set(head_ids)), set(head_ids) - set(weights)
    if strangers or unweighed:
        raise InputError(
            "weights for other rules than the model's heads: "
            f"{', '.join(strangers) or 'nothing'} among the weights but no head, "
            f"{', '.join(sorted(unweighed)) or 'nothing'} among the heads but not weighed; give "
            "one weight for each head (0 leaves a rule out)"
        )
    weight_R = np.array([weights[head_id] for head_id in head_ids], dtype=np.float64)
    if not np.isfinite(weight_R).all():
        raise InputError(f"weights: {dict(weights)}; expected finite numbers")
    if not weight_R.any():
        raise InputError("weights: all are 0, so every response would score the same; weigh a rule")
    return weight_R
