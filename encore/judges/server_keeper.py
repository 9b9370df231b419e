"""Run a server, and end it with all its processes when the program that wants it ends.

    python -I server_keeper.py COMMAND...

The program holds the other end of standard input. A killed program closes it too, so no server
outlives its program and keeps a GPU. SIGUSR1 kills a server that does not answer any more.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress

#: Time between the signal to end and the signal that no process can ignore.
_END_SECONDS = 8.0


def main() -> None:
    """Run the command of the arguments. The exit code is its own, or 128 and its signal."""
    server = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, start_new_session=True)  # noqa: S603 - the parent's command
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=_end, args=[server]).start())
    signal.signal(signal.SIGUSR1, lambda *_: _send(server, signal.SIGKILL))
    threading.Thread(target=_end_with_parent, args=[server], daemon=True).start()
    code = server.wait()
    _send(server, signal.SIGKILL)  # processes that it left behind hold its GPU
    os._exit(code if code >= 0 else 128 - code)


def _end_with_parent(server: subprocess.Popen[bytes]) -> None:
    while os.read(sys.stdin.fileno(), 1):
        pass
    _end(server)


def _end(server: subprocess.Popen[bytes]) -> None:
    _send(server, signal.SIGTERM)
    time.sleep(_END_SECONDS)
    _send(server, signal.SIGKILL)


def _send(server: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(server.pid, number)


if __name__ == "__main__":
    main()
