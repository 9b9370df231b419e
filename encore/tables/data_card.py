"""The card of a published data set: its content, how it was rated, and its licences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from huggingface_hub import DatasetCardData

from encore.data.pairs_manifest import PairsManifest
from encore.exports.hub_card import hub_card
from encore.rating.rating_options import rating_settings
from encore.tables.publication import origin_text, provenance
from encore.tables.study_tables import StudyTables

#: Licences: the identifier on the Hugging Face hub, and the text for people.
_MIT = ("mit", "MIT")
_NON_COMMERCIAL = ("cc-by-nc-4.0", "CC BY-NC 4.0: no commercial use")
#: Licences of known repositories, as stated on their cards.
_LICENCE_BY_REPOSITORY = {
    "Anthropic/hh-rlhf": _MIT,
    "PKU-Alignment/PKU-SafeRLHF": _NON_COMMERCIAL,
    "PKU-Alignment/PKU-SafeRLHF-10K": _NON_COMMERCIAL,
    "PKU-Alignment/PKU-SafeRLHF-30K": _NON_COMMERCIAL,
    "RLHFlow/HH-RLHF-Harmless-and-RedTeam-standard": _MIT,
    "RLHFlow/PKU-SafeRLHF-30K-standard": _NON_COMMERCIAL,
}
_SYNTHETIC = ("other", "synthetic: the terms of whoever made it (ENCORE's demo: Apache-2.0)")


def licences_of(source: PairsManifest) -> list[tuple[str, str]]:
    """Return the licences of a source's origins, each once, in their order.

    A synthetic source has one licence.
    """
    if source.synthetic:
        return [_SYNTHETIC]
    licences = [
        _LICENCE_BY_REPOSITORY.get(
            origin.name, ("unknown", f"not known ({origin.name}): state it before you pass this on")
        )
        for origin in source.origins
    ]
    return list(dict.fromkeys(licences))


def data_set_card(
    tables: StudyTables,
    *,
    name: str,
    num_pairs_of_source: Mapping[str, int],
    num_unrated_pairs: int,
    nulls: Sequence[Mapping[str, object]],
) -> str:
    """Return the text of ``README.md``: metadata for ``datasets`` and the hub, then a description.

    Args:
        tables: Tables of the study. Its chosen run is published.
        name: Name of the data set.
        num_pairs_of_source: Number of rated pairs by source.
        num_unrated_pairs: Pairs of the study that the run has not rated.
        nulls: Counts of null ratings: rows of ``rule_id``, ``null_reason``, ``num_nulls``.
    """
    status = tables.require_run()
    run = status.manifest
    judge = run.identity["judge"]
    settings = {name: judge[name] for name in ("revision", "backend", "dtype") if name in judge}
    # The database has the provenance of all runs; a data set contains only one.
    unpublished_runs = {
        f"run {run_status.manifest.run_key}"
        for run_status in tables.statuses
        if run_status is not status
    }
    return hub_card(
        Path(__file__).with_name("data_card.md.jinja"),
        _card_metadata(tables, name=name),
        name=name,
        num_pairs_of_source=num_pairs_of_source,
        num_unrated_pairs=num_unrated_pairs,
        nulls=nulls,
        study=tables.study,
        synthetic_parts=tables.synthetic_parts,
        origin_text=origin_text,
        licences_of=licences_of,
        status=status,
        run=run,
        settings=settings | rating_settings(run.settings),
        provenance=[fact for fact in provenance(tables) if fact[0] not in unpublished_runs],
    )


def _card_metadata(tables: StudyTables, *, name: str) -> DatasetCardData:
    """Return the metadata of a card that ``datasets`` and the hub read."""
    licence_ids = {
        licence_id for source in tables.study.sources for licence_id, _ in licences_of(source)
    }
    synthetic_tags = ["synthetic"] if tables.synthetic_parts else []
    return DatasetCardData(
        pretty_name=name,
        license=licence_ids.pop() if len(licence_ids) == 1 else "other",
        tags=["preference", "reward-model", "safety", "rule-ratings", *synthetic_tags],
        configs=[
            {"config_name": "default", "default": True, "data_files": "data/train-*.parquet"},
            {"config_name": "rules", "data_files": "rules/train-*.parquet"},
        ],
    )
