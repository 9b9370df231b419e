"""Run one query in a process of its own.

It reads a JSON request from a file and writes the rows to stdout as an Arrow stream. It ends itself
at the limits of time and memory. An error is the last line of stderr; the exit code is its kind.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil

EXIT_TIME, EXIT_MEMORY, EXIT_INPUT, EXIT_ERROR = -signal.SIGALRM, 65, 66, 67
_POLL_SECONDS = 0.05
#: Memory beyond DuckDB's own limit, for values that DuckDB cannot write to disk.
_SLACK_BYTES = 256 << 20


class _NoPandas:
    """Prevent `pyarrow.dataset` from importing pandas, the slowest part of this process's start."""

    @staticmethod
    def find_spec(name: str, _path: object = None, _target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name)


def main() -> None:
    """Run the query of the request file, the first argument."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    sys.meta_path.insert(0, _NoPandas)
    import pyarrow as pa

    from encore.core.errors import EncoreError, InputError
    from encore.tables.study_database import decode_table, named_errors, open_database

    request: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    signal.setitimer(signal.ITIMER_REAL, request["seconds"])  # its signal ends this process
    _watch_memory(request["num_bytes"])
    tables = {name: decode_table(content) for name, content in request["tables"].items()}
    try:
        with (
            open_database(tables, views=request["views"], config=request["config"]) as database,
            named_errors(),
        ):
            reader = database.select(request["sql"])
            try:
                with pa.ipc.new_stream(sys.stdout.buffer, reader.schema) as stream:
                    for batch in reader:
                        stream.write_batch(batch)
                sys.stdout.buffer.flush()
            except BrokenPipeError:
                os._exit(0)  # the reader needs no more rows
    except EncoreError as error:
        sys.stderr.write(f"\n{error}\n")
        sys.exit(EXIT_INPUT if isinstance(error, InputError) else EXIT_ERROR)


def _watch_memory(num_bytes: int) -> None:
    process = psutil.Process()
    max_bytes = process.memory_info().rss + int(1.2 * num_bytes) + _SLACK_BYTES

    def exit_at_limit() -> None:
        while process.memory_info().rss <= max_bytes:
            time.sleep(_POLL_SECONDS)
        os._exit(EXIT_MEMORY)

    threading.Thread(target=exit_at_limit, daemon=True).start()


if __name__ == "__main__":
    main()
