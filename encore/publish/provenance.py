"""Where published figures come from: keys, digests, versions, and what of it is synthetic."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from encore.data.pairs import Origin, PairsManifest, data_digest
from encore.query.study_tables import StudyTables
from encore.rating_runs import RatingStatus
from encore.versions import package_versions

#: Table ``provenance`` of a published database.
PROVENANCE = pa.schema([(name, pa.string()) for name in ("about", "name", "value")])
PROVENANCE_ABOUT = "Where this comes from. One row per (about, name)."

#: Raised whenever tables or columns of a published database change their meaning.
FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One line of provenance: of what, which property, its value."""

    about: str
    name: str
    value: str | None


def provenance(found: StudyTables) -> tuple[Fact, ...]:
    """Everything that identifies a study's data and what made it."""
    return tuple(_facts(found))


def provenance_table(found: StudyTables) -> pa.Table:
    """The same as a table of schema `PROVENANCE`."""
    rows = [{"about": f.about, "name": f.name, "value": f.value} for f in provenance(found)]
    return pa.Table.from_pylist(rows, schema=PROVENANCE)


def origin_text(origin: Origin) -> str:
    """Where records came from, in one line."""
    parts = [origin.name]
    if origin.revision is not None:
        parts.append(f"at {origin.revision}")
    if origin.subset is not None:
        parts.append(f"subset {origin.subset}")
    if origin.split is not None:
        parts.append(f"split {origin.split}")
    if origin.prefer is not None:
        parts.append(f"preferring {origin.prefer}")
    return f"{' '.join(parts)} ({origin.kind}, format {origin.format})"


def _facts(found: StudyTables) -> Iterator[Fact]:
    synthetic = found.synthetic_parts
    chosen = None if found.chosen is None else found.chosen.manifest.run_key
    yield Fact(about="publication", name="format", value=str(FORMAT_VERSION))
    yield Fact(about="publication", name="is_synthetic", value=json.dumps(bool(synthetic)))
    yield Fact(about="publication", name="synthetic_parts", value=", ".join(synthetic) or None)
    yield Fact(about="publication", name="run_of_ratings", value=chosen)
    yield Fact(about="publication", name="data_sha256", value=data_digest(found.study))
    for package, version in package_versions().items():
        yield Fact(about="publication", name=f"version of {package}", value=version)
    for source in found.sources:
        yield from _source_facts(source)
    for status in found.statuses:
        yield from _run_facts(status)


def _source_facts(source: PairsManifest) -> Iterator[Fact]:
    about = f"source {source.label}"
    yield Fact(about=about, name="data_digest", value=source.data_digest)
    yield Fact(about=about, name="parquet_sha256", value=source.parquet_sha256)
    yield Fact(about=about, name="encore_version", value=source.encore_version)
    for number, origin in enumerate(source.origins, start=1):
        yield Fact(about=about, name=f"origin {number}", value=origin_text(origin))


def _run_facts(status: RatingStatus) -> Iterator[Fact]:
    manifest = status.manifest
    about = f"run {manifest.run_key}"
    judge = manifest.identity["judge"]
    yield Fact(about=about, name="judge", value=manifest.judge)
    yield Fact(about=about, name="judge_revision", value=judge.get("revision"))
    yield Fact(about=about, name="rule_set", value=manifest.rule_set)
    for name in ("rules_sha256", "prompt_sha256", "data_sha256"):
        yield Fact(about=about, name=name, value=manifest.identity.get(name))
    yield Fact(about=about, name="num_shards", value=str(len(status.shards)))
    num_open = len(status.shards) - status.count("done")
    yield Fact(about=about, name="num_missing_shards", value=str(num_open))
    for package, version in manifest.versions.items():
        yield Fact(about=about, name=f"version of {package}", value=version)
