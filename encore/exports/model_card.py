"""Describe an export: its model card, its notes and `encore_export.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCardData

from encore.core.shown_record import ShownRecord
from encore.core.versions import package_versions
from encore.exports.classifier import Written
from encore.exports.hub_card import hub_card
from encore.exports.verify import Verification, probes
from encore.exports.weights_input import Composition
from encore.weighting.preference_head import has_preference_head

#: The oldest transformers that exports are tested with; `rewardbench` from PyPI requires it.
OLDEST_TESTED = "4.51"
#: Oldest tested version of transformers by model type, for classifiers newer than `OLDEST_TESTED`.
_OLDEST_BY_MODEL_TYPE = {"olmo2": "5.19"}
#: Version of the format of `encore_export.json`; raised whenever its meaning changes.
_FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Exported(ShownRecord):
    """Facts of an export for its card and for `encore_export.json`.

    Attributes:
        folder: Final folder of the export.
        written: Its files, labels and number format, and the model that it was made from.
        licence: Licence of the export, as the hub names it; None if none was stated.
        verification: Result of comparing the files with the model in memory.
    """

    folder: Path
    written: Written
    licence: str | None
    verification: Verification

    @property
    def name(self) -> str:
        """Return the export's name: that of its folder."""
        return self.folder.name

    @property
    def num_bytes(self) -> int:
        """Return the size of all files together, in bytes."""
        return sum(path.stat().st_size for path in self.folder.iterdir())

    @property
    def composition(self) -> Composition:
        """Return the weights of the rules in the score; without weights every rule has a score."""
        return self.written.composition

    @property
    def kind(self) -> str:
        """Return ``heads`` (one label per rule) or ``composed`` (one label for all)."""
        return "composed" if self.composition.weights else "heads"

    @property
    def mean_by_rule(self) -> Mapping[str, float]:
        """Return the mean of each rule's targets, which training subtracted, by rule id."""
        model = self.written.source.model
        return dict(zip(model.head_ids, model.mean_R.tolist(), strict=True))

    @property
    def synthetic(self) -> tuple[str, ...]:
        """Return the synthetic parts of the model's origin, as phrases for people."""
        return tuple(map(str, self.written.source.metadata.get("synthetic", ())))

    @property
    def minimum_transformers(self) -> str:
        """Return the oldest version of transformers that is known to read the export."""
        return _OLDEST_BY_MODEL_TYPE.get(
            self.written.source.model.trunk.config.model_type, OLDEST_TESTED
        )

    @property
    def mean_of_reward(self) -> float | None:
        """Return Σ w_k mean_k, which the one score lacks; None if there are several scores."""
        if not (weights := self.composition.weights):
            return None
        return sum(weights[rule] * mean for rule, mean in self.mean_by_rule.items())

    @property
    def notes(self) -> list[str]:
        """Return sentences that people should read before they pass the export on."""
        composition, verification = self.composition, self.verification
        notes = [f"synthetic: {part}; an example, not evidence" for part in self.synthetic]
        if composition.num_missing_shards:
            notes.append(
                "the weights come from an incomplete rating run: "
                f"{composition.num_missing_shards} of {composition.num_shards} shards were not read"
            )
        if composition.note:
            notes.append(composition.note)
        if composition.learnt_from:
            notes.append(
                f"the weights were learnt from {' and '.join(composition.learnt_from)}: a "
                "score on the same data is too high"
            )
        if self.minimum_transformers != OLDEST_TESTED:
            notes.append(f"readers need transformers {self.minimum_transformers} or newer")
        if verification.num_flipped:
            notes.append(
                f"{self.written.dtype} flips or ties {verification.num_flipped:,} of "
                f"{verification.num_margins:,} rankings"
            )
        if verification.num_set_aside:
            notes.append(
                f"{verification.num_set_aside:,} pairs are set aside, because the chat template "
                "refuses them: their rankings were not compared"
            )
        if self.licence is None:
            notes.append("no licence was stated: those of the backbone and of the data apply")
        return notes

    def as_dict(self) -> dict[str, Any]:
        """Return the content of `encore_export.json`: the facts of the card, for programs."""
        model, composition = self.written.source, self.composition
        return {
            "format": _FORMAT_VERSION,
            "kind": self.kind,
            "labels": list(self.written.labels),
            "head_ids": list(self.mean_by_rule),
            **composition.model_dump(include={"scheme", "params", "entropy_nats"}),
            "weights": composition.weights or None,
            "weights_provenance": composition.provenance,
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
    """Return the content of ``README.md``: metadata for the hub, then text for people."""
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
        # `rewardbench` requires the oldest transformers; it pads left, which moves positions.
        has_head_0=has_preference_head(export.written.source.model.head_ids),
        has_rewardbench=export.minimum_transformers == OLDEST_TESTED,
    )
