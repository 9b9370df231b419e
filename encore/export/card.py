"""The model card of an export: what it scores, how to use it, where it comes from, its limits."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
from huggingface_hub import ModelCard, ModelCardData

from encore.export.probes import EXAMPLE
from encore.export.records import OLDEST_TESTED

if TYPE_CHECKING:
    from encore.export.records import Exported

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


def model_card(export: Exported) -> ModelCard:
    """The content of ``README.md``: metadata that the hub reads, then words."""
    source, rules, checked = export.source, export.rules, export.verification
    composition, metadata = rules.composition, source.metadata
    backbone = str(metadata.get("backbone_name", ""))
    data = ModelCardData(
        library_name="transformers",
        pipeline_tag="text-classification",
        license=export.about.licence or "unknown",
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
    oldest = export.minimum_transformers
    shown = list(checked.example_scores.items())[:3]
    scores = ", ".join(f"{label!r}: {score:.6f}" for label, score in shown)
    params = {} if composition is None else composition.params
    evaluation = metadata.get("evaluation")
    words = environment.get_template("model_card.md.jinja").render(
        name=export.name,
        synthetic=export.synthetic,
        labels=export.labels,
        means=rules.mean_by_rule,
        weights=rules.weights,
        is_centred=any(rules.mean_by_rule.values()),
        is_average=rules.weights is None or rules.is_average,
        mean_of_reward=rules.mean_of_reward,
        composition=composition,
        params=", ".join(f"{key} {value}" for key, value in params.items() if key != "log_base"),
        architecture=export.architecture,
        minimum_transformers=oldest,
        dtype=export.dtype,
        example_code=example_code(export.name),
        example_scores=f"{{{scores}{', …' if len(export.labels) > 3 else ''}}}",
        max_length=source.tokenizer.max_length,
        # Its own transformers is the oldest one; it pads on the left, which moves positions.
        rewardbench=oldest == OLDEST_TESTED and len(export.labels) == 1,
        evaluation=evaluation if isinstance(evaluation, Mapping) else None,
        original_positions=_original_positions(export),
        checked=checked,
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
    composition = export.rules.composition
    known: list[tuple[Any, Mapping[str, str]]] = [
        (source.metadata, _OF_TRAINING),
        (source.metadata.get("backbone_identity"), _OF_BACKBONE),
        (
            composition and composition.provenance,
            {key: f"weights: {key.replace('_', ' ')}" for key in _OF_WEIGHTS},
        ),
    ]
    yield "model", source.name
    yield "model's weights, SHA-256", source.digest
    for facts, words in known:
        if isinstance(facts, Mapping):
            yield from (
                (words[key], str(facts[key])) for key in words if facts.get(key) is not None
            )
    within = f"scores within {checked.max_difference:.0e} in float32"
    yield "read back with plain transformers", f"{checked.num_probes} conversations, {within}"


def _cell(text: str) -> str:
    """A text that stays within its cell of a table and is read as text."""
    return " ".join(text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").split())
