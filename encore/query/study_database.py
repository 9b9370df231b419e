"""A DuckDB connection that holds a study's tables, and once it is locked reaches nothing else."""

from __future__ import annotations

import contextlib
import json
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar

import duckdb
import pyarrow as pa

from encore.errors import EncoreError, InputError
from encore.query.head_scores import LongScores
from encore.query.study_tables import StudyTable
from encore.settings import load_settings

#: What a query may put on disk while it runs, in a folder that is deleted afterwards.
_SPILL_LIMIT = "20GB"
_MEMORY = re.compile(r"\d+(\.\d+)?\s?[KMGT]i?B")
_ROWS_PER_BATCH = 8192
_STOP_POLL_SECONDS = 0.05

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much a query may take.

    Attributes:
        seconds: From the start of a query until its last row is read; None: no limit.
        memory: As DuckDB writes it, e.g. ``2GB``; None: ENCORE_DUCKDB_MEMORY_LIMIT, else DuckDB's
            own choice.
    """

    seconds: float | None = None
    memory: str | None = None

    def __post_init__(self) -> None:
        if self.seconds is not None and not self.seconds > 0:
            raise InputError(f"--timeout {self.seconds}: expected a number of seconds above 0")
        if self.memory is not None and not _MEMORY.fullmatch(self.memory):
            raise InputError(f"--memory-limit {self.memory!r}: expected a size such as 2GB")


class StudyDatabase:
    """An in-memory DuckDB connection whose tables are given as Arrow data.

    DuckDB never opens a study's files: Arrow reads them for it. So a connection that is locked,
    which takes DuckDB's own access to files and network away for good, still answers. Use it as a
    context manager, from one thread at a time.
    """

    def __init__(self, tables: Mapping[str, StudyTable], *, limits: Limits) -> None:
        self._tables = tables
        self._limits = limits
        self._opened: duckdb.DuckDBPyConnection | None = None

    def __enter__(self) -> Self:
        # DuckDB works in a thread of its own, so that this one can end it: DuckDB does not look
        # for Ctrl-C while it streams, and has no time limit.
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="duckdb")
        self._spill = tempfile.TemporaryDirectory(prefix="encore-duckdb-")
        try:
            self._run(self._open, None)
        except BaseException:
            self._worker.shutdown()
            self._spill.cleanup()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Ctrl-C between handing work over and waiting for it leaves DuckDB at work on its own.
        self._stop(self._worker.submit(lambda: None))
        self._worker.submit(self._connection.close)
        self._worker.shutdown()
        self._spill.cleanup()

    def lock(self) -> None:
        """Take away every access to files, network, extensions and settings. There is no way back.

        The order matters: the last of these settings forbids all further ones.
        """
        self.execute("set allowed_directories = []")
        self.execute("set allowed_paths = []")
        self.execute("set enable_external_access = false")
        self.execute("set lock_configuration = true")

    def execute(self, sql: str) -> None:
        """Run a statement of our own."""
        self._run(lambda: self._connection.execute(sql), self._deadline())

    def fetch(self, sql: str, **parameters: Any) -> pa.Table:
        """All rows of a query."""
        return self._run(
            lambda: self._connection.sql(sql, params=parameters).to_arrow_table(), self._deadline()
        )

    def stream(self, sql: str) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """The columns of a query and its rows batch by batch, in bounded memory."""
        deadline = self._deadline()
        reader = self._run(
            lambda: self._connection.sql(sql).to_arrow_reader(_ROWS_PER_BATCH), deadline
        )
        return reader.schema, self._batches(reader, deadline)

    def statement_kinds(self, sql: str) -> tuple[str, ...]:
        """The kind of each statement in a text (SELECT, COPY, SET …), as DuckDB's parser says."""
        statements = self._run(lambda: self._connection.extract_statements(sql), self._deadline())
        return tuple(one.type.name for one in statements)

    def syntax_tree(self, sql: str) -> dict[str, Any]:
        """The tree that DuckDB's parser makes of one SELECT; nothing in it is looked up or run.

        Raises:
            InputError: It is none.
        """
        found = self.fetch("select json_serialize_sql($text::varchar) as tree", text=sql)
        try:
            tree: dict[str, Any] = json.loads(found["tree"][0].as_py())
        except RecursionError as error:
            raise InputError("query: nested too deeply; write it with fewer levels") from error
        if tree["error"]:
            raise InputError(f"query: {tree.get('error_message', 'not a SELECT')}")
        return tree

    def _batches(
        self, reader: pa.RecordBatchReader, deadline: float | None
    ) -> Iterator[pa.RecordBatch]:
        with contextlib.closing(reader):
            while True:
                batch = self._run(lambda: next(reader, None), deadline)
                if batch is None:
                    return
                yield batch

    def _open(self) -> None:
        """Connect and show the tables: by the worker, too, where Ctrl-C strikes no import."""
        self._opened = _connect(spill_dir=self._spill.name, memory=self._limits.memory)
        for name, table in self._tables.items():
            if isinstance(table, LongScores):
                _show_scores(self._opened, name, table)
            else:
                self._opened.register(name, table)

    @property
    def _connection(self) -> duckdb.DuckDBPyConnection:
        assert self._opened is not None, "used outside of its with block"
        return self._opened

    def _deadline(self) -> float | None:
        seconds = self._limits.seconds
        return None if seconds is None else time.monotonic() + seconds

    def _run(self, work: Callable[[], _Result], deadline: float | None) -> _Result:
        """Have DuckDB do something, until it is done, the deadline has come, or Ctrl-C."""
        future = self._worker.submit(work)
        seconds_left = None if deadline is None else max(deadline - time.monotonic(), 0)
        try:
            wait([future], timeout=seconds_left)
        finally:
            is_in_time = future.done()
            self._stop(future)
        if not is_in_time:
            raise self._out_of_time()
        try:
            return future.result()
        except (duckdb.Error, pa.ArrowException, OSError) as error:  # OSError: a late batch fails
            raise self._in_our_words(error) from error

    def _stop(self, future: Future[Any]) -> None:
        while not future.done():
            if self._opened is not None:
                self._opened.interrupt()
            wait([future], timeout=_STOP_POLL_SECONDS)

    def _out_of_time(self) -> EncoreError:
        return EncoreError(
            f"query: stopped after its limit of {self._limits.seconds:g} s; narrow it, or give a "
            "larger --timeout"
        )

    def _in_our_words(self, error: Exception) -> EncoreError:
        problem = one_line(error)
        if isinstance(error, duckdb.OutOfMemoryException) or "Out of Memory" in problem:
            return EncoreError(
                f"query: not enough memory or temporary disk space ({problem}); narrow it, or give "
                "a larger --memory-limit"
            )
        return InputError(f"query: {problem}")


def one_line(error: Exception) -> str:
    """What DuckDB says about a query, without its drawing of where."""
    text = re.split(r"\n\s*(?=LINE \d+:)", str(error).strip())[0]
    return " ".join(text.split())


def quoted(name: str) -> str:
    """A name as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A text as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"


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
