"""A DuckDB connection in memory that holds a study's tables and can be locked for good.

DuckDB never opens a study's files: Arrow reads them for it. So a connection that is locked, which
takes DuckDB's own access to files, network, extensions and settings away, still answers.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyarrow.fs import LocalFileSystem

from encore.core.errors import EncoreError, InputError
from encore.core.stopping import stop_on_signal

#: What a query may put on disk while it runs, in a folder that is deleted afterwards.
_SPILL_LIMIT = "20GB"
_ROWS_PER_BATCH = 8192
#: A SELECT (FROM, VALUES, WITH, SUMMARIZE …), its plan, or a PIVOT that looks up its columns.
_KINDS = {"SELECT", "EXPLAIN", "MULTI"}
#: The order matters: the last of these settings forbids all further ones.
_LOCK = (
    "set allowed_directories = []",
    "set allowed_paths = []",
    "set enable_external_access = false",
    "set lock_configuration = true",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePart:
    """Parquet files that are read when asked for, and what SQL makes of their rows.

    Attributes:
        paths: The files, absolute.
        schema: Their columns.
        select: The beginning of a query over them, up to ``from``.
    """

    paths: tuple[str, ...]
    schema: pa.Schema
    select: str = "select *"


#: What can be shown to SQL under a name; the rows of several parts follow each other.
StudyTable: TypeAlias = pa.Table | tuple[FilePart, ...]


def encoded(table: StudyTable, spare: Path) -> list[dict[str, Any]]:
    """A table as JSON, for another process; rows that are in no file are written to ``spare``."""
    if isinstance(table, pa.Table):
        pq.write_table(table, spare)
        table = (FilePart(paths=(str(spare),), schema=table.schema),)
    return [
        {**asdict(part), "schema": part.schema.serialize().to_pybytes().hex()} for part in table
    ]


def decoded(content: list[dict[str, Any]]) -> tuple[FilePart, ...]:
    """What `encoded` was given."""
    parts = []
    for part in content:
        schema = pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(part["schema"])))
        parts.append(FilePart(**part | {"schema": schema}))
    return tuple(parts)


@dataclass(frozen=True, slots=True)
class StudyDatabase:
    """Tables of a study, given as Arrow data. Get one from `open_database`."""

    _connection: duckdb.DuckDBPyConnection

    def execute(self, sql: str) -> None:
        """Run a statement of our own."""
        with named_errors():
            self._connection.execute(sql)

    def fetch(self, sql: str, **parameters: Any) -> pa.Table:
        """All rows of a query of our own."""
        with named_errors():
            return self._connection.sql(sql, params=parameters).to_arrow_table()

    def select(self, sql: str) -> pa.RecordBatchReader:
        """The rows of a user's query, batch by batch.

        Raises:
            InputError: Not one SELECT, or a mistake in it.
            EncoreError: Out of memory.
        """
        with named_errors():
            kinds = [one.type.name for one in self._connection.extract_statements(sql)]
            if len(kinds) != 1 or kinds[0] not in _KINDS:
                raise InputError(
                    f"query: found {', '.join(kinds) or 'none'}; expected one SELECT, which "
                    "changes nothing"
                )
            return self._connection.sql(sql).to_arrow_reader(_ROWS_PER_BATCH)


@contextmanager
def open_database(
    tables: Mapping[str, StudyTable],
    *,
    views: Iterable[str] | None = None,
    config: Mapping[str, Any] | None = None,
) -> Iterator[StudyDatabase]:
    """A connection with these tables.

    Args:
        tables: By name.
        views: Statements that define more; with them, the connection is locked: every access to
            files, network, extensions and settings is taken away.
        config: Settings of DuckDB; default: `encore.core.settings.duckdb_config`.
    """
    if config is None:
        from encore.core.settings import duckdb_config

        config = duckdb_config()
    with tempfile.TemporaryDirectory(prefix="encore-duckdb-") as spill_dir:
        settings: dict[str, Any] = {
            "temp_directory": spill_dir,
            "max_temp_directory_size": _SPILL_LIMIT,
            "allow_community_extensions": False,
            "allow_persistent_secrets": False,
        }
        with (
            duckdb.connect(config={**config, **settings}) as connection,
            stop_on_signal(connection.interrupt),
        ):
            connection.execute("set enable_progress_bar = false")  # it would be drawn on stdout
            database = StudyDatabase(connection)
            for name, table in tables.items():
                _show(connection, name, table)
            if views is not None:
                for statement in (*views, *_LOCK):
                    database.execute(statement)
            yield database


def _show(connection: duckdb.DuckDBPyConnection, name: str, table: StudyTable) -> None:
    if isinstance(table, pa.Table):
        connection.register(name, table)
        return
    selects = []
    for place, part in enumerate(table):
        dataset = ds.dataset(
            list(part.paths), schema=part.schema, format="parquet", filesystem=LocalFileSystem()
        )
        connection.register(f"_{name}_{place}", dataset)
        selects.append(f'{part.select} from "_{name}_{place}"')
    connection.execute(f"create temp view {name} as {' union all '.join(selects)}")


@contextmanager
def named_errors() -> Iterator[None]:
    """Say what DuckDB or Arrow say about a query as one line.

    Raises:
        EncoreError: Out of memory or temporary disk space.
        InputError: Everything else.
    """
    try:
        yield
    except (duckdb.Error, pa.ArrowException, OSError) as error:  # OSError: a late batch fails
        text = re.split(r"\n\s*(?=LINE \d+:)", str(error).strip())[0]
        problem = " ".join(text.split("Stack Trace:")[0].split())
        if isinstance(error, duckdb.OutOfMemoryException) or "Out of Memory" in problem:
            raise EncoreError(
                f"query: not enough memory or temporary disk space ({problem}); narrow it, or give "
                "a larger --memory-limit"
            ) from error
        raise InputError(f"query: {problem}") from error


def quoted(name: str) -> str:
    """A name as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A text as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"
