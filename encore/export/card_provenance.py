"""The model card's last part: where an export comes from, digest by digest; and its tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from encore.export.card_facts import CardFacts

#: Keys of a model's metadata that identify what it was trained on, with their words in the card.
_DIGESTS = {
    "run_key": "training run",
    "data_sha256": "training data, SHA-256",
    "objective": "objective",
    "num_pairs": "pairs trained on",
    "num_steps": "steps",
    "backbone_name": "backbone",
}
_OF_BACKBONE = {"revision": "backbone's revision", "config_sha256": "backbone's config, SHA-256"}
_OF_WEIGHTS = ("judge", "run_key", "ratings_sha256", "rules_sha256", "num_ratings", "num_pairs")


def provenance(facts: CardFacts) -> str:
    """The section ``Provenance``."""
    return (
        "## Provenance\n\nMade with ENCORE (`encore export`). `encore_export.json` has all of this "
        "for programs.\n\n" + table(("what", "value"), list(_provenance_rows(facts)))
    )


def _provenance_rows(facts: CardFacts) -> Iterator[tuple[str, str]]:
    source, metadata = facts.source, facts.source.metadata
    yield "model", source.name
    yield "model's weights, SHA-256", source.digest
    for key, words in _DIGESTS.items():
        if metadata.get(key) is not None:
            yield words, str(metadata[key])
    backbone = metadata.get("backbone_identity")
    for key, words in _OF_BACKBONE.items():
        if isinstance(backbone, Mapping) and backbone.get(key) is not None:
            yield words, str(backbone[key])
    composition = facts.rules.composition
    if composition is not None and composition.provenance:
        for key in _OF_WEIGHTS:
            if composition.provenance.get(key) is not None:
                yield f"weights: {key.replace('_', ' ')}", str(composition.provenance[key])
    checked = facts.verification
    within = f"scores within {checked.max_difference:.0e} in float32"
    yield "read back with plain transformers", f"{checked.num_probes} conversations, {within}"


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of Markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(map(_cell, line))} |\n" for line in lines)


def _cell(text: str) -> str:
    """A text that stays within its cell and is read as text."""
    return " ".join(text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").split())
