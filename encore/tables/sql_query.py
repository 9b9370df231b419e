"""Run a user's query over a study's tables in a child process with limits of time and memory.

DuckDB allocates one large value outside of its buffer manager, where neither `memory_limit` nor an
interrupt applies. Therefore a child process (`encore.tables.sql_worker`) runs the query and sends
the rows through a pipe as an Arrow stream. It can be killed at any time.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pydantic import ByteSize, TypeAdapter

from encore.core.errors import EncoreError, InputError
from encore.core.settings import duckdb_config
from encore.tables.query_files import query_files
from encore.tables.sql_worker import EXIT_ERROR, EXIT_INPUT, EXIT_MEMORY, EXIT_TIME
from encore.tables.study_database import encode_table
from encore.tables.study_tables import StudyTables


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryResult:
    """Result of one query. Rows are read while they are iterated over.

    Attributes:
        columns: Names of the columns, as in the query. Names may repeat.
        batches: Rows of the result, batch by batch.
        num_missing_shards: Unfinished shards of the runs and scorings that the query reads.
    """

    columns: tuple[str, ...]
    batches: Iterator[pa.RecordBatch]
    num_missing_shards: int = 0

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Yield each row as Python values."""
        for batch in self.batches:
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


@contextmanager
def run_query(
    tables: StudyTables, sql: str, *, seconds: float = 60.0, memory: str = "4GB"
) -> Iterator[QueryResult]:
    """Run one SELECT over the tables of a study and the views of `sql/`.

    Args:
        tables: Tables of the study, from `study_tables`.
        sql: Text of the query: exactly one SELECT.
        seconds: Time limit in seconds, until the last row is read.
        memory: Memory limit, e.g. ``2GB``. ENCORE_DUCKDB_MEMORY_LIMIT overrides it.

    Raises:
        InputError: The text is not one SELECT, it has an error, or a run must be chosen first.
        EncoreError: The query reached its limit of time or memory.
    """
    config = duckdb_config(memory=memory)
    request = {
        "sql": sql,
        "views": list(tables.views),
        "config": config,
        "seconds": seconds,
        "num_bytes": int(TypeAdapter(ByteSize).validate_python(config["memory_limit"])),
    }
    with tempfile.TemporaryDirectory(prefix="encore-sql-") as folder:
        encoded_tables = {
            name: encode_table(table, Path(folder, f"{name}.parquet"))
            for name, table in tables.by_name.items()
        }
        request_file = Path(folder, "request")
        request_file.write_text(json.dumps({**request, "tables": encoded_tables}), encoding="utf-8")
        with subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, "-m", "encore.tables.sql_worker", str(request_file)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "TMPDIR": folder},  # the folder is deleted however this block ends
        ) as worker:
            failure = partial(_failure, worker, request, tables)
            try:
                try:
                    reader = pa.ipc.open_stream(worker.stdout)
                except pa.ArrowInvalid as error:
                    raise failure() from error
                yield QueryResult(
                    columns=tuple(reader.schema.names),
                    batches=_batches(reader, worker, failure),
                    num_missing_shards=_num_missing(tables, sql),
                )
            finally:
                worker.kill()
                worker.wait()


def _batches(
    reader: pa.RecordBatchReader,
    worker: subprocess.Popen[bytes],
    failure: Callable[[], EncoreError],
) -> Iterator[pa.RecordBatch]:
    try:
        yield from reader
    except (pa.ArrowException, OSError) as error:
        raise failure() from error
    if worker.wait() != 0:
        raise failure()


def _failure(
    worker: subprocess.Popen[bytes], request: dict[str, Any], tables: StudyTables
) -> EncoreError:
    """Return the error for a worker that ended early."""
    assert worker.stderr is not None
    message = worker.stderr.read().decode(errors="replace").strip()
    code = worker.wait()
    limits = {
        EXIT_TIME: f"its limit of {request['seconds']:g} s; narrow it, or give a larger --timeout",
        EXIT_MEMORY: f"its memory limit of {request['config']['memory_limit']}; narrow "
        "it, or give a larger --memory-limit",
    }
    if code in limits:
        return EncoreError(f"query: stopped at {limits[code]}")
    if code not in (EXIT_INPUT, EXIT_ERROR):
        return EncoreError(
            f"query: its process ended with exit code {code}: {message[-300:] or 'no output'}"
        )
    if "ratings" in _reads(request["sql"]) and "ratings" not in tables.by_name:
        tables.require_run()  # its error names the runs to choose from
    return (InputError if code == EXIT_INPUT else EncoreError)(message.splitlines()[-1])


def _reads(sql: str) -> set[str]:
    """Return the tables that a query may read.

    These are all names in its text, and the tables that its views of `sql/` read.
    """
    names = set(re.findall(r"\w+", sql.casefold()))
    return names.union(*(file.reads for file in query_files() if file.name in names))


def _num_missing(tables: StudyTables, sql: str) -> int:
    reads = _reads(sql)
    runs = tables.statuses if "all_ratings" in reads else [tables.chosen] * ("ratings" in reads)
    scores = tables.scores if "head_scores" in reads else ()
    return sum(len(status.unfinished) for status in (*runs, *scores) if status is not None)
