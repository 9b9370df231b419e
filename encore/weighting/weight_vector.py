"""Weight vectors over rules: valid by construction, with their provenance."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from encore.core.errors import InputError, did_you_mean
from encore.core.number_text import printable
from encore.core.record_table import RecordTable, html_table
from encore.core.versions import installed_version

if TYPE_CHECKING:
    import pandas as pd

#: The sum of weights may differ from 1 by this; rounding over thousands of rules is far smaller.
_TOLERANCE = 1e-9
#: Characters of a rule's id that a terminal shows.
_MAX_NAME = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Origin of ratings; None for what is not known.

    Attributes:
        run_key: Key of the run of `encore rate`.
        judge: Name of the judge.
        data_sha256: Digest of the run's preference pairs (`encore.data.pairs.data_digest`).
        rules_sha256: Digest of the run's rule texts and their order.
        ratings_sha256: SHA-256 over the sorted SHA-256 of the files that were read, one hex digest
            per line, so that names and order of the files do not matter.
        num_shards: Shards of the run's plan; 0 without a plan.
        num_missing_shards: Shards of the plan that were not read.
        scale: Ends of the scale that a table's ratings were mapped from to [0, 1]; None: they were
            in [0, 1].
        rating: ``expected`` if the means over the labels' probabilities were read; None: the
            labels.
    """

    run_key: str | None = None
    judge: str | None = None
    data_sha256: str | None = None
    rules_sha256: str | None = None
    ratings_sha256: str | None = None
    num_shards: int = 0
    num_missing_shards: int = 0
    scale: tuple[float, float] | None = None
    rating: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values; without ``scale`` and ``rating`` where there is none.

        The keys of benchmark tables from before there was either stay.
        """
        fields = dataclasses.asdict(self)
        left_out = [name for name in ("scale", "rating") if fields[name] is None]
        return {name: fields[name] for name in fields if name not in left_out}


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance(Origin):
    """Provenance of one weight vector: its origin and the data behind it.

    Attributes:
        uses_labels: True if it was learnt from people's preferences, so that its accuracy on the
            same preferences is too high.
        uses_benchmark: True if it was learnt from a benchmark's answers; none of our schemes is.
        tau: Temperature; None for schemes without one.
        num_ratings: Ratings that are not null, over all rules.
        num_nulls: Number of null ratings.
        num_pairs: Preference pairs that were rated.
        num_pairs_used: Pairs whose labels the scheme learnt from; None if it uses no labels.
        log_base: Base of the logarithm in the entropies. It acts as a temperature: base 2 at tau 2
            is base e at tau 2 ln 2.
        encore_version: Version of ENCORE that computed the weights.
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


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class WeightVector:
    """Weights of rules, in rule order: none negative, sum 1.

    ``dict(vector)`` has them by rule id, and ``vector.to_pandas()`` in a data frame. A terminal and
    a notebook show them as a table.

    Attributes:
        scheme: Name of the weighting scheme.
        params: The scheme's parameters, as reported.
        rule_ids: The rules, in rule-set order where it is known.
        weights: One weight per rule, in [0, 1].
        provenance: The data behind the weights; None for weights set by hand. Two vectors can be
            equal with different provenance.

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

    def __getitem__(self, rule_id: str) -> float:
        """Return the weight of a rule.

        Raises:
            KeyError: There is no such rule; the message has similar names.
        """
        if rule_id not in self.rule_ids:
            similar = did_you_mean(str(rule_id), self.rule_ids)
            raise KeyError(f"rule {rule_id!r}: it has no weight here{similar}")
        return self.weights[self.rule_ids.index(rule_id)]

    def __iter__(self) -> Iterator[str]:
        return iter(self.rule_ids)

    def __len__(self) -> int:
        return len(self.rule_ids)

    def keys(self) -> tuple[str, ...]:
        """Return the rules' ids, so that ``dict(vector)`` has each rule's weight."""
        return self.rule_ids

    def __repr__(self) -> str:
        width = min(max(map(len, self.rule_ids)), _MAX_NAME)
        lines = [
            f"{printable(rule_id)[:width]:{width}}  {weight:.3f}"
            for rule_id, weight in zip(self.rule_ids, self.weights, strict=True)
        ]
        return "\n".join([self._title(), *lines])

    def _repr_html_(self) -> str:
        """Return the weights as a table for a notebook."""
        rows = [(row["rule_id"], f"{row['weight']:.3f}") for row in self.rows]
        return f"<p>{escape(self._title())}</p>{html_table(('rule', 'weight'), rows)}"

    def _title(self) -> str:
        params = ", ".join(f"{name}={value}" for name, value in self.params.items())
        return f"weights of scheme {self.scheme}" + (f" ({params})" if params else "")

    def to_pandas(self) -> pd.DataFrame:
        """Return a data frame with the columns ``rule_id`` and ``weight``.

        Raises:
            EncoreError: pandas is not installed.
        """
        return self.rows.to_pandas()

    @property
    def rows(self) -> RecordTable[Mapping[str, Any]]:
        """Return a row for each rule: ``rule_id`` and ``weight``."""
        pairs = zip(self.rule_ids, self.weights, strict=True)
        return RecordTable({"rule_id": rule_id, "weight": weight} for rule_id, weight in pairs)

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values, as in ``encore weights --json``."""
        fields = dataclasses.asdict(self)
        if self.provenance is not None:
            fields["provenance"] = self.provenance.as_dict()
        return fields


def head_weights(weights: Mapping[str, float], *, head_ids: Sequence[str]) -> NDArray[np.float64]:
    """Return the weights of a model's heads, in head order, float64, shape [R].

    They need not be positive or sum to 1: composing is linear.

    Args:
        weights: The weight of each rule, by rule id.
        head_ids: The ids of the R heads, in order.

    Raises:
        InputError: Weights for other rules than the heads, one that is not finite, or all 0.
    """
    without_head, unweighed = sorted(set(weights) - set(head_ids)), set(head_ids) - set(weights)
    if without_head or unweighed:
        raise InputError(
            "weights for other rules than the model's heads: "
            f"{', '.join(without_head) or 'nothing'} among the weights but no head, "
            f"{', '.join(sorted(unweighed)) or 'nothing'} among the heads but not weighed; give "
            "one weight for each head (0 leaves a rule out)"
        )
    weight_R = np.array([weights[head_id] for head_id in head_ids], dtype=np.float64)
    if not np.isfinite(weight_R).all():
        raise InputError(f"weights: {dict(weights)}; expected finite numbers")
    if not weight_R.any():
        raise InputError("weights: all are 0, so every response would score the same; weigh a rule")
    return weight_R
