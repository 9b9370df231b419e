"""Publish a study as one DuckDB file that holds everything and that DuckDB 1.4 still opens."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from encore.data.study import open_study
from encore.errors import InputError
from encore.files import atomic_path
from encore.publish.provenance import PROVENANCE_ABOUT, provenance_table
from encore.query.query_files import query_files
from encore.query.study_database import StudyDatabase, StudyTable, literal, open_database, quoted
from encore.query.study_tables import (
    TABLE_DOCS,
    StudyTables,
    ratings_of,
    study_tables,
)

#: The oldest storage format that the current DuckDB writes and 1.4, its long-term release, reads.
STORAGE_VERSION = "v1.4.0"

_CATALOG = "published"
#: Arrow data stands beside the tables made of it, under names of its own.
_PREFIX = "_arrow_"
_MAGIC, _MAGIC_OFFSET = b"DUCK", 8
_OTHER_RATINGS = "other_ratings"
_OTHER_RATINGS_ABOUT = (
    "The ratings of the study's other runs. One row per "
    "(run_key, source, pair_id, response, rule_id)."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedDatabase:
    """A written database file.

    Attributes:
        path: The file.
        num_bytes: Its size.
        tables: Rows of each table.
        views: The views: ``all_ratings`` and one per query of `sql/`.
        macros: The table macros, as they are called.
        run_key: The run of table ``ratings``.
        synthetic_parts: What of the study is synthetic, in words.
        num_shards: Shards of that run's plan.
        num_missing_shards: Those that are not in it.
    """

    path: Path
    num_bytes: int
    tables: dict[str, int]
    views: tuple[str, ...]
    macros: tuple[str, ...]
    run_key: str
    synthetic_parts: tuple[str, ...]
    num_shards: int
    num_missing_shards: int

    def as_dict(self) -> dict[str, Any]:
        """The JSON of ``encore publish --json``, part ``database``."""
        return {
            "path": str(self.path),
            "num_bytes": self.num_bytes,
            "tables": self.tables,
            "views": list(self.views),
            "macros": list(self.macros),
            "run_key": self.run_key,
            "is_synthetic": bool(self.synthetic_parts),
            "synthetic_parts": list(self.synthetic_parts),
            "num_shards": self.num_shards,
            "num_missing_shards": self.num_missing_shards,
        }


def publish_database(
    study: Path,
    *,
    out: Path,
    run: str | None = None,
    judge: str | None = None,
    force: bool = False,
) -> PublishedDatabase:
    """Write every table of a study, the queries of `sql/` as views, and where it all comes from.

    The file appears whole or not at all. Table ``ratings`` and the queries are of one run; the
    ratings of other runs are in ``other_ratings``, all together in view ``all_ratings``.

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
    _refuse_occupied(out, force=force)
    found = study_tables(open_study(study), run=run, judge=judge)
    chosen = found.the_run()
    with atomic_path(out) as temporary, _without_log(temporary):
        tables, views = _write(temporary, found)
    return PublishedDatabase(
        path=out,
        num_bytes=out.stat().st_size,
        tables=tables,
        views=views,
        macros=tuple(file.call for file in query_files() if file.call is not None),
        run_key=chosen.manifest.run_key,
        synthetic_parts=found.synthetic_parts,
        num_shards=len(chosen.shards),
        num_missing_shards=len(chosen.shards) - chosen.count("done"),
    )


def _refuse_occupied(out: Path, *, force: bool) -> None:
    if not out.parent.is_dir():
        raise InputError(f"--out {out}: there is no folder {out.parent}; make it first")
    if not out.exists():
        return
    if not out.is_file():
        raise InputError(f"--out {out}: there is a folder of this name; name a file")
    with out.open("rb") as file:
        file.seek(_MAGIC_OFFSET)
        is_database = file.read(len(_MAGIC)) == _MAGIC
    if not is_database:
        raise InputError(f"--out {out}: this file is not a DuckDB database; name another one")
    if not force:
        raise InputError(f"--out {out}: is there already; name another file, or give --force")


@contextlib.contextmanager
def _without_log(path: Path) -> Iterator[None]:
    """Leave no write-ahead log behind, whatever happens."""
    try:
        yield
    finally:
        path.with_name(f"{path.name}.wal").unlink(missing_ok=True)


def _write(path: Path, found: StudyTables) -> tuple[dict[str, int], tuple[str, ...]]:
    """Fill a new file; returns the rows of each table, and the views."""
    content = _content(found)
    given = {f"{_PREFIX}{name}": table for name, (table, _) in content.items()}
    with open_database(given) as database:
        database.execute(
            f"attach {literal(str(path))} as {_CATALOG} (storage_version '{STORAGE_VERSION}')"
        )
        database.execute(f"use {_CATALOG}")
        for name, (_, about) in content.items():
            database.execute(f"create table {name} as from {_PREFIX}{name}")
            database.execute(f"comment on table {name} is {literal(about)}")
        views = _create_views(database)
        rows = {name: _num_rows(database, name) for name in content}
        database.execute("use memory")
        database.execute(f"checkpoint {_CATALOG}")
        database.execute(f"detach {_CATALOG}")
    return rows, views


def _content(found: StudyTables) -> dict[str, tuple[StudyTable, str]]:
    """Every table to write, with what it holds."""
    content: dict[str, tuple[StudyTable, str]] = {
        name: (found.tables[name], doc.about)
        for name, doc in TABLE_DOCS.items()
        if name != "all_ratings"
    }
    content[_OTHER_RATINGS] = (_other_ratings(found), _OTHER_RATINGS_ABOUT)
    content["provenance"] = (provenance_table(found), PROVENANCE_ABOUT)
    return content


def _other_ratings(found: StudyTables) -> StudyTable:
    return ratings_of([status for status in found.statuses if status is not found.chosen])


def _create_views(database: StudyDatabase) -> tuple[str, ...]:
    about = literal(TABLE_DOCS["all_ratings"].about)
    database.execute(
        f"create view all_ratings as from ratings union all by name from {_OTHER_RATINGS}"
    )
    database.execute(f"comment on view all_ratings is {about}")
    views = ["all_ratings"]
    for file in query_files():
        database.execute(file.definition)
        if not file.is_macro:
            comment = literal(f"{file.question} Grain: {file.grain}.")
            database.execute(f"comment on view {quoted(file.name)} is {comment}")
            views.append(file.name)
    return tuple(views)


def _num_rows(database: StudyDatabase, name: str) -> int:
    found = database.fetch(f"select count(*) as num_rows from {name}")  # noqa: S608 - our own text
    return int(found["num_rows"][0].as_py())
