"""One query over a study's tables, in a process of its own that the time and memory limits end.

DuckDB's own limits do not hold for one large value: it is allocated outside of the buffer manager,
and neither `memory_limit` nor an interrupt reaches it. So a child process runs the query
(`encore.tables.sql_worker`) and sends the rows through a pipe as an Arrow stream.
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
from encore.tables.study_database import encoded
from encore.tables.study_tables import StudyTables


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryResult:
    """The answer to one query, read as it is iterated over.

    Attributes:
        columns: Their names, as the query gives them; they may repeat.
        batches: The rows.
        num_missing_shards: Shards whose rows the query would have read, had they been done.
    """

    columns: tuple[str, ...]
    batches: Iterator[pa.RecordBatch]
    num_missing_shards: int = 0

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """The rows as Python values."""
        for batch in self.batches:
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


@contextmanager
def run_query(
    found: StudyTables, sql: str, *, seconds: float = 60.0, memory: str = "4GB"
) -> Iterator[QueryResult]:
    """The answer to one SELECT over the tables of a study and the views of `sql/`.

    Args:
        found: The tables.
        sql: The query.
        seconds: Until the last row is read.
        memory: Of the query, e.g. ``2GB``; ENCORE_DUCKDB_MEMORY_LIMIT takes its place.

    Raises:
        InputError: Not one SELECT, a mistake in it; a run must be chosen first.
        EncoreError: Out of time or memory.
    """
    config = duckdb_config(memory=memory)
    request = {
        "sql": sql,
        "views": list(found.views),
        "config": config,
        "seconds": seconds,
        "num_bytes": int(TypeAdapter(ByteSize).validate_python(config["memory_limit"])),
    }
    with tempfile.TemporaryDirectory(prefix="encore-sql-") as folder:
        tables = {
            name: encoded(table, Path(folder, f"{name}.parquet"))
            for name, table in found.tables.items()
        }
        file = Path(folder, "request")
        file.write_text(json.dumps({**request, "tables": tables}), encoding="utf-8")
        with subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, "-m", "encore.tables.sql_worker", str(file)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "TMPDIR": folder},  # gone with this block, however it ends
        ) as worker:
            failure = partial(_failure, worker, request, found)
            try:
                try:
                    reader = pa.ipc.open_stream(worker.stdout)
                except pa.ArrowInvalid as error:
                    raise failure() from error
                yield QueryResult(
                    columns=tuple(reader.schema.names),
                    batches=_batches(reader, worker, failure),
                    num_missing_shards=_num_missing(found, sql),
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
    worker: subprocess.Popen[bytes], request: dict[str, Any], found: StudyTables
) -> EncoreError:
    """Why the worker ended early."""
    assert worker.stderr is not None
    said = worker.stderr.read().decode(errors="replace").strip()
    code = worker.wait()
    limits = {
        EXIT_TIME: f"its limit of {request['seconds']:g} s; narrow it, or give a larger --timeout",
        EXIT_MEMORY: f"its memory limit of {request['config']['memory_limit']}; narrow "
        "it, or give a larger --memory-limit",
    }
    if code in limits:
        return EncoreError(f"query: stopped at {limits[code]}")
    if code not in (EXIT_INPUT, EXIT_ERROR):
        return EncoreError(f"query: its process ended with code {code}: {said[-300:] or 'silence'}")
    if "ratings" in _reads(request["sql"]) and "ratings" not in found.tables:
        found.the_run()  # says what to choose from
    return (InputError if code == EXIT_INPUT else EncoreError)(said.splitlines()[-1])


def _reads(sql: str) -> set[str]:
    """The tables that a query may read: by the names that occur in it, those of `sql/` resolved."""
    words = set(re.findall(r"\w+", sql.casefold()))
    return words.union(*(file.reads for file in query_files() if file.name in words))


def _num_missing(found: StudyTables, sql: str) -> int:
    reads = _reads(sql)
    runs = found.statuses if "all_ratings" in reads else [found.chosen] * ("ratings" in reads)
    scores = found.scores if "head_scores" in reads else ()
    return sum(len(one.unfinished) for one in (*runs, *scores) if one is not None)
