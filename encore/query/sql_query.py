"""One query over a study's tables, in a process of its own that the time and memory limits end.

DuckDB's own limits do not hold for one large value: it is allocated outside of the buffer manager,
and neither `memory_limit` nor an interrupt reaches it. So a child process runs the query
(`encore.query.sql_worker`) and sends the rows through a pipe as an Arrow stream.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from encore.errors import EncoreError, InputError
from encore.query.query_files import query_file

DEFAULT_SECONDS = 60.0
DEFAULT_MEMORY = "4GB"
NUM_MISSING_KEY = b"encore.num_missing_shards"
EXIT_TIME, EXIT_MEMORY = 64, 65


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
    study: Path,
    sql: str,
    *,
    run: str | None = None,
    judge: str | None = None,
    seconds: float = DEFAULT_SECONDS,
    memory: str = DEFAULT_MEMORY,
) -> Iterator[QueryResult]:
    """The answer to one SELECT over the tables of a study and the views of `sql/`.

    Args:
        study: The study's directory.
        sql: The query.
        run: The run of table ``ratings``, by a unique prefix of its key, where there are several.
        judge: The same by its judge.
        seconds: Until the last row is read.
        memory: Of the query, e.g. ``2GB``.

    Raises:
        InputError: Not one SELECT, a mistake in it; a run must be chosen first.
        EncoreError: Not a study, damaged files, out of time or memory.
    """
    request = {
        "study": str(study),
        "sql": sql,
        "run": run,
        "judge": judge,
        "seconds": seconds,
        "memory": memory,
    }
    worker = subprocess.Popen(
        [sys.executable, "-m", "encore.query.sql_worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert worker.stdin is not None
    assert worker.stdout is not None
    try:
        worker.stdin.write(json.dumps(request).encode())
        worker.stdin.close()
        try:
            reader = pa.ipc.open_stream(worker.stdout)
        except pa.ArrowInvalid as error:
            raise _failure(worker, request) from error
        about = reader.schema.metadata or {}
        yield QueryResult(
            columns=tuple(reader.schema.names),
            batches=_batches(reader, worker, request),
            num_missing_shards=int(about.get(NUM_MISSING_KEY, b"0")),
        )
    finally:
        worker.kill()
        worker.wait()
        worker.stdout.close()
        if worker.stderr is not None:
            worker.stderr.close()


def named_query(name: str) -> str:
    """The text of a query of `sql/`, to be run as it stands.

    Raises:
        InputError: There is none of this name, or it is a macro: how to call it.
    """
    file = query_file(name)
    if file.is_macro:
        raise InputError(
            f"query {name!r}: a macro with parameters; call it in a query: "
            f'encore sql "from {file.call}"'
        )
    return file.text


def _batches(
    reader: pa.RecordBatchReader, worker: subprocess.Popen[bytes], request: dict[str, Any]
) -> Iterator[pa.RecordBatch]:
    try:
        yield from reader
    except (pa.ArrowException, OSError) as error:
        raise _failure(worker, request) from error
    if worker.wait() != 0:
        raise _failure(worker, request)


def _failure(worker: subprocess.Popen[bytes], request: dict[str, Any]) -> EncoreError:
    """Why the worker ended early."""
    assert worker.stderr is not None
    said = worker.stderr.read().decode(errors="replace").strip()
    code = worker.wait()
    if code == EXIT_TIME:
        return EncoreError(
            f"query: stopped after its limit of {request['seconds']:g} s; narrow it, or give a "
            "larger --timeout"
        )
    if code == EXIT_MEMORY:
        return EncoreError(
            f"query: stopped at its memory limit of {request['memory']}; narrow it, or give a "
            "larger --memory-limit"
        )
    try:
        told = json.loads(said.splitlines()[-1])
        kind = InputError if told["is_input"] else EncoreError
        return kind(told["message"])
    except (ValueError, IndexError, KeyError, TypeError):
        return EncoreError(f"query: its process ended with code {code}: {said[-300:] or 'silence'}")
