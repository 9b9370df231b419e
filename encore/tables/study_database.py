"""A DuckDB connection in memory that holds a study's tables and can be locked permanently.

Arrow reads the study's files for DuckDB, which never opens them itself. A locked connection has no
access to files, network, extensions and settings, and still answers queries.
"""

from __future__ import annotations

import re
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

from encore.core.duckdb_progress import hide_progress_bar
from encore.core.errors import EncoreError, InputError
from encore.core.leftovers import scratch_folder
from encore.core.stop_signals import stop_on_signal

#: Disk space of a running query. Its folder is deleted afterwards.
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
    """Parquet files, read when a query reads them, and the SELECT that makes rows of them.

    Attributes:
        paths: Absolute paths of the files.
        schema: Columns that the files have.
        select: Beginning of the query over the files, up to ``from``.
    """

    paths: tuple[str, ...]
    schema: pa.Schema
    select: str = "select *"


#: A table for SQL: rows in memory, or files. Rows of several parts follow each other.
StudyTable: TypeAlias = pa.Table | tuple[FilePart, ...]


def encode_table(table: StudyTable, spill_file: Path) -> list[dict[str, Any]]:
    """Return a table as JSON for another process. Rows in memory are written to ``spill_file``."""
    if isinstance(table, pa.Table):
        pq.write_table(table, spill_file)
        table = (FilePart(paths=(str(spill_file),), schema=table.schema),)
    return [
        {**asdict(part), "schema": part.schema.serialize().to_pybytes().hex()} for part in table
    ]


def decode_table(content: list[dict[str, Any]]) -> tuple[FilePart, ...]:
    """Return the table that `encode_table` made JSON of."""
    parts = []
    for part in content:
        schema = pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(part["schema"])))
        parts.append(FilePart(**part | {"schema": schema}))
    return tuple(parts)


@dataclass(frozen=True, slots=True)
class StudyDatabase:
    """Open connection with tables of a study. Get it from `open_database`."""

    _connection: duckdb.DuckDBPyConnection

    def execute(self, sql: str) -> None:
        """Run a trusted statement."""
        with named_errors():
            self._connection.execute(sql)

    def fetch(self, sql: str, **parameters: Any) -> pa.Table:
        """Return all rows of a trusted query; ``$name`` takes the parameter of this name."""
        with named_errors():
            return self._connection.sql(sql, params=parameters).to_arrow_table()

    def select(self, sql: str) -> pa.RecordBatchReader:
        """Return the rows of a user's query, batch by batch.

        Raises:
            InputError: The text is not one SELECT, or it has an error.
            EncoreError: The query needs too much memory.
        """
        with named_errors():
            statements = self._connection.extract_statements(sql)
            kinds = [statement.type.name for statement in statements]
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
    """Open a connection with these tables.

    Args:
        tables: The tables by the names that SQL uses.
        views: Statements that define views and macros. If given, even empty, the connection is
            locked afterwards: it has no access to files, network, extensions and settings.
        config: Settings of DuckDB. Default: `encore.core.settings.duckdb_config`.
    """
    if config is None:
        from encore.core.settings import duckdb_config

        config = duckdb_config()
    with scratch_folder("encore-duckdb-") as spill_folder:
        settings: dict[str, Any] = {
            "temp_directory": str(spill_folder),
            "max_temp_directory_size": _SPILL_LIMIT,
            "allow_community_extensions": False,
            "allow_persistent_secrets": False,
        }
        with (
            duckdb.connect(config={**config, **settings}) as connection,
            stop_on_signal(connection.interrupt),
        ):
            hide_progress_bar(connection)
            database = StudyDatabase(connection)
            for name, table in tables.items():
                _register(connection, name, table)
            if views is not None:
                for statement in (*views, *_LOCK):
                    database.execute(statement)
            yield database


def _register(connection: duckdb.DuckDBPyConnection, name: str, table: StudyTable) -> None:
    if isinstance(table, pa.Table):
        connection.register(name, table)
        return
    selects = []
    for part_index, part in enumerate(table):
        dataset = ds.dataset(
            list(part.paths), schema=part.schema, format="parquet", filesystem=LocalFileSystem()
        )
        connection.register(f"_{name}_{part_index}", dataset)
        selects.append(f'{part.select} from "_{name}_{part_index}"')
    connection.execute(f"create temp view {name} as {' union all '.join(selects)}")


@contextmanager
def named_errors() -> Iterator[None]:
    """Turn errors of DuckDB and Arrow inside the block into ENCORE's errors of one line.

    Raises:
        EncoreError: The query needs too much memory or temporary disk space.
        InputError: DuckDB or Arrow raised another error.
    """
    try:
        yield
    # OSError: Arrow cannot read a later batch.
    except (duckdb.Error, pa.ArrowException, OSError) as error:
        text = re.split(r"\n\s*(?=LINE \d+:)", str(error).strip())[0]
        problem = " ".join(text.split("Stack Trace:")[0].split())
        if isinstance(error, duckdb.OutOfMemoryException) or "Out of Memory" in problem:
            raise EncoreError(
                f"query: not enough memory or temporary disk space ({problem}); narrow it, or give "
                "a larger --memory-limit"
            ) from error
        raise InputError(f"query: {problem}") from error


def quoted(name: str) -> str:
    """Return a name as an SQL identifier, in double quotes."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """Return a text as an SQL literal, in single quotes."""
    return "'" + text.replace("'", "''") + "'"
