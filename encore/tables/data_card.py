"""The card of a published data set: what it holds, how it was rated, what may be done with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from huggingface_hub import DatasetCardData

from encore.data.pairs_manifest import PairsManifest
from encore.export.hub_card import hub_card
from encore.tables.publication import origin_text, provenance
from encore.tables.study_tables import StudyTables

#: Licences by their identifier on the Hugging Face hub, and what to say about them.
_MIT = ("mit", "MIT")
_NON_COMMERCIAL = ("cc-by-nc-4.0", "CC BY-NC 4.0: no commercial use")
#: Of the repositories that ENCORE knows by name, as their cards say.
_OF_REPOSITORY = {
    "Anthropic/hh-rlhf": _MIT,
    "PKU-Alignment/PKU-SafeRLHF": _NON_COMMERCIAL,
    "PKU-Alignment/PKU-SafeRLHF-10K": _NON_COMMERCIAL,
    "PKU-Alignment/PKU-SafeRLHF-30K": _NON_COMMERCIAL,
    "RLHFlow/HH-RLHF-Harmless-and-RedTeam-standard": _MIT,
    "RLHFlow/PKU-SafeRLHF-30K-standard": _NON_COMMERCIAL,
}
_SYNTHETIC = ("other", "synthetic: the terms of whoever made it (ENCORE's demo: Apache-2.0)")


def licences_of(source: PairsManifest) -> list[tuple[str, str]]:
    """The licence of each origin of a source, in order; one for a synthetic source."""
    if source.synthetic:
        return [_SYNTHETIC]
    licences = [
        _OF_REPOSITORY.get(
            origin.name, ("unknown", f"not known ({origin.name}): state it before you pass this on")
        )
        for origin in source.origins
    ]
    return list(dict.fromkeys(licences))


def data_set_card(
    found: StudyTables,
    *,
    name: str,
    num_pairs_of_source: Mapping[str, int],
    num_unrated_pairs: int,
    nulls: Sequence[Mapping[str, object]],
) -> str:
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
    return hub_card(
        Path(__file__).with_name("data_card.md.jinja"),
        _metadata(found, name),
        name=name,
        num_pairs_of_source=num_pairs_of_source,
        num_unrated_pairs=num_unrated_pairs,
        nulls=nulls,
        found=found,
        origin_text=origin_text,
        licences_of=licences_of,
        status=status,
        run=run,
        settings=settings | run.identity.get("decoding", {}) | {"over-long prompts": overlong},
        provenance=[fact for fact in provenance(found) if fact[0] not in others],
    )


def _metadata(found: StudyTables, name: str) -> DatasetCardData:
    identifiers = {name for source in found.study.sources for name, _ in licences_of(source)}
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
