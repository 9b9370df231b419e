"""What an export is: what it was composed from, what its scores are made of, how it was checked."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from encore.model.config import COMPOSED

if TYPE_CHECKING:
    from encore.model.opening import OpenedModel

#: ``heads``: one label per rule. ``composed``: the rules' heads folded into one label.
ExportKind = Literal["heads", "composed"]
ExportDtype = Literal["float32", "bfloat16"]

#: The label of a composed model.
REWARD_LABEL = "reward"
#: Marks of `encore.weighting.vector.Provenance`, in words.
_ANSWERS = {
    "uses_labels": "people's preferences",
    "uses_benchmark": "a benchmark's answers",
}
#: Weights from a file may be rounded in their last digits.
_SUM_TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Composition:
    """Weights of a model's heads, and where they come from.

    Attributes:
        weights: One per head, by head id; any finite numbers, not all 0.
        scheme: The weighting scheme that made them; ``single`` for one rule alone, ``given`` for
            a plain mapping.
        params: The scheme's parameters.
        entropies: Entropy in nats of each rule's ratings; empty where the weights do not know.
        provenance: What the weights were made from, as `encore weights --json` says it.
    """

    weights: Mapping[str, float]
    scheme: str
    params: Mapping[str, float | str] = field(default_factory=dict)
    entropies: Mapping[str, float] = field(default_factory=dict)
    provenance: Mapping[str, Any] | None = None

    @property
    def num_shards(self) -> int:
        """Shards of the rating run's plan; 0 where there is no plan."""
        return self._count("num_shards")

    @property
    def num_missing_shards(self) -> int:
        """Those that were not read: the weights are those of an incomplete run."""
        return self._count("num_missing_shards")

    @property
    def learnt_from(self) -> tuple[str, ...]:
        """What answers the weights have seen that they may be measured by, in words."""
        known = self.provenance or {}
        return tuple(words for key, words in _ANSWERS.items() if known.get(key) is True)

    def _count(self, name: str) -> int:
        found = (self.provenance or {}).get(name)
        return found if isinstance(found, int) else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The rules behind the scores of an export.

    Attributes:
        mean_by_rule: What was taken from each rule's targets.
        weights: Of the rules in the one score; None: every rule has a score of its own.
        composition: Where the weights come from; None where nobody said.
    """

    mean_by_rule: Mapping[str, float]
    weights: Mapping[str, float] | None
    composition: Composition | None

    @property
    def mean_of_reward(self) -> float | None:
        """Σ w_k mean_k, which was taken from the one score; None for several."""
        if self.weights is None:
            return None
        return sum(self.weights[rule] * mean for rule, mean in self.mean_by_rule.items())

    @property
    def is_average(self) -> bool:
        """Whether the one score is an average of ratings, so that it has their scale."""
        weights = () if self.weights is None else tuple(self.weights.values())
        return min(weights, default=-1.0) >= 0 and abs(math.fsum(weights) - 1) <= _SUM_TOLERANCE


def rules_of(
    source: OpenedModel, *, weights: Mapping[str, float] | None, composition: Composition | None
) -> Rules:
    """The rules of an export.

    A model that was opened from a composed export has one head left; what that was folded from
    stays known through every further export.

    Args:
        source: The model to export.
        weights: Of its heads; None: they stay apart.
        composition: Where these weights come from.
    """
    model = source.model
    earlier: Mapping[str, Any] | None = source.metadata.get(COMPOSED)
    if earlier is None:
        means = dict(zip(model.head_ids, model.mean_R.tolist(), strict=True))
        return Rules(mean_by_rule=means, weights=weights, composition=composition)
    factor = 1.0 if weights is None else weights[model.head_ids[0]]
    scaled = {rule: factor * weight for rule, weight in earlier["weights"].items()}
    found = None
    if earlier["scheme"] is not None:
        found = Composition(
            weights=scaled,
            scheme=earlier["scheme"],
            params=earlier["params"],
            entropies=earlier["entropy_nats"],
            provenance=earlier["weights_provenance"],
        )
        if factor != 1.0:
            found = replace(found, params={**found.params, "times": factor})
    return Rules(mean_by_rule=earlier["mean"], weights=scaled, composition=found)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportAbout:
    """What an export's card says beside what the model itself knows.

    Attributes:
        composition: Where the weights come from; None: nobody said.
        licence: The hub's identifier of the licence the export is given away under.
    """

    composition: Composition | None = None
    licence: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What plain transformers read from the written folder, beside the model in memory.

    Attributes:
        num_probes: Conversations whose tokens and scores were compared.
        max_difference: The largest difference of a score, both in float32 with the same weights.
        example_scores: What the card's example prints, by label; in the export's own format.
        num_margins: Pairs (times labels) whose rankings were compared in the export's own format.
        num_flipped: Of these, how many rank the other way round than the model in memory.
        num_tied: Of these, how many tie in one of the two and not in the other.
        largest_flipped_margin: The largest |margin| in memory of a flipped one; None where none is.
    """

    num_probes: int
    max_difference: float
    example_scores: Mapping[str, float]
    num_margins: int = 0
    num_flipped: int = 0
    num_tied: int = 0
    largest_flipped_margin: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """An export as its card and `encore_export.json` describe it.

    Attributes:
        name: The export's name.
        source: The model it was made from.
        labels: Of the scores, in order.
        rules: What the scores are made of.
        dtype: Of the weights on disk.
        about: What was said about it.
        architecture: Name of its class in transformers.
        minimum_transformers: The oldest version known to read it.
        verification: How it was checked.
    """

    name: str
    source: OpenedModel
    labels: Sequence[str]
    rules: Rules
    dtype: ExportDtype
    about: ExportAbout
    architecture: str
    minimum_transformers: str
    verification: Verification

    @property
    def kind(self) -> ExportKind:
        """Whether heads were folded."""
        return "heads" if self.rules.weights is None else "composed"

    @property
    def synthetic(self) -> tuple[str, ...]:
        """What of the model's origin is synthetic, in words."""
        return tuple(map(str, self.source.metadata.get("synthetic", ())))

    def notes(self) -> Iterator[str]:
        """What people should know before they pass it on, a sentence each."""
        composition, checked = self.rules.composition, self.verification
        for part in self.synthetic:
            yield f"synthetic: {part}; an example, not evidence"
        if composition is not None and composition.num_missing_shards:
            yield (
                f"the weights come from an incomplete rating run: {composition.num_missing_shards} "
                f"of {composition.num_shards} shards were not read"
            )
        if composition is not None and composition.learnt_from:
            yield (
                f"the weights were learnt from {' and '.join(composition.learnt_from)}: measured "
                "on the same, the model is flattered"
            )
        if self.minimum_transformers != OLDEST_TESTED:
            yield (
                f"readers need transformers {self.minimum_transformers} or newer: older ones have "
                f"no {self.architecture}"
            )
        if checked.num_flipped:
            yield (
                f"{self.dtype} flips {checked.num_flipped:,} of {checked.num_margins:,} rankings "
                f"(the largest margin among them was {checked.largest_flipped_margin:.1e})"
            )
        if checked.num_tied:
            yield (
                f"{self.dtype} makes or breaks {checked.num_tied:,} ties of "
                f"{checked.num_margins:,} rankings"
            )
        if self.about.licence is None:
            yield "no licence was stated: those of the backbone and of the data apply"


#: The oldest transformers that exports are tested with; `rewardbench` from PyPI has it.
OLDEST_TESTED = "4.51"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportResult:
    """A written export.

    Attributes:
        folder: Where it is.
        kind: ``heads`` or ``composed``.
        labels: Its labels, in the order of its scores.
        dtype: Of every weight on disk.
        num_bytes: All files together.
        verification: How it was checked.
        notes: What people should know before they pass it on.
    """

    folder: Path
    kind: ExportKind
    labels: tuple[str, ...]
    dtype: ExportDtype
    num_bytes: int
    verification: Verification
    notes: tuple[str, ...]
