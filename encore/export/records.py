"""What an export is: its kind, what it was composed from, how it was checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

#: ``heads``: one label per rule. ``composed``: the rules' heads folded into one label.
ExportKind = Literal["heads", "composed"]
ExportDtype = Literal["float32", "bfloat16"]

#: The label of a composed model.
REWARD_LABEL = "reward"

#: Marks of `encore.weighting.provenance.Provenance`, in words.
_ANSWERS = {
    "uses_labels": "people's preferences",
    "uses_benchmark": "a benchmark's answers",
}


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
class ExportAbout:
    """What an export's card says beside what the model itself knows.

    Attributes:
        composition: Where the weights come from; None: they are given without a story.
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

    @property
    def num_labels(self) -> int:
        """Scores of a conversation."""
        return len(self.labels)
