"""The card of a published data set: what it holds, how it was rated, what may be done with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import jinja2
from huggingface_hub import DatasetCard, DatasetCardData

from encore.data.pairs import PairsManifest
from encore.publish.publication import origin_text, provenance
from encore.query.study_tables import StudyTables

# --- licences -----------------------------------------------------------------------------------


class Licence(NamedTuple):
    """A licence: its identifier on the Hugging Face hub, and what to say about it."""

    identifier: str
    note: str


_MIT = Licence("mit", "MIT")
_NON_COMMERCIAL = Licence("cc-by-nc-4.0", "CC BY-NC 4.0: no commercial use")
#: Of the repositories that ENCORE knows by name, as their cards say.
_OF_REPOSITORY: Mapping[str, Licence] = {
    "Anthropic/hh-rlhf": _MIT,
    "PKU-Alignment/PKU-SafeRLHF": _NON_COMMERCIAL,
    "PKU-Alignment/PKU-SafeRLHF-10K": _NON_COMMERCIAL,
    "PKU-Alignment/PKU-SafeRLHF-30K": _NON_COMMERCIAL,
    "RLHFlow/HH-RLHF-Harmless-and-RedTeam-standard": _MIT,
    "RLHFlow/PKU-SafeRLHF-30K-standard": _NON_COMMERCIAL,
}
_SYNTHETIC = Licence("other", "synthetic: the terms of whoever made it (ENCORE's demo: Apache-2.0)")


def licences_of(source: PairsManifest) -> list[Licence]:
    """The licence of each origin of a source, in order; one for a synthetic source."""
    if source.synthetic:
        return [_SYNTHETIC]
    licences = [
        _OF_REPOSITORY.get(
            origin.name,
            Licence("unknown", f"not known ({origin.name}): state it before you pass this on"),
        )
        for origin in source.origins
    ]
    return list(dict.fromkeys(licences))


# --- the card -----------------------------------------------------------------------------------


def data_set_card(
    found: StudyTables,
    *,
    name: str,
    num_pairs_of_source: Mapping[str, int],
    num_unrated_pairs: int,
    nulls: Sequence[Mapping[str, object]],
) -> DatasetCard:
    """``README.md``: metadata that ``datasets`` and the hub read, then words.

    Args:
        found: The study; its chosen run is the one published.
        name: The data set's name.
        num_pairs_of_source: Rated pairs of each source.
        num_unrated_pairs: Pairs of the study that the run has not rated.
        nulls: Null ratings: ``rule_id``, ``null_reason``, ``num_nulls``.
    """
    status = found.the_run()
    run = status.manifest
    judge = run.identity["judge"]
    settings = {name: judge[name] for name in ("revision", "backend", "dtype") if name in judge}
    overlong = run.identity["plan"].get("overlong", "unknown")
    others = {f"run {one.manifest.run_key}" for one in found.statuses if one is not status}
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=False,  # noqa: S701  # Markdown; cells of tables are escaped by the filter
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {"cell": _cell, "origin": origin_text, "licences": licences_of}
    words = environment.get_template("data_card.md.jinja").render(
        name=name,
        num_pairs_of_source=num_pairs_of_source,
        num_unrated_pairs=num_unrated_pairs,
        nulls=nulls,
        found=found,
        status=status,
        run=run,
        settings=settings | run.identity.get("decoding", {}) | {"over-long prompts": overlong},
        provenance=[fact for fact in provenance(found) if fact[0] not in others],
    )
    return DatasetCard(f"---\n{_metadata(found, name).to_yaml()}\n---\n\n{words}")


def _metadata(found: StudyTables, name: str) -> DatasetCardData:
    identifiers = {one.identifier for source in found.sources for one in licences_of(source)}
    synthetic = ["synthetic"] if found.synthetic_parts else []
    return DatasetCardData(
        pretty_name=name,
        license=identifiers.pop() if len(identifiers) == 1 else "other",
        tags=["preference", "reward-model", "safety", "rule-ratings", *synthetic],
        configs=[
            {"config_name": "default", "default": True, "data_files": "data/train-*.parquet"},
            {"config_name": "rules", "data_files": "rules/train-*.parquet"},
        ],
    )


def _cell(text: object) -> str:
    """A text that stays within its cell and is read as text."""
    escaped = str(text).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
    return " ".join(escaped.split())
