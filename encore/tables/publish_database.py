"""Publish a study as one DuckDB file that holds everything and that DuckDB 1.4 still opens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from encore.core.errors import InputError
from encore.core.files import atomic_path
from encore.data.study import open_study
from encore.tables.publication import provenance, refuse_occupied, run_facts
from encore.tables.query_files import query_files
from encore.tables.study_database import StudyDatabase, StudyTable, literal, open_database, quoted
from encore.tables.study_tables import StudyTables, ratings_of, study_tables, table_docs

#: The oldest storage format that the current DuckDB writes and 1.4, its long-term release, reads.
STORAGE_VERSION = "v1.4.0"

_CATALOG = "published"
#: Arrow data stands beside the tables made of it, under names of its own.
_PREFIX = "_arrow_"
_MAGIC, _MAGIC_OFFSET = b"DUCK", 8
_OTHER_RATINGS_ABOUT = (
    "The ratings of the study's other runs. One row per "
    "(run_key, source, pair_id, response, rule_id)."
)


def publish_database(
    study: Path, *, out: Path, run: str | None = None, judge: str | None = None, force: bool = False
) -> dict[str, Any]:
    """Write every table of a study, the queries of `sql/` as views, and where it all comes from.

    The file appears whole or not at all. Table ``ratings`` and the queries are of one run; the
    ratings of other runs are in ``other_ratings``, all together in view ``all_ratings``. Returns
    what `encore publish --json` says of it.

    Args:
        study: The study's directory.
        out: The file to write.
        run: The run of ``ratings``, by a unique prefix of its key, where there are several.
        judge: The same by its judge.
        force: Replace an existing DuckDB file.

    Raises:
        InputError: Not a study, no ratings, no run chosen; something else at ``out``.
        EncoreError: A damaged `run.json`.
    """
    if not out.parent.is_dir():
        raise InputError(f"--out {out}: there is no folder {out.parent}; make it first")
    if out.exists():
        refuse_occupied("--out", out, is_ours=_is_database(out), force=force)
    found = study_tables(open_study(study), run=run, judge=judge)
    of_run = run_facts(found)
    with atomic_path(out) as temporary:
        try:
            tables, views = _write(temporary, found)
        finally:
            temporary.with_name(f"{temporary.name}.wal").unlink(missing_ok=True)
    return {
        "path": out,
        "num_bytes": out.stat().st_size,
        "tables": tables,
        "views": views,
        "macros": [file.call for file in query_files() if file.call],
        **of_run,
    }


def _is_database(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        file.seek(_MAGIC_OFFSET)
        return file.read(len(_MAGIC)) == _MAGIC


def _write(path: Path, found: StudyTables) -> tuple[dict[str, int], tuple[str, ...]]:
    """Fill a new file; returns the rows of each table, and the views."""
    others = [status for status in found.statuses if status is not found.chosen]
    tables: dict[str, tuple[StudyTable, str]] = {
        name: (found.tables[name], doc.about)
        for name, doc in table_docs().items()
        if name != "all_ratings"
    }
    tables["other_ratings"] = (ratings_of(others), _OTHER_RATINGS_ABOUT)
    columns = list(map(pa.array, zip(*provenance(found), strict=True)))
    facts = pa.table(columns, names=["about", "name", "value"])
    tables["provenance"] = (facts, "Where this comes from. One row per (about, name).")
    given = {f"{_PREFIX}{name}": table for name, (table, _) in tables.items()}
    with open_database(given) as database:
        database.execute(
            f"attach {literal(str(path))} as {_CATALOG} (storage_version '{STORAGE_VERSION}')"
        )
        database.execute(f"use {_CATALOG}")
        num_rows = {}
        for name, (_, about) in tables.items():
            database.execute(f"create table {name} as from {_PREFIX}{name}")
            database.execute(f"comment on table {name} is {literal(about)}")
            count = database.fetch(f"select count(*) as num_rows from {name}")  # noqa: S608 - our own text
            num_rows[name] = int(count["num_rows"][0].as_py())
        views = _create_views(database)
        database.execute("use memory")
        database.execute(f"checkpoint {_CATALOG}")
        database.execute(f"detach {_CATALOG}")
    return num_rows, views


def _create_views(database: StudyDatabase) -> tuple[str, ...]:
    database.execute("create view all_ratings as from ratings union all by name from other_ratings")
    abouts = {"all_ratings": table_docs()["all_ratings"].about}
    for file in query_files():
        database.execute(file.definition)
        if not file.call:
            abouts[file.name] = f"{file.question} Grain: {file.grain}."
    for name, about in abouts.items():
        database.execute(f"comment on view {quoted(name)} is {literal(about)}")
    return tuple(abouts)
