"""What the card and `encore_export.json` of an export say: the facts, not the words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from encore.export.architecture import OLDEST_TESTED, minimum_transformers
from encore.export.records import ExportAbout, ExportDtype, ExportKind, Verification
from encore.export.rules import Rules

if TYPE_CHECKING:
    from encore.model.opening import OpenedModel


@dataclass(frozen=True, slots=True, kw_only=True)
class CardFacts:
    """What a card says.

    Attributes:
        name: The export's name.
        source: The model it was made from.
        labels: Of the scores, in order.
        rules: What the scores are made of.
        dtype: Of the weights on disk.
        about: What was said about it.
        architecture: Name of its class in transformers.
        verification: How it was checked.
    """

    name: str
    source: OpenedModel
    labels: Sequence[str]
    rules: Rules
    dtype: ExportDtype
    about: ExportAbout
    architecture: str
    verification: Verification

    @property
    def kind(self) -> ExportKind:
        """Whether heads were folded."""
        return "heads" if self.rules.weights is None else "composed"

    @property
    def is_centred(self) -> bool:
        """Whether a mean is known: a downloaded model has none, a preference model neither."""
        return any(self.rules.mean_by_rule.values())

    @property
    def minimum_transformers(self) -> str:
        """The oldest version known to read it."""
        return minimum_transformers(self.source.model.trunk.config.model_type)

    @property
    def original_positions(self) -> int | None:
        """Tokens beyond which positions are scaled in another way (longrope), if any fit."""
        rope = getattr(self.source.model.trunk.config, "rope_parameters", None) or {}
        original = rope.get("original_max_position_embeddings")
        if rope.get("rope_type") != "longrope" or not isinstance(original, int):
            return None
        return original if self.source.tokenizer.max_length > original else None

    @property
    def synthetic(self) -> tuple[str, ...]:
        """What of the model's origin is synthetic, in words."""
        return tuple(map(str, self.source.metadata.get("synthetic", ())))

    @property
    def notes(self) -> tuple[str, ...]:
        """What people should know before they pass it on."""
        return tuple(_notes(self))


def _notes(facts: CardFacts) -> Iterator[str]:
    composition, checked = facts.rules.composition, facts.verification
    for part in facts.synthetic:
        yield f"synthetic: {part}; an example, not evidence"
    if composition is not None and composition.num_missing_shards:
        yield (
            f"the weights come from an incomplete rating run: {composition.num_missing_shards} of "
            f"{composition.num_shards} shards were not read"
        )
    if composition is not None and composition.learnt_from:
        yield (
            f"the weights were learnt from {' and '.join(composition.learnt_from)}: measured on "
            "the same, the model is flattered"
        )
    if facts.minimum_transformers != OLDEST_TESTED:
        yield (
            f"readers need transformers {facts.minimum_transformers} or newer: older ones have no "
            f"{facts.architecture}"
        )
    if checked.num_flipped:
        yield (
            f"{facts.dtype} flips {checked.num_flipped:,} of {checked.num_margins:,} rankings "
            f"(the largest margin among them was {checked.largest_flipped_margin:.1e})"
        )
    if checked.num_tied:
        yield (
            f"{facts.dtype} makes or breaks {checked.num_tied:,} ties of {checked.num_margins:,} "
            "rankings"
        )
    if facts.about.licence is None:
        yield "no licence was stated: those of the backbone and of the data apply"
