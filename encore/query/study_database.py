"""A DuckDB connection in memory that holds a study's tables and can be locked for good.

DuckDB never opens a study's files: Arrow reads them for it. So a connection that is locked, which
takes DuckDB's own access to files, network, extensions and settings away, still answers.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

import duckdb
import pyarrow as pa

from encore.errors import EncoreError, InputError
from encore.query.head_scores import LongScores
from encore.query.query_files import QueryFile, query_files
from encore.query.study_tables import StudyTable, StudyTables
from encore.settings import load_settings

#: What a query may put on disk while it runs, in a folder that is deleted afterwards.
_SPILL_LIMIT = "20GB"
_ROWS_PER_BATCH = 8192
#: A SELECT (FROM, VALUES, WITH, SUMMARIZE …), its plan, or a PIVOT that looks up its columns.
_KINDS = {"SELECT", "EXPLAIN", "MULTI"}


class StudyDatabase:
    """Tables of a study, given as Arrow data. Get one from `open_database`."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection

    def lock(self) -> None:
        """Take away every access to files, network, extensions and settings.

        The order matters: the last of these settings forbids all further ones.
        """
        self.execute("set allowed_directories = []")
        self.execute("set allowed_paths = []")
        self.execute("set enable_external_access = false")
        self.execute("set lock_configuration = true")

    def execute(self, sql: str) -> None:
        """Run a statement of our own."""
        with _in_our_words():
            self._connection.execute(sql)

    def fetch(self, sql: str, **parameters: Any) -> pa.Table:
        """All rows of a query of our own."""
        with _in_our_words():
            return self._connection.sql(sql, params=parameters).to_arrow_table()

    def select(self, sql: str) -> pa.RecordBatchReader:
        """The rows of a user's query, batch by batch.

        Raises:
            InputError: Not one SELECT, or a mistake in it.
            EncoreError: Out of memory.
        """
        with _in_our_words():
            kinds = [one.type.name for one in self._connection.extract_statements(sql)]
            if len(kinds) != 1 or kinds[0] not in _KINDS:
                found = ", ".join(kinds) if len(kinds) > 1 else kinds[0] if kinds else "none"
                raise InputError(
                    f"query: found {found}; expected one SELECT, which changes nothing"
                )
            return self._connection.sql(sql).to_arrow_reader(_ROWS_PER_BATCH)


@contextmanager
def open_database(
    tables: Mapping[str, StudyTable], *, memory: str | None = None
) -> Iterator[StudyDatabase]:
    """A connection with these tables, not locked.

    Args:
        tables: By name.
        memory: As DuckDB writes it, e.g. ``2GB``; None: ENCORE_DUCKDB_MEMORY_LIMIT, else DuckDB's
            own choice.
    """
    with tempfile.TemporaryDirectory(prefix="encore-duckdb-") as spill_dir:
        connection = _connect(spill_dir=spill_dir, memory=memory)
        try:
            for name, table in tables.items():
                if isinstance(table, LongScores):
                    _show_scores(connection, name, table)
                else:
                    connection.register(name, table)
            yield StudyDatabase(connection)
        finally:
            connection.close()


@contextmanager
def locked_database(found: StudyTables, *, memory: str | None = None) -> Iterator[StudyDatabase]:
    """A locked connection with a study's tables and a view for each query of `sql/`."""
    with open_database(found.tables, memory=memory) as database:
        for file in query_files():
            if all(name in found.tables for name in file.reads):
                database.execute(definition_of(file))
        database.lock()
        yield database


def definition_of(file: QueryFile) -> str:
    """The statement that makes a view or macro of a file of `sql/`."""
    return file.text if file.is_macro else f"create view {quoted(file.name)} as {file.text}"


def refuse(error: Exception) -> NoReturn:
    """Raise what DuckDB or Arrow say about a query as one line.

    Raises:
        EncoreError: Out of memory or temporary disk space.
        InputError: Everything else.
    """
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


@contextmanager
def _in_our_words() -> Iterator[None]:
    try:
        yield
    except (duckdb.Error, pa.ArrowException) as error:
        refuse(error)


def _show_scores(connection: duckdb.DuckDBPyConnection, name: str, scores: LongScores) -> None:
    """A view of the scorings with a row for each head, beside tables with a column for each."""
    selects = []
    for place, scoring in enumerate(scores.scorings):
        wide = f"_{name}_{place}"
        connection.register(wide, scoring.table)
        head_ids = ", ".join(map(literal, scoring.head_ids))
        columns = ", ".join(map(quoted, scoring.head_ids))
        selects.append(
            f"select {literal(scoring.score_key)} as score_key, {literal(scoring.model)} as model, "  # noqa: S608 - our own text, quoted
            f"source, pair_id, subset, response, unnest([{head_ids}]) as head_id, "
            f"unnest([{columns}]) as score from {quoted(wide)}"
        )
    connection.execute(f"create temp view {quoted(name)} as {' union all '.join(selects)}")


def _connect(*, spill_dir: str, memory: str | None) -> duckdb.DuckDBPyConnection:
    settings = load_settings()
    config: dict[str, str | bool | int | float | list[str]] = {
        "temp_directory": spill_dir,
        "max_temp_directory_size": _SPILL_LIMIT,
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        "allow_community_extensions": False,
        "allow_persistent_secrets": False,
        "python_enable_replacements": False,  # a table is what was registered, not a local variable
    }
    memory = memory or settings.duckdb_memory_limit
    if memory is not None:
        config["memory_limit"] = memory
    if settings.duckdb_threads is not None:
        config["threads"] = settings.duckdb_threads
    connection = duckdb.connect(config=config)
    connection.execute("set enable_progress_bar = false")  # it would be drawn on stdout
    return connection
