"""A contender is a process that trains one round whenever it is asked, so rounds can alternate.

Standard library alone: a contender may live in another environment. A line on its standard input
asks for a round; a line of JSON on its standard output answers. Whatever a library prints goes to
standard error, which the parent keeps in a log file.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One pass over the pairs.

    Attributes:
        seconds: Of the training loop alone, data loading included.
        num_tokens: Real tokens, each response counted as if it stood alone.
        num_computed: Token positions that went through the model.
        num_padding: Those of them that hold no token of the data.
        peak_memory_bytes: Of the process (CPU) or on the device (GPU), so far.
    """

    seconds: float
    num_tokens: int
    num_computed: int
    num_padding: int
    peak_memory_bytes: int

    @property
    def tokens_per_second(self) -> float:
        """Real tokens."""
        return self.num_tokens / self.seconds


def serve(train_round: Callable[[], Round]) -> None:
    """Answer requests until standard input ends. Call `own_output` first."""
    output = _output
    assert output is not None, "own_output() comes first"
    _say(output, {"ready": True})
    for _ in sys.stdin:
        _say(output, asdict(train_round()))


_output: IO[str] | None = None


def own_output() -> None:
    """Keep standard output for answers: what libraries print goes to standard error from now on."""
    global _output  # noqa: PLW0603 -- there is one standard output
    _output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)


def _say(output: IO[str], answer: Mapping[str, object]) -> None:
    output.write(json.dumps(answer) + "\n")
    output.flush()


class Contender:
    """The parent's side of a contender process."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        log: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self._log = log
        with log.open("wb") as stream:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stream,
                text=True,
                cwd=ROOT,
                env={**os.environ, **(environment or {})},
            )
        self._answer()

    def train_round(self) -> Round:
        """One round, while every other contender waits."""
        assert self._process.stdin is not None
        self._process.stdin.write("round\n")
        self._process.stdin.flush()
        return Round(**self._answer())

    def close(self) -> None:
        """End the process, in the middle of a round too."""
        try:
            self._process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()

    def _answer(self) -> dict[str, float]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait(timeout=60)
            tail = self._log.read_text(errors="replace").strip().splitlines()[-15:]
            raise SystemExit(f"contender {self.name!r} ended:\n" + "\n".join(tail))
        answer: dict[str, float] = json.loads(line)
        return answer
