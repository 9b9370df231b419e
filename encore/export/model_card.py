"""What an export says of itself: its model card, its notes and `encore_export.json`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCardData

from encore.core.versions import package_versions
from encore.export.classifier import Written
from encore.export.hub_card import hub_card
from encore.export.verify import Verification, probes
from encore.export.weights_input import Composition

#: The oldest transformers that exports are tested with; `rewardbench` from PyPI has it.
OLDEST_TESTED = "4.51"
#: Classifiers that came later than `OLDEST_TESTED`: the oldest tested version that has them.
_SINCE = {"olmo2": "5.19"}
#: Raised whenever `encore_export.json` changes its meaning.
_FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """An export as its card and `encore_export.json` describe it.

    Attributes:
        folder: Where it is to be.
        written: Its files, labels and number format, and the model it was made from.
        licence: The hub's identifier of the licence the export is given away under.
        verification: How it was checked.
    """

    folder: Path
    written: Written
    licence: str | None
    verification: Verification

    @property
    def name(self) -> str:
        """The export's name."""
        return self.folder.name

    @property
    def num_bytes(self) -> int:
        """All files together."""
        return sum(path.stat().st_size for path in self.folder.iterdir())

    @property
    def composition(self) -> Composition:
        """Weights of the rules in the one score; without weights every rule has a score."""
        return self.written.composition

    @property
    def kind(self) -> str:
        """``heads``: one label per rule; ``composed``: the rules' heads folded into one label."""
        return "composed" if self.composition.weights else "heads"

    @property
    def mean_by_rule(self) -> Mapping[str, float]:
        """What was taken from each rule's targets."""
        model = self.written.source.model
        return dict(zip(model.head_ids, model.mean_R.tolist(), strict=True))

    @property
    def synthetic(self) -> tuple[str, ...]:
        """What of the model's origin is synthetic, in words."""
        return tuple(map(str, self.written.source.metadata.get("synthetic", ())))

    @property
    def minimum_transformers(self) -> str:
        """The oldest version of transformers that is known to read it."""
        return _SINCE.get(self.written.source.model.trunk.config.model_type, OLDEST_TESTED)

    @property
    def mean_of_reward(self) -> float | None:
        """Σ w_k mean_k, which was taken from the one score; None for several."""
        if not (weights := self.composition.weights):
            return None
        return sum(weights[rule] * mean for rule, mean in self.mean_by_rule.items())

    @property
    def notes(self) -> tuple[str, ...]:
        """What people should know before they pass it on, a sentence each."""
        return tuple(self._notes())

    def _notes(self) -> Iterator[str]:
        made, checked, dtype = self.composition, self.verification, self.written.dtype
        for part in self.synthetic:
            yield f"synthetic: {part}; an example, not evidence"
        if made.num_missing_shards:
            yield (
                f"the weights come from an incomplete rating run: {made.num_missing_shards} of "
                f"{made.num_shards} shards were not read"
            )
        if made.learnt_from:
            yield (
                f"the weights were learnt from {' and '.join(made.learnt_from)}: measured on the "
                "same, the model is flattered"
            )
        if self.minimum_transformers != OLDEST_TESTED:
            yield f"readers need transformers {self.minimum_transformers} or newer"
        if flipped := checked.num_flipped:
            yield f"{dtype} flips or ties {flipped:,} of {checked.num_margins:,} rankings"
        if self.licence is None:
            yield "no licence was stated: those of the backbone and of the data apply"

    def as_dict(self) -> dict[str, Any]:
        """What `encore_export.json` says: everything of the card that a program may want."""
        model, made = self.written.source, self.composition
        return {
            "format": _FORMAT_VERSION,
            "kind": self.kind,
            "labels": list(self.written.labels),
            "head_ids": list(self.mean_by_rule),
            **made.model_dump(include={"scheme", "params", "entropy_nats"}),
            "weights": made.weights or None,
            "weights_provenance": made.provenance,
            "mean": dict(self.mean_by_rule),
            "mean_of_reward": self.mean_of_reward,
            "max_length": model.tokenizer.max_length,
            "dtype": self.written.dtype,
            "source": {"name": model.name, "digest": model.digest},
            "verification": asdict(self.verification),
            "model_metadata": dict(model.metadata),
            "versions": package_versions(),
        }


def model_card(export: Exported) -> str:
    """The content of ``README.md``: metadata that the hub reads, then words."""
    backbone = str(export.written.source.metadata.get("backbone_name", ""))
    metadata = ModelCardData(
        library_name="transformers",
        pipeline_tag="text-classification",
        license=export.licence or "unknown",
        base_model=backbone if backbone.count("/") == 1 else None,
        tags=["reward-model", "safety", "encore", *(["synthetic"] if export.synthetic else [])],
    )
    return hub_card(
        Path(__file__).with_name("model_card.md.jinja"),
        metadata,
        export=export,
        example=probes()[0],
        # Its own transformers is the oldest one; it pads on the left, which moves positions.
        has_rewardbench=export.minimum_transformers == OLDEST_TESTED,
    )
