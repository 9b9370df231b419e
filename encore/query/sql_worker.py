"""The process that runs one query: request as JSON on stdin, rows as an Arrow stream on stdout.

It ends itself at the limits of time and memory. An error is one line of JSON on stderr.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa

from encore.data.study import open_study
from encore.errors import EncoreError, InputError
from encore.query.query_files import query_files
from encore.query.sql_query import EXIT_MEMORY, EXIT_TIME, NUM_MISSING_KEY
from encore.query.study_database import locked_database, refuse
from encore.query.study_tables import StudyTables, study_tables
from encore.rating_runs import RatingStatus
from encore.settings import load_settings

_POLL_SECONDS = 0.05
#: DuckDB keeps its own limit for what it can put aside; this much more is not put aside.
_SLACK_BYTES = 256 << 20
_UNITS = {"K": 10, "M": 20, "G": 30, "T": 40}


def main() -> None:
    """Answer the request on stdin."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    request: dict[str, Any] = json.loads(sys.stdin.buffer.read())
    try:
        _answer(request)
    except EncoreError as error:
        told = {"is_input": isinstance(error, InputError), "message": str(error)}
        sys.stderr.write("\n" + json.dumps(told) + "\n")
        sys.exit(1)
    except BrokenPipeError:
        os._exit(0)  # the reader has seen enough


def _answer(request: dict[str, Any]) -> None:
    found = study_tables(
        open_study(Path(request["study"])), run=request["run"], judge=request["judge"]
    )
    sql = request["sql"]
    memory = load_settings().duckdb_memory_limit or request["memory"]
    with locked_database(found, memory=memory) as database:
        _watch(seconds=request["seconds"], num_bytes=bytes_of(memory))
        reads = _tables_behind(sql)
        try:
            reader = database.select(sql)
        except InputError:
            if "ratings" in reads and "ratings" not in found.tables:
                found.the_run()  # says what to choose from
            raise
        about = {NUM_MISSING_KEY: str(_num_missing(found, reads)).encode()}
        schema = reader.schema.with_metadata({**(reader.schema.metadata or {}), **about})
        try:
            with pa.ipc.new_stream(sys.stdout.buffer, schema) as stream:
                for batch in reader:
                    stream.write_batch(batch)
        except BrokenPipeError:
            raise
        except (pa.ArrowException, OSError) as error:  # OSError: a late batch fails
            refuse(error)
        sys.stdout.buffer.flush()


def bytes_of(size: str) -> int:
    """A size such as ``2GB`` or ``1.5 GiB`` in bytes, at least as many as DuckDB takes it for."""
    number, unit = re.fullmatch(r"([\d.]+)\s?([KMGT])i?B", size, re.ASCII).groups()  # type: ignore[union-attr]  # checked by the config
    return int(float(number) * 2 ** _UNITS[unit])


def _watch(*, seconds: float, num_bytes: int) -> None:
    process = psutil.Process()
    most = process.memory_info().rss + int(1.2 * num_bytes) + _SLACK_BYTES
    deadline = time.monotonic() + seconds

    def look() -> None:
        while True:
            if process.memory_info().rss > most:
                os._exit(EXIT_MEMORY)
            if time.monotonic() > deadline:
                os._exit(EXIT_TIME)
            time.sleep(_POLL_SECONDS)

    threading.Thread(target=look, daemon=True).start()


def _tables_behind(sql: str) -> set[str]:
    """The tables that a query may read: by the names that occur in it, those of `sql/` resolved."""
    words = set(re.findall(r"\w+", sql.casefold()))
    behind = {name for file in query_files() if file.name in words for name in file.reads}
    return words | behind


def _num_missing(found: StudyTables, reads: set[str]) -> int:
    statuses: tuple[RatingStatus, ...] = ()
    if "all_ratings" in reads:
        statuses = found.statuses
    elif "ratings" in reads and found.chosen is not None:
        statuses = (found.chosen,)
    num_missing = sum(len(one.shards) - one.count("done") for one in statuses)
    if "head_scores" in reads:
        num_missing += sum(len(one.problems) for one in found.scores)
    return num_missing


if __name__ == "__main__":
    main()
