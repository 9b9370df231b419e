"""Where published figures come from: keys, digests, versions, and what of it is synthetic."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from encore.core.errors import InputError
from encore.core.versions import package_versions
from encore.data.pairs import data_digest
from encore.data.pairs_manifest import Origin
from encore.tables.study_tables import StudyTables

#: Raised whenever tables or columns of a published database change their meaning.
FORMAT_VERSION = 1


def run_facts(found: StudyTables) -> dict[str, Any]:
    """What a publication says of the run whose ratings are in it.

    Raises:
        InputError: No run, or several and none is chosen.
    """
    status = found.the_run()
    return {
        "run_key": status.manifest.run_key,
        "is_synthetic": bool(found.synthetic_parts),
        "synthetic_parts": found.synthetic_parts,
        "num_shards": len(status.shards),
        "num_missing_shards": len(status.unfinished),
    }


def refuse_occupied(option: str, out: Path, *, is_ours: bool, force: bool) -> None:
    """Refuse a place that holds something: other things always, our own without ``--force``."""
    if not is_ours:
        raise InputError(f"{option} {out}: there is something else at this place; name a new one")
    if not force:
        raise InputError(f"{option} {out}: is there already; name a new place, or give --force")


def provenance(found: StudyTables) -> Iterator[tuple[str, str, str | None]]:
    """Everything that identifies a study's data and what made it: about what, name, value."""
    synthetic = found.synthetic_parts
    about = "publication"
    yield about, "format", str(FORMAT_VERSION)
    yield about, "is_synthetic", json.dumps(bool(synthetic))
    yield about, "synthetic_parts", ", ".join(synthetic) or None
    yield about, "run_of_ratings", found.chosen.manifest.run_key if found.chosen else None
    yield about, "data_sha256", data_digest(found.study)
    for package, version in package_versions().items():
        yield about, f"version of {package}", version
    for source in found.study.sources:
        about = f"source {source.label}"
        for name in ("data_digest", "parquet_sha256", "encore_version"):
            yield about, name, getattr(source, name)
        for number, origin in enumerate(source.origins, start=1):
            yield about, f"origin {number}", origin_text(origin)
    for status in found.statuses:
        manifest = status.manifest
        about = f"run {manifest.run_key}"
        yield about, "judge", manifest.judge
        yield about, "judge_revision", manifest.identity["judge"].get("revision")
        yield about, "rule_set", manifest.rule_set
        for name in ("rules_sha256", "prompt_sha256", "data_sha256"):
            yield about, name, manifest.identity.get(name)
        yield about, "num_shards", str(len(status.shards))
        yield about, "num_missing_shards", str(len(status.unfinished))
        for package, version in manifest.versions.items():
            yield about, f"version of {package}", version


def origin_text(origin: Origin) -> str:
    """Where records came from, in one line."""
    words = {"at": "revision", "subset": "subset", "split": "split", "preferring": "prefer"}
    given = [(word, getattr(origin, field)) for word, field in words.items()]
    parts = [origin.name, *(f"{word} {value}" for word, value in given if value is not None)]
    return f"{' '.join(parts)} ({origin.kind}, format {origin.format})"
