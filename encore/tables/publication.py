"""Provenance of published data: keys, digests, versions, and the synthetic parts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from encore.core.shown_record import ShownRecord
from encore.core.versions import package_versions
from encore.data.pairs import data_digest
from encore.data.pairs_manifest import Origin
from encore.tables.study_tables import StudyTables

#: Increased whenever tables or columns of a published database change their meaning.
FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Publication(ShownRecord):
    """A published database or data set; its fields are those of `encore publish --json`.

    Attributes:
        path: Path of the file or folder.
        num_bytes: Size of the database or of the pairs' Parquet file, in bytes.
        run_key: Key of the published run.
        is_synthetic: True if pairs, judges or models of the study are synthetic.
        synthetic_parts: The synthetic parts, as phrases for people.
        num_shards: Number of shards in the plan of the run.
        num_missing_shards: Number of shards that are not finished and not published.
    """

    path: Path
    num_bytes: int
    run_key: str
    is_synthetic: bool
    synthetic_parts: tuple[str, ...]
    num_shards: int
    num_missing_shards: int


def run_facts(tables: StudyTables) -> dict[str, Any]:
    """Return the fields of a `Publication` about the run whose ratings it contains.

    Raises:
        InputError: The study has no run, or several and none is chosen.
    """
    status = tables.require_run()
    return {
        "run_key": status.manifest.run_key,
        "is_synthetic": bool(tables.synthetic_parts),
        "synthetic_parts": tables.synthetic_parts,
        "num_shards": len(status.shards),
        "num_missing_shards": len(status.unfinished),
    }


def provenance(tables: StudyTables) -> Iterator[tuple[str, str, str | None]]:
    """Yield facts that identify a study's data and its origin: (subject, name, value)."""
    synthetic = tables.synthetic_parts
    subject = "publication"
    yield subject, "format", str(FORMAT_VERSION)
    yield subject, "is_synthetic", json.dumps(bool(synthetic))
    yield subject, "synthetic_parts", ", ".join(synthetic) or None
    yield subject, "run_of_ratings", tables.chosen.manifest.run_key if tables.chosen else None
    yield subject, "data_sha256", data_digest(tables.study)
    for package, version in package_versions().items():
        yield subject, f"version of {package}", version
    for source in tables.study.sources:
        subject = f"source {source.label}"
        for name in ("data_digest", "parquet_sha256", "encore_version"):
            yield subject, name, getattr(source, name)
        for number, origin in enumerate(source.origins, start=1):
            yield subject, f"origin {number}", origin_text(origin)
    for status in tables.statuses:
        manifest = status.manifest
        subject = f"run {manifest.run_key}"
        yield subject, "judge", manifest.judge
        yield subject, "judge_revision", manifest.identity["judge"].get("revision")
        yield subject, "rule_set", manifest.rule_set
        for name in ("rules_sha256", "prompt_sha256", "data_sha256"):
            yield subject, name, manifest.identity.get(name)
        yield subject, "num_shards", str(len(status.shards))
        yield subject, "num_missing_shards", str(len(status.unfinished))
        for package, version in manifest.versions.items():
            yield subject, f"version of {package}", version


def origin_text(origin: Origin) -> str:
    """Return one line on the origin of records: name, revision, subset, split, kind, format."""
    field_by_label = {
        "at": "revision",
        "subset": "subset",
        "split": "split",
        "preferring": "prefer",
    }
    values = [(label, getattr(origin, field)) for label, field in field_by_label.items()]
    parts = [origin.name, *(f"{label} {value}" for label, value in values if value is not None)]
    return f"{' '.join(parts)} ({origin.kind}, format {origin.format})"
