"""Output for people: results on stdout; messages, warnings and progress on stderr.

So stdout stays machine-readable. Texts, names and paths from outside are hostile: whatever is
printed here has its control and direction characters as escapes.
"""

from __future__ import annotations

import logging
import os
import re
import shlex
import sys
import textwrap
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic_core import to_jsonable_python
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from encore.core.bucket_addresses import bucket_addresses
from encore.core.files import json_text
from encore.core.reporting import Reporter

if TYPE_CHECKING:
    from rich.progress import Progress, Task

# Texts come from data sets, judges and paths: rich must not read markup in them.
_PLAIN: dict[str, Any] = {"highlight": False, "markup": False, "emoji": False}


class _SafeConsole(Console):
    """A console that prints every text of whatever is printed as `visible` returns it.

    It leaves a closed pipe to `encore.core.command_parser.run_main`.
    """

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Yield the parts of a text, a table or a bar; rich's own control codes stay."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=visible(segment.text))

    def on_broken_pipe(self) -> None:
        """Raise the error again, which rich would turn into exit code 1."""
        raise  # noqa: PLE0704  # rich calls this while it handles the BrokenPipeError


console = _SafeConsole(stderr=True, **_PLAIN)
out = _SafeConsole(**_PLAIN)

#: True in a command with --json that has not printed its JSON document yet: an error is one then.
is_json_due = ContextVar("is_json_due", default=False)
#: True if the command was called with --verbose: progress names files and whole digests.
is_verbose = ContextVar("is_verbose", default=False)

#: Characters of the bar in a line of progress.
_BAR_WIDTH = 20
#: Seconds between two lines of progress where no terminal shows the bar.
_LINE_SECONDS = 60
#: Characters that could move the cursor, set a title, reverse or break the line, or that no
#: terminal prints (half a surrogate pair, as in a path that is not UTF-8). No tabs or line ends.
_CONTROL = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
#: Characters of an argument that a shell reads from $'…' as their bytes.
_UNPRINTED = re.compile(rf"{_CONTROL.pattern[:-1]}\t\n'\\]")

#: A hyphen in front of a number, but not within a word or a name.
_NEGATIVE = re.compile(r"(?<![\w.)-])-(?=\.?\d)")


def visible(text: str) -> str:
    """Return a text with control and direction characters as escapes; line breaks and tabs stay.

    A study in a bucket is named by its address; its files are those of the local copy.
    """
    for folder, address in bucket_addresses.items():
        text = re.sub(f"{re.escape(folder)}(?![/\\w])", address.replace("\\", r"\\"), text)
    return _CONTROL.sub(lambda match: ascii(match.group())[1:-1], text)


def visible_json(text: str) -> str:
    """Return a JSON document with control and direction characters as escapes of JSON."""
    return _CONTROL.sub(lambda match: f"\\u{ord(match.group()):04x}", text)


class VisibleFormatter(logging.Formatter):
    """Formats the line of a log as `visible` returns it."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        return visible(super().format(record))


def quoted(argument: str) -> str:
    """Return an argument as a shell reads it, on one line and without control characters.

    A path with such characters is written as $'…' with the bytes of these characters, which bash,
    zsh and ksh read.
    """
    if not _CONTROL.search(argument) and "\n" not in argument and "\t" not in argument:
        return shlex.quote(argument)

    def escaped(match: re.Match[str]) -> str:
        return "".join(f"\\x{byte:02x}" for byte in os.fsencode(match.group()))

    return f"$'{_UNPRINTED.sub(escaped, argument)}'"


def minus_signs(text: str) -> str:
    """Return a text with a minus sign for the hyphen in front of every negative number."""
    return _NEGATIVE.sub("\N{MINUS SIGN}", text)


def wrapped(text: str) -> str:
    """Return a text with line breaks that fit it to the terminal, or to COLUMNS if it is set.

    A path is not broken, nor a line that is indented as code: a command to copy. A log file keeps
    its lines whole, so that they can be searched.
    """
    if not (console.is_terminal or "COLUMNS" in os.environ):
        return text
    return "\n".join(
        line
        if line.startswith("    ")
        else textwrap.fill(
            line,
            out.width,
            subsequent_indent=" " * (len(line) - len(line.lstrip())),
            break_long_words=False,
            break_on_hyphens=False,
        )
        for line in text.split("\n")
    )


def say(message: str) -> None:
    """Print information to stderr."""
    console.print(wrapped(visible(message)), soft_wrap=True)


def say_next(*arguments: object, program: str = "encore") -> None:
    """Print the command of the next step to stderr, on one line for a shell.

    A path below the working directory is printed from there.
    """
    directory = Path.cwd()
    short_arguments = [
        argument.relative_to(directory)
        if isinstance(argument, Path) and argument.is_relative_to(directory)
        else argument
        for argument in arguments
    ]
    command = " ".join(quoted(str(argument)) for argument in (program, *short_arguments))
    console.print(f"next: {command}", soft_wrap=True)


def warn(message: str) -> None:
    """Print a warning to stderr."""
    text = Text(wrapped(visible(f"warning: {message}")))
    text.stylize("yellow", 0, len("warning:"))
    console.print(text, soft_wrap=True)


def fail(message: str) -> None:
    """Print an error to stderr on one line, also if the message has line breaks."""
    line = visible(" ".join(message.split()))
    console.print(Text.assemble(("error: ", "bold red"), line), soft_wrap=True)


def print_json(value: Any) -> None:
    """Print a value or record to stdout as indented JSON. NaN and infinity are refused."""
    is_json_due.set(False)
    sys.stdout.write(visible_json(json_text(to_jsonable_python(value))))


@contextmanager
def terminal_reporter() -> Iterator[TerminalReporter]:
    """Yield a reporter that shows a progress bar on a terminal, and prints lines elsewhere."""
    from rich import progress

    with progress.Progress(
        progress.SpinnerColumn(),
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TextColumn("{task.fields[rate]}", markup=False),
        progress.TimeElapsedColumn(),
        progress.TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
        get_time=time.monotonic,
    ) as bar:
        yield TerminalReporter(bar)


class TerminalReporter(Reporter):
    """Shows the progress of a stage on a terminal.

    Elsewhere it prints a short line for each saved file, and one a minute.
    """

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._task: Any = None
        self._printed_at = time.monotonic()
        self._first_advance: tuple[float, float] | None = None

    def started(self, title: str, *, total: int | None = None, done: int = 0) -> None:
        """Replace the bar by a new one."""
        if self._task is not None:
            self._bar.remove_task(self._task)
        self._task = self._bar.add_task(visible(title), total=total, completed=done, rate="")
        self._first_advance = None
        if self._bar.disable:
            say(title)

    def advanced(self, count: int = 1, *, note: str = "") -> None:
        """Advance the bar and show the note beside it."""
        if self._task is None:
            return
        fields: dict[str, Any] = {"rate": visible(note)} if note else {}
        self._bar.update(self._task, advance=count, **fields)
        if self._first_advance is None:
            self._first_advance = time.monotonic(), self._current_task.completed
        if time.monotonic() - self._printed_at >= _LINE_SECONDS:
            self._print_line()

    def saved(self, path: Path, *, kind: str) -> None:
        """Print the progress, unless a terminal shows the bar; with --verbose also the path."""
        if is_verbose.get():
            say(f"{kind}: {path}")
        self._print_line()

    def message(self, text: str) -> None:
        """Print the text on a line of its own."""
        say(text)

    def finished(self, summary: str = "") -> None:
        """Remove the bar and print the summary."""
        if self._task is not None:
            self._bar.remove_task(self._task)
            self._task = None
        if summary:
            say(summary)

    def _print_line(self) -> None:
        """Print a line such as ``rating 40 of 400`` with a bar, unless a terminal shows it.

        It ends with the speed and the time left where they are known.
        """
        if not self._bar.disable or self._task is None or self._current_task.total is None:
            return
        task = self._current_task
        self._printed_at = time.monotonic()
        share = task.completed / task.total if task.total else 1.0
        num_full = int(_BAR_WIDTH * share)
        bar = "█" * num_full + "░" * (_BAR_WIDTH - num_full)
        count = f"{task.completed:,.0f} of {task.total:,.0f}"
        title = task.description.partition(" (")[0]
        line = [f"{title} {count}", bar, task.fields["rate"]]
        if seconds_left := self._seconds_left():
            line.append(f"{timedelta(seconds=seconds_left)} left")
        say("  ".join(filter(None, line)))

    def _seconds_left(self) -> int:
        """Return the whole seconds that the remaining units take; 0 if that is not known.

        The speed is that since the first advance, whose units may be of an earlier call. The bar's
        own estimate forgets what is older than half a minute, which slow work is.
        """
        task = self._current_task
        if self._first_advance is None or task.total is None:
            return 0
        began, num_before = self._first_advance
        if (num_new := task.completed - num_before) <= 0:
            return 0
        return int((task.total - task.completed) * (self._printed_at - began) / num_new)

    @property
    def _current_task(self) -> Task:
        """Return the bar's task, which `started` made."""
        return next(task for task in self._bar.tasks if task.id == self._task)
