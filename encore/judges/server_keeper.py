"""End a server with all its processes when the program that started it is gone.

    python -I server_keeper.py

The program writes the server's process group on standard input, and holds the other end of it. A
killed program closes it too, so no server outlives its program and keeps a GPU.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress

#: Time between the signal to end and the signal that no process can ignore.
_END_SECONDS = 8.0


def main() -> None:
    """Wait for the end of the program, then end the server."""
    group = sys.stdin.readline()
    sys.stdin.read()
    if group.endswith("\n"):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(int(group), signal.SIGTERM)
            time.sleep(_END_SECONDS)
            os.killpg(int(group), signal.SIGKILL)


if __name__ == "__main__":
    main()
