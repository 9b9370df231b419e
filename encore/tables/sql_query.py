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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pydantic import ByteSize, TypeAdapter

from encore.core.errors import EncoreError, InputError
from encore.core.leftovers import scratch_folder
from encore.core.settings import duckdb_config
from encore.data.study import Study, as_study
from encore.tables.query_files import query_files
from encore.tables.sql_worker import EXIT_ERROR, EXIT_INPUT, EXIT_MEMORY, EXIT_TIME
from encore.tables.study_database import encode_table
from encore.tables.study_tables import StudyTables, study_tables
from encore.tables.verdict_rows import RULE_VERDICTS, with_rule_verdicts


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryResult:
    """Result of one query. Rows are read while they are iterated over.

    Attributes:
        schema: Names and types of the columns, as in the query. Names may repeat.
        batches: Rows of the result, batch by batch.
        num_missing_shards: Unfinished shards of the runs and scorings that the query reads.
    """

    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]
    num_missing_shards: int = 0

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the names of the columns."""
        return tuple(self.schema.names)

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
    tables = with_rule_verdicts(tables, sql)
    request = _request(tables, sql, seconds=seconds, memory=memory)
    with scratch_folder("encore-sql-") as folder:
        encoded_tables = {
            name: encode_table(table, folder / f"{name}.parquet")
            for name, table in tables.by_name.items()
        }
        request_file = folder / "request"
        request_file.write_text(json.dumps({**request, "tables": encoded_tables}), encoding="utf-8")
        with subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, "-m", "encore.tables.sql_worker", str(request_file)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # The folder is deleted however this block ends.
            env={**os.environ, "TMPDIR": str(folder)},
        ) as worker:
            failure = partial(_failure, worker, request, tables)
            try:
                try:
                    reader = pa.ipc.open_stream(worker.stdout)
                except pa.ArrowInvalid as error:
                    raise failure() from error
                yield QueryResult(
                    schema=reader.schema,
                    batches=_batches(reader, worker, failure),
                    num_missing_shards=_num_missing(tables, sql),
                )
            finally:
                worker.kill()
                worker.wait()


def _request(tables: StudyTables, sql: str, *, seconds: float, memory: str) -> dict[str, Any]:
    """Return what a worker needs to know of a query, but for the tables."""
    config = duckdb_config(memory=memory)
    return {
        "sql": sql,
        "views": list(tables.views),
        "config": config,
        "seconds": seconds,
        "num_bytes": int(TypeAdapter(ByteSize).validate_python(config["memory_limit"])),
    }


def sql(
    study: Study | str | Path, query: str, *, run: str | None = None, judge: str | None = None
) -> pa.Table:
    """Return the result of one SELECT over the tables of a study as an Arrow table.

    >>> sql("study", "select count(*) as num_pairs from pairs").to_pylist()
    [{'num_pairs': 40}]

    Args:
        study: The study, or its directory.
        query: Exactly one SELECT. It may take 60 seconds and 4 GB of memory.
        run: Unique prefix of the key of the run for table ``ratings``.
        judge: Judge of the run for table ``ratings``, instead of ``run``.

    Raises:
        InputError: The text is not one SELECT, it has an error, or a run must be chosen first.
        EncoreError: The query reached its limit of time or memory.
    """
    tables = study_tables(as_study(study), run=run, judge=judge)
    with run_query(tables, query) as result:
        return pa.Table.from_batches(list(result.batches), result.schema)


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
    if _reads_ratings(request["sql"]) and "ratings" not in tables.by_name:
        tables.require_run()  # its error names the runs to choose from
    return (InputError if code == EXIT_INPUT else EncoreError)(message.splitlines()[-1])


def _reads(sql: str) -> set[str]:
    """Return the tables that a query may read.

    These are all names in its text, and the tables that its views of `sql/` read.
    """
    names = set(re.findall(r"\w+", sql.casefold()))
    return names.union(*(file.reads for file in query_files() if file.name in names))


def _reads_ratings(sql: str) -> bool:
    """Return True if a query may read the ratings of the chosen run, or their verdicts."""
    return bool(_reads(sql) & {"ratings", RULE_VERDICTS})


def _num_missing(tables: StudyTables, sql: str) -> int:
    reads = _reads(sql)
    runs = tables.statuses if "all_ratings" in reads else [tables.chosen] * _reads_ratings(sql)
    scores = tables.scores if "head_scores" in reads else ()
    return sum(len(status.unfinished) for status in (*runs, *scores) if status is not None)
