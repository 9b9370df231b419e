"""Publish a study as one DuckDB file with all tables, which DuckDB 1.4 and later open."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from encore.core.files import atomic_path
from encore.tables.publication import Publication, provenance, run_facts
from encore.tables.query_files import files_to_create, query_files
from encore.tables.study_database import StudyDatabase, StudyTable, literal, open_database, quoted
from encore.tables.study_tables import StudyTables, ratings_table, table_docs
from encore.tables.verdict_rows import with_rule_verdicts

#: The oldest storage format that the current DuckDB writes and 1.4, its long-term release, reads.
STORAGE_VERSION = "v1.4.0"

_CATALOG = "published"
#: Prefix of the names of Arrow data, of which the published tables are made.
_ARROW_PREFIX = "_arrow_"
_MAGIC, _MAGIC_OFFSET = b"DUCK", 8
_OTHER_RATINGS_DESCRIPTION = (
    "The ratings of the study's other runs. One row per "
    "(run_key, source, pair_id, response, rule_id)."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedDatabase(Publication):
    """A published database.

    Attributes:
        tables: Number of rows of each table, by name.
        views: Names of the views.
        macros: Example calls of the macros.
    """

    tables: Mapping[str, int]
    views: tuple[str, ...]
    macros: tuple[str, ...]


def write_database(out: Path, tables: StudyTables) -> PublishedDatabase:
    """Write a DuckDB file with the study's tables, the queries of `sql/`, and provenance."""
    with atomic_path(out) as temporary:
        try:
            num_rows, views = _write(temporary, tables)
        finally:
            temporary.with_name(f"{temporary.name}.wal").unlink(missing_ok=True)
    return PublishedDatabase(
        path=out,
        num_bytes=out.stat().st_size,
        tables=num_rows,
        views=views,
        macros=tuple(file.call for file in query_files() if file.call),
        **run_facts(tables),
    )


def is_database(path: Path) -> bool:
    """Return True for a DuckDB file."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        file.seek(_MAGIC_OFFSET)
        return file.read(len(_MAGIC)) == _MAGIC


def _write(path: Path, study: StudyTables) -> tuple[dict[str, int], tuple[str, ...]]:
    """Fill a new file. Return the number of rows by table, and the names of the views."""
    study = with_rule_verdicts(study)
    other_runs = [status for status in study.statuses if status is not study.chosen]
    tables: dict[str, tuple[StudyTable, str]] = {
        name: (study.by_name[name], doc.description)
        for name, doc in table_docs().items()
        if name != "all_ratings"
    }
    tables["other_ratings"] = (ratings_table(other_runs), _OTHER_RATINGS_DESCRIPTION)
    columns = list(map(pa.array, zip(*provenance(study), strict=True)))
    facts = pa.table(columns, names=["about", "name", "value"])
    tables["provenance"] = (facts, "Where this comes from. One row per (about, name).")
    arrow_tables = {f"{_ARROW_PREFIX}{name}": table for name, (table, _) in tables.items()}
    with open_database(arrow_tables) as database:
        database.execute(
            f"attach {literal(str(path))} as {_CATALOG} (storage_version '{STORAGE_VERSION}')"
        )
        database.execute(f"use {_CATALOG}")
        num_rows = {}
        for name, (_, description) in tables.items():
            database.execute(f"create table {name} as from {_ARROW_PREFIX}{name}")
            database.execute(f"comment on table {name} is {literal(description)}")
            count = database.fetch(f"select count(*) as num_rows from {name}")  # noqa: S608 - our own text
            num_rows[name] = int(count["num_rows"][0].as_py())
        views = _create_views(database)
        database.execute("use memory")
        database.execute(f"checkpoint {_CATALOG}")
        database.execute(f"detach {_CATALOG}")
    return num_rows, views


def _create_views(database: StudyDatabase) -> tuple[str, ...]:
    database.execute("create view all_ratings as from ratings union all by name from other_ratings")
    descriptions = {"all_ratings": table_docs()["all_ratings"].description}
    for file in files_to_create():
        database.execute(file.definition)
        if not file.call:
            descriptions[file.name] = f"{file.question} Grain: {file.grain}."
    for name, description in descriptions.items():
        database.execute(f"comment on view {quoted(name)} is {literal(description)}")
    return tuple(sorted(descriptions))
