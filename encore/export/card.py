"""What an export says of itself: its model card, its notes and `encore_export.json`."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import jinja2
from huggingface_hub import ModelCard, ModelCardData

from encore.export.classifier import OLDEST_TESTED, ExportDtype
from encore.export.verify import EXAMPLE, Verification
from encore.export.weights_input import Composition
from encore.model.config import COMPOSED
from encore.versions import package_versions

if TYPE_CHECKING:
    from encore.model.opening import OpenedModel

#: ``heads``: one label per rule. ``composed``: the rules' heads folded into one label.
ExportKind = Literal["heads", "composed"]
#: Raised whenever `encore_export.json` changes its meaning.
_FORMAT_VERSION = 1
#: Weights from a file may be rounded in their last digits.
_SUM_TOLERANCE = 1e-6
#: Keys of a model's metadata that identify what it was trained on, with their words in the card.
_OF_TRAINING = {
    "run_key": "training run",
    "data_sha256": "training data, SHA-256",
    "objective": "objective",
    "num_pairs": "pairs trained on",
    "num_steps": "steps",
    "backbone_name": "backbone",
}
_OF_BACKBONE = {"revision": "backbone's revision", "config_sha256": "backbone's config, SHA-256"}
_OF_WEIGHTS = ("judge", "run_key", "ratings_sha256", "rules_sha256", "num_ratings", "num_pairs")
_EXAMPLE_CODE = """\
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained({folder})
model = AutoModelForSequenceClassification.from_pretrained({folder}).eval()
messages = [{user}]
messages += [{assistant}]
text = tokenizer.apply_chat_template(messages, tokenize=False)
with torch.no_grad():
    scores = model(**tokenizer(text, return_tensors="pt")).logits[0].tolist()
print(dict(zip(model.config.id2label.values(), scores)))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """An export as its card and `encore_export.json` describe it.

    Attributes:
        name: The export's name.
        source: The model it was made from.
        labels: Of the scores, in order.
        mean_by_rule: What was taken from each rule's targets.
        composition: Weights of the rules in the one score; None: every rule has a score.
        dtype: Of the weights on disk.
        licence: The hub's identifier of the licence the export is given away under.
        architecture: Name of its class in transformers.
        minimum_transformers: The oldest version known to read it.
        verification: How it was checked.
    """

    name: str
    source: OpenedModel
    labels: Sequence[str]
    mean_by_rule: Mapping[str, float]
    composition: Composition | None
    dtype: ExportDtype
    licence: str | None
    architecture: str
    minimum_transformers: str
    verification: Verification

    @property
    def kind(self) -> ExportKind:
        """Whether heads were folded."""
        return "heads" if self.composition is None else "composed"

    @property
    def synthetic(self) -> tuple[str, ...]:
        """What of the model's origin is synthetic, in words."""
        return tuple(map(str, self.source.metadata.get("synthetic", ())))

    @property
    def mean_of_reward(self) -> float | None:
        """Σ w_k mean_k, which was taken from the one score; None for several."""
        if self.composition is None:
            return None
        weights = self.composition.weights
        return sum(weights[rule] * mean for rule, mean in self.mean_by_rule.items())

    @property
    def is_average(self) -> bool:
        """Whether every score is an average of ratings, so that it has their scale."""
        if self.composition is None:
            return True
        weights = self.composition.weights.values()
        return min(weights) >= 0 and abs(math.fsum(weights) - 1) <= _SUM_TOLERANCE

    def notes(self) -> Iterator[str]:
        """What people should know before they pass it on, a sentence each."""
        made, checked = self.composition or Composition(weights={}), self.verification
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
        if self.licence is None:
            yield "no licence was stated: those of the backbone and of the data apply"

    def as_dict(self) -> dict[str, Any]:
        """What `encore_export.json` says: everything of the card that a program may want."""
        model, made = self.source, self.composition or Composition(weights={})
        return {
            "format": _FORMAT_VERSION,
            "kind": self.kind,
            "labels": list(self.labels),
            "head_ids": list(self.mean_by_rule),
            "weights": dict(made.weights) or None,
            "scheme": made.scheme,
            "params": dict(made.params),
            "entropy_nats": dict(made.entropies),
            "weights_provenance": made.provenance,
            "mean": dict(self.mean_by_rule),
            "mean_of_reward": self.mean_of_reward,
            "max_length": model.tokenizer.max_length,
            "dtype": self.dtype,
            "source": {"name": model.name, "digest": model.digest},
            "verification": asdict(self.verification),
            "model_metadata": {k: v for k, v in model.metadata.items() if k != COMPOSED},
            "versions": package_versions(),
        }


def model_card(export: Exported) -> ModelCard:
    """The content of ``README.md``: metadata that the hub reads, then words."""
    metadata = export.source.metadata
    backbone, evaluation = str(metadata.get("backbone_name", "")), metadata.get("evaluation")
    data = ModelCardData(
        library_name="transformers",
        pipeline_tag="text-classification",
        license=export.licence or "unknown",
        base_model=backbone if backbone.count("/") == 1 else None,
        tags=["reward-model", "safety", "encore", *(["synthetic"] if export.synthetic else [])],
    )
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        trim_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 - Markdown; cells are escaped by their own filter
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["cell"] = _cell
    shown = list(export.verification.example_scores.items())[:3]
    scores = ", ".join(f"{label!r}: {score:.6f}" for label, score in shown)
    params = {} if export.composition is None else export.composition.params
    words = environment.get_template("model_card.md.jinja").render(
        export=export,
        composition=export.composition,
        weights=None if export.composition is None else export.composition.weights,
        params=", ".join(f"{key} {value}" for key, value in params.items() if key != "log_base"),
        example_code=example_code(export.name),
        example_scores=f"{{{scores}{', …' if len(export.labels) > 3 else ''}}}",
        max_length=export.source.tokenizer.max_length,
        # Its own transformers is the oldest one; it pads on the left, which moves positions.
        rewardbench=export.minimum_transformers == OLDEST_TESTED and len(export.labels) == 1,
        evaluation=evaluation if isinstance(evaluation, Mapping) else None,
        original_positions=_original_positions(export),
        provenance=list(_provenance(export)),
    )
    return ModelCard(f"---\n{data.to_yaml()}\n---\n\n{words}")


def example_code(folder: str) -> str:
    """Ten lines that score the example with transformers alone.

    Args:
        folder: The export, or its id on a hub.
    """
    prompt, response = EXAMPLE
    turns = [*((turn.role, turn.content) for turn in prompt), ("assistant", response)]
    user, assistant = (json.dumps({"role": role, "content": text}) for role, text in turns)
    return _EXAMPLE_CODE.format(folder=json.dumps(folder), user=user, assistant=assistant)


def _original_positions(export: Exported) -> int | None:
    """Tokens beyond which positions are scaled in another way (longrope), if any fit."""
    rope = getattr(export.source.model.trunk.config, "rope_parameters", None) or {}
    original = rope.get("original_max_position_embeddings")
    if rope.get("rope_type") != "longrope" or not isinstance(original, int):
        return None
    return original if export.source.tokenizer.max_length > original else None


def _provenance(export: Exported) -> Iterator[tuple[str, str]]:
    source, checked = export.source, export.verification
    known: list[tuple[Any, Mapping[str, str]]] = [
        (source.metadata, _OF_TRAINING),
        (source.metadata.get("backbone_identity"), _OF_BACKBONE),
        (
            export.composition and export.composition.provenance,
            {key: f"weights: {key.replace('_', ' ')}" for key in _OF_WEIGHTS},
        ),
    ]
    yield "model", source.name
    yield "model's weights, SHA-256", source.digest
    for facts, words in known:
        for key, word in words.items():
            if isinstance(facts, Mapping) and facts.get(key) is not None:
                yield word, str(facts[key])
    within = f"scores within {checked.max_difference:.0e} in float32"
    yield "read back with plain transformers", f"{checked.num_probes} conversations, {within}"


def _cell(text: str) -> str:
    """A text that stays within its cell of a table and is read as text."""
    return " ".join(text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").split())
