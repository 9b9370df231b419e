"""A row of a benchmark's table: what a scheme's weights, a reward model or a judge gave every pair.

Suffixes: P pairs, U units (`encore.benchmarks.metrics`), 2 responses (chosen, rejected), R heads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from encore.analysis.resampling import middle_95
from encore.benchmarks.benchmark_pairs import BenchmarkPairs
from encore.benchmarks.definition import Ties
from encore.benchmarks.metrics import (
    Units,
    margin_credits,
    unit_credits,
    unit_weights,
    units_of_pairs,
)

RowKind = Literal["scheme", "model", "judge", "paper-only"]
_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawSpread:
    """The headline over draws: their number, mean and quantiles at 2.5 and 97.5 %."""

    num_draws: int
    mean: float
    low: float
    high: float


class RowFacts(BaseModel):
    """What a reader of a row's figures must know.

    Attributes:
        params: The scheme's parameters.
        draws: Of a mean over draws: its pairs are neither right nor wrong.
        uses_labels: Whether weights were learnt from people's preferences on the training pairs.
        synthetic: What of it is synthetic, in words.
        notes: A sentence each.
        num_cut_pairs: Pairs whose text was cut to the model's length: no other tool's result on
            them compares. None where nobody said.
    """

    model_config = ConfigDict(frozen=True)

    params: Mapping[str, int | float | str] = Field(default_factory=dict)
    draws: DrawSpread | None = None
    uses_labels: bool = False
    synthetic: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    num_cut_pairs: int | None = Field(default=None, exclude_if=lambda num: not num)


class RowMetadata(RowFacts):
    """What a row is beside its figures; a file of results keeps it.

    Attributes:
        kind: What made the row.
        judge: Of a judge's row: which.
        scheme: Of its weights; None where there is no one vector.
    """

    kind: RowKind
    judge: str | None = None
    scheme: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TableRow:
    """What one row gave every pair.

    Attributes:
        name: For people, one of its own in a table.
        ties: What a tie is worth to it.
        credit_P: Of each pair, 0 to 1; a mean over draws where there are several.
        metadata: Parameters, notes and marks of the row.
        reward_P2: What credits were made from, chosen first; None for a judge that compares, and
            for means.
        credit_U: Of each unit, for a mean over draws alone: else it follows from ``credit_P``.
        method: The paper's row of the same method (`encore.benchmarks.paper_tables`).
        weights: By rule; None where there is no one vector.
        model_identity: Identity of the model that gave the rewards (`ScoredModel`). None for rows
            that were read from a file.
    """

    name: str
    ties: Ties
    credit_P: _Floats
    metadata: RowMetadata
    reward_P2: _Floats | None = None
    credit_U: _Floats | None = None
    method: str | None = None
    weights: Mapping[str, float] | None = None
    model_identity: Mapping[str, str | None] | None = None

    def credits_by_unit(self, units: Units) -> _Floats:
        """Credit of each unit of the pairs."""
        return unit_credits(self.credit_P, units=units) if self.credit_U is None else self.credit_U

    @property
    def half_P(self) -> _Floats | None:
        """Credit of each pair where a tie counts one half; None where nobody knows the ties."""
        if self.reward_P2 is None:
            return None
        return margin_credits(self.reward_P2[:, 0] - self.reward_P2[:, 1], ties="half")

    @property
    def follows_from_pairs(self) -> bool:
        """Whether the score follows from the credits of pairs.

        It does not for a mean over draws where several pairs are one choice.
        """
        return self.credit_U is None or len(self.credit_U) == len(self.credit_P)

    def with_metadata(self, **changes: Any) -> TableRow:
        """The row with other fields of `RowMetadata`."""
        return replace(self, metadata=self.metadata.model_copy(update=changes))


def reward_row(
    name: str,
    reward_P2: _Floats,
    *,
    pairs: BenchmarkPairs,
    metadata: RowMetadata | None = None,
    **more: Any,
) -> TableRow:
    """A row of rewards: a pair is right if its chosen response has the higher one.

    A tie is worth what the benchmark says.

    Args:
        name: Of the row.
        reward_P2: Of each pair of ``pairs``, in their order.
        pairs: Of the benchmark.
        metadata: Parameters, notes and marks. None: those of a reward model.
        **more: Further fields of `TableRow`.

    Raises:
        InputError: A reward that is no number.
    """
    ties = pairs.benchmark.ties
    return TableRow(
        name=name,
        ties=ties,
        credit_P=margin_credits(reward_P2[:, 0] - reward_P2[:, 1], ties=ties),
        reward_P2=reward_P2,
        metadata=metadata or RowMetadata(kind="model"),
        **more,
    )


def mean_row(
    name: str,
    drawn: Sequence[_Floats],
    *,
    margin_PR: _Floats,
    pairs: BenchmarkPairs,
    method: str | None = None,
    **params: float,
) -> TableRow:
    """The mean of many weightings of the heads, with their spread.

    The score is the mean of the scores, subset by subset. Its interval is over pairs: it says what
    other pairs would do to this mean. What another draw would do is in ``draws``.

    Args:
        name: Of the row.
        drawn: At least one weight vector.
        margin_PR: Score of the chosen minus that of the rejected response, float64.
        pairs: Of the benchmark.
        method: As in `TableRow`.
        **params: The scheme's.
    """
    units, ties = units_of_pairs(pairs), pairs.benchmark.ties
    weight_U = unit_weights(units.subset_U, weighting=pairs.benchmark.weighting)
    num_vectors, headlines = len(drawn), []
    total_P, total_U = np.zeros(len(margin_PR)), np.zeros(len(weight_U))
    for weight_R in drawn:
        credit_P = margin_credits(margin_PR @ weight_R, ties=ties)
        credit_U = unit_credits(credit_P, units=units)
        headlines.append(credit_U @ weight_U)
        total_P += credit_P
        total_U += credit_U
    low, high = middle_95(np.array(headlines))
    draws = DrawSpread(num_draws=num_vectors, mean=float(np.mean(headlines)), low=low, high=high)
    return TableRow(
        name=name,
        ties=ties,
        credit_P=total_P / num_vectors,
        credit_U=total_U / num_vectors,
        metadata=RowMetadata(
            kind="scheme", params={**params, "num_draws": num_vectors}, draws=draws
        ),
        method=method,
    )
