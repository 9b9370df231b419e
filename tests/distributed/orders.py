"""Orders to the judges of several processes, by files in a control folder.

It imports no model library: every Python process of a test reads its orders when it starts.
"""

from __future__ import annotations

import json
import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from encore import judges
from encore.judges.vllm_servers import LocalServers
from tests.judges.standin_vllm import Standin

#: The control folder, and a name for all processes that inherit it (a worker's children).
FOLDER, WHO = "ENCORE_TEST_CONTROL", "ENCORE_TEST_ENGINE"
ALWAYS = 10**9


@dataclass(frozen=True, slots=True)
class Control:
    """Orders to all judges, and the log of their events.

    The orders are ``seconds`` (to rate a shard), ``load_seconds``, ``fails`` (by shard, how often
    it fails), ``revision`` (by process, the value), ``cannot_load`` and ``freezes``
    (lists of processes; each hangs only once). A process is a process id, a name from the
    environment, or ``*`` for all. The name of a shard is that of its first pair.
    """

    folder: Path

    @property
    def orders(self) -> dict[str, Any]:
        """Read the current orders."""
        path = self.folder / "orders.json"
        return dict(json.loads(path.read_text("utf-8"))) if path.exists() else {}

    def order(self, **changes: Any) -> None:
        """Change some orders; the others stay."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f".orders.{os.getpid()}"
        path.write_text(json.dumps(self.orders | changes), encoding="utf-8")
        path.replace(self.folder / "orders.json")

    def forget(self) -> None:
        """Empty the log."""
        (self.folder / "log.jsonl").unlink(missing_ok=True)

    def log(self, event: str, shard: str = "") -> None:
        """Append an event of this process."""
        who = {"who": os.environ.get(WHO, ""), "pid": os.getpid(), "host": socket.gethostname()}
        line = json.dumps({"time": time.monotonic(), "event": event, "shard": shard, **who})
        with (self.folder / "log.jsonl").open("a", encoding="utf-8") as log:
            log.write(line + "\n")

    def events(self, event: str | None = None) -> list[dict[str, Any]]:
        """Read all events, or those of one kind: loaded, began, failed, hung, rated."""
        path = self.folder / "log.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        entries = map(json.loads, lines)
        return [entry for entry in entries if event in (None, entry["event"])]


def install() -> None:
    """Replace the backend `transformers` by this judge, and vLLM's servers by stand-ins."""
    judges.BACKENDS["transformers"] = ("tests.distributed.steered_judge", "SteeredJudge")
    standin = Standin(Path(os.environ[FOLDER]))
    LocalServers.__init__.__kwdefaults__["make_command"] = standin.command


def names_of_this_process() -> tuple[str, ...]:
    """Return the names by which an order can mean this process."""
    return str(os.getpid()), os.environ.get(WHO, ""), "*"
