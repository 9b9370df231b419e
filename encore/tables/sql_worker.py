"""The process that runs one query: JSON request in a file, rows as an Arrow stream on stdout.

It ends itself at the limits of time and memory. An error is the last line on stderr, its exit code
says of which kind.
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
#: DuckDB keeps its own limit for what it can put aside; this much more is not put aside.
_SLACK_BYTES = 256 << 20


class _NoPandas:
    """Keeps `pyarrow.dataset` from importing pandas, which is most of this process's start."""

    @staticmethod
    def find_spec(name: str, _path: object = None, _target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name)


def main() -> None:
    """Answer the request in the file that is named."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    sys.meta_path.insert(0, _NoPandas)
    import pyarrow as pa

    from encore.core.errors import EncoreError, InputError
    from encore.tables.study_database import decoded, named_errors, open_database

    request: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    signal.setitimer(signal.ITIMER_REAL, request["seconds"])  # its signal ends this process
    _watch_memory(request["num_bytes"])
    tables = {name: decoded(content) for name, content in request["tables"].items()}
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
                os._exit(0)  # the reader has seen enough
    except EncoreError as error:
        sys.stderr.write(f"\n{error}\n")
        sys.exit(EXIT_INPUT if isinstance(error, InputError) else EXIT_ERROR)


def _watch_memory(num_bytes: int) -> None:
    process = psutil.Process()
    most = process.memory_info().rss + int(1.2 * num_bytes) + _SLACK_BYTES

    def look() -> None:
        while process.memory_info().rss <= most:
            time.sleep(_POLL_SECONDS)
        os._exit(EXIT_MEMORY)

    threading.Thread(target=look, daemon=True).start()


if __name__ == "__main__":
    main()
