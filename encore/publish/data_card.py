"""The card of a published data set: what it holds, how it was rated, what may be done with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import pyarrow as pa
from huggingface_hub import DatasetCard, DatasetCardData

from encore.data.pairs import PairsManifest
from encore.publish.publication import origin_text, provenance
from encore.query.study_tables import StudyTables

_SIZES = ((1e3, "n<1K"), (1e4, "1K<n<10K"), (1e5, "10K<n<100K"), (1e6, "100K<n<1M"))


# --- licences -----------------------------------------------------------------------------------


class Licence(NamedTuple):
    """A licence: its identifier on the Hugging Face hub, and what to say about it."""

    identifier: str
    note: str


_MIT, _NC = "mit", "cc-by-nc-4.0"
_NON_COMMERCIAL = "CC BY-NC 4.0: no commercial use"
#: Of the repositories that ENCORE knows by name, as their cards say.
_OF_REPOSITORY: Mapping[str, Licence] = {
    "Anthropic/hh-rlhf": Licence(_MIT, "MIT"),
    "PKU-Alignment/PKU-SafeRLHF": Licence(_NC, _NON_COMMERCIAL),
    "PKU-Alignment/PKU-SafeRLHF-10K": Licence(_NC, _NON_COMMERCIAL),
    "PKU-Alignment/PKU-SafeRLHF-30K": Licence(_NC, _NON_COMMERCIAL),
    "RLHFlow/HH-RLHF-Harmless-and-RedTeam-standard": Licence(
        _MIT, "derived from Anthropic/hh-rlhf, MIT"
    ),
    "RLHFlow/PKU-SafeRLHF-30K-standard": Licence(
        _NC, f"derived from PKU-Alignment/PKU-SafeRLHF-30K, {_NON_COMMERCIAL}"
    ),
}
_SYNTHETIC = Licence("other", "synthetic: the terms of whoever made it (ENCORE's demo: Apache-2.0)")


def licences_of(source: PairsManifest) -> list[Licence]:
    """The licence of each origin of a source, in order; one for a synthetic source."""
    if source.synthetic:
        return [_SYNTHETIC]
    licences = []
    for origin in source.origins:
        where = "data set" if origin.kind == "hub" else "local file"
        note = f"not known ({where} {origin.name}): state it before you pass this on"
        known = _OF_REPOSITORY.get(origin.name) if origin.kind == "hub" else None
        licences.append(known or Licence("unknown", note))
    return list(dict.fromkeys(licences))


def joint_identifier(licences: Sequence[Licence]) -> str:
    """The one identifier of several licences; ``other`` where they differ."""
    identifiers = {licence.identifier for licence in licences}
    return identifiers.pop() if len(identifiers) == 1 else "other"


# --- the card -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class CardFacts:
    """What a card says.

    Attributes:
        name: The data set's name.
        found: The study; its chosen run is the one published.
        schema: Of a row.
        num_pairs_of_source: Rated pairs of each source.
        num_file_bytes: Size of the Parquet files.
        num_memory_bytes: Size of their content in memory.
        nulls: Null ratings: rule, reason, how many.
    """

    name: str
    found: StudyTables
    schema: pa.Schema
    num_pairs_of_source: Mapping[str, int]
    num_file_bytes: int
    num_memory_bytes: int
    nulls: tuple[tuple[str, str, int], ...]

    @property
    def num_pairs(self) -> int:
        """Rows of the data set."""
        return sum(self.num_pairs_of_source.values())

    @property
    def num_unrated_pairs(self) -> int:
        """Pairs of the study that the run has not rated."""
        return sum(source.num_kept for source in self.found.sources) - self.num_pairs


def data_set_card(facts: CardFacts) -> DatasetCard:
    """``README.md``: metadata that ``datasets`` and the hub read, then words."""
    found, status = facts.found, facts.found.the_run()
    run = status.manifest
    sources = [
        {
            "label": f"{source.label} (synthetic)" if source.synthetic else source.label,
            "num_pairs": facts.num_pairs_of_source.get(source.label, 0),
            "origins": "; ".join(map(origin_text, source.origins)),
            "licences": "; ".join(licence.note for licence in licences_of(source)),
        }
        for source in found.sources
    ]
    judge = run.identity["judge"]
    settings = {name: judge[name] for name in ("revision", "backend", "dtype") if name in judge}
    overlong = run.identity["plan"].get("overlong", "unknown")
    wanted = {
        "publication",
        f"run {run.run_key}",
        *(f"source {one.label}" for one in found.sources),
    }
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=False,  # noqa: S701  # Markdown; cells of tables are escaped by the filter
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["cell"] = _cell
    words = environment.get_template("data_card.md.jinja").render(
        facts=facts,
        run=run,
        synthetic=found.synthetic_parts,
        num_shards=len(status.shards),
        num_open=len(status.problems),
        sources=sources,
        settings=settings | run.identity.get("decoding", {}) | {"over-long prompts": overlong},
        provenance=[fact for fact in provenance(found) if fact[0] in wanted],
    )
    return DatasetCard(f"---\n{_metadata(facts).to_yaml()}\n---\n\n{words}")


def _metadata(facts: CardFacts) -> DatasetCardData:
    licences = [one for source in facts.found.sources for one in licences_of(source)]
    size = next((name for limit, name in _SIZES if facts.num_pairs < limit), "n>1M")
    synthetic = ["synthetic"] if facts.found.synthetic_parts else []
    split = {
        "name": "train",
        "num_bytes": facts.num_memory_bytes,
        "num_examples": facts.num_pairs,
    }
    info = {
        "config_name": "default",
        "features": [_feature(field) for field in facts.schema],
        "splits": [split],
        "download_size": facts.num_file_bytes,
        "dataset_size": facts.num_memory_bytes,
    }
    return DatasetCardData(
        pretty_name=facts.name,
        license=joint_identifier(licences),
        size_categories=[size],
        tags=["preference", "reward-model", "safety", "rule-ratings", *synthetic],
        configs=[
            {"config_name": "default", "default": True, "data_files": _files("data")},
            {"config_name": "rules", "data_files": _files("rules")},
        ],
        dataset_info=[info],
    )


def _files(folder: str) -> list[dict[str, str]]:
    return [{"split": "train", "path": f"{folder}/train-*.parquet"}]


def _feature(field: pa.Field) -> dict[str, Any]:
    """A field as the metadata of ``datasets`` describes it."""
    if pa.types.is_struct(field.type):
        return {"name": field.name, "struct": [_feature(one) for one in field.type.fields]}
    if pa.types.is_list(field.type):
        return {"name": field.name, "list": [_feature(one) for one in field.type.value_type.fields]}
    return {"name": field.name, "dtype": "float64" if field.type == pa.float64() else "string"}


def _cell(text: object) -> str:
    """A text that stays within its cell and is read as text."""
    escaped = str(text).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
    return " ".join(escaped.split())
