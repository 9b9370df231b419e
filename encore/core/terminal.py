"""Text for people: where it goes, and how a stage's progress is shown.

Results go to stdout; progress, warnings and messages go to stderr, so that stdout stays
machine-readable. What is rated is hostile text: control characters are shown as escapes.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic_core import to_jsonable_python
from rich.console import Console
from rich.text import Text

from encore.core.files import json_text
from encore.core.reporting import Reporter

if TYPE_CHECKING:
    from rich.progress import Progress

# Texts come from data sets, judges and paths: nothing in them is markup.
_AS_IT_IS: dict[str, Any] = {"highlight": False, "markup": False, "emoji": False}
console = Console(stderr=True, **_AS_IT_IS)
out = Console(**_AS_IT_IS)

#: What could move the cursor, set a title or turn the line around: everything but line breaks.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")

#: A hyphen in front of a figure, and not within a word or a name.
_NEGATIVE = re.compile(r"(?<![\w.)-])-(?=\.?\d)")


def visible(text: str) -> str:
    """The text with control and direction characters as escapes, line breaks and tabs kept."""
    return _CONTROL.sub(lambda match: ascii(match.group())[1:-1], text)


def minus_signs(text: str) -> str:
    """The text with a minus sign instead of a hyphen in front of every negative number."""
    return _NEGATIVE.sub("\N{MINUS SIGN}", text)


def say(message: str) -> None:
    """One line of information on stderr."""
    console.print(visible(message), soft_wrap=True)


def warn(message: str) -> None:
    """One warning line on stderr."""
    console.print(Text.assemble(("warning: ", "yellow"), visible(message)), soft_wrap=True)


def fail(message: str) -> None:
    """One error line on stderr, whatever line breaks the message has."""
    line = visible(" ".join(message.split()))
    console.print(Text.assemble(("error: ", "bold red"), line), soft_wrap=True)


def print_json(value: Any) -> None:
    """Write a value or record to stdout as indented JSON; NaN and infinity are refused."""
    sys.stdout.write(json_text(to_jsonable_python(value)))


@contextmanager
def terminal_reporter() -> Iterator[TerminalReporter]:
    """A reporter for people, for the length of the block: a bar on a terminal, else lines."""
    from rich import progress

    with progress.Progress(
        progress.SpinnerColumn(),
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TextColumn("{task.fields[rate]}"),
        progress.TimeElapsedColumn(),
        progress.TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    ) as bar:
        yield TerminalReporter(bar)


class TerminalReporter(Reporter):
    """Shows a stage's progress."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._task: Any = None

    def started(self, title: str, *, total: int | None = None, done: int = 0) -> None:
        """A stage or a part of it begins."""
        if self._task is not None:
            self._bar.remove_task(self._task)
        self._task = self._bar.add_task(title, total=total, completed=done, rate="")
        if self._bar.disable:
            say(title)

    def advanced(self, count: int = 1, *, note: str = "") -> None:
        """So many more are done."""
        if self._task is not None:
            self._bar.update(self._task, advance=count, rate=note)

    def saved(self, path: Path, *, kind: str) -> None:
        """Where something was written, elsewhere than on a terminal."""
        if self._bar.disable:
            say(f"{kind}: {path}")

    def message(self, text: str) -> None:
        """Print a line of text that stays."""
        say(text)

    def finished(self, summary: str = "") -> None:
        """The stage has ended."""
        if self._task is not None:
            self._bar.remove_task(self._task)
            self._task = None
        if summary:
            say(summary)
