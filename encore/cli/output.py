"""What every command shares: where text goes, and options that mean the same everywhere."""

from __future__ import annotations

import json
import re
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

# Texts come from data sets, judges and paths: nothing in them is markup.
_AS_IT_IS: dict[str, Any] = {"highlight": False, "markup": False, "emoji": False}
#: Progress, warnings and messages: stderr, so that stdout stays machine-readable.
console = Console(stderr=True, **_AS_IT_IS)
#: Results.
out = Console(**_AS_IT_IS)

_MIN_FIRST_COLUMN = 12
#: Between two columns, and for both edges together.
_GAP = 2
#: What could move the cursor, set a title or turn the line around: everything but line breaks.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")

StudyArgument = Annotated[
    Path, typer.Argument(metavar="STUDY", help="The study directory (made by `encore ingest`).")
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print the result as JSON on stdout and nothing else there.")
]
RunOption = Annotated[
    str | None,
    typer.Option(
        "--run",
        metavar="RUN_KEY",
        help="Which run, when there are several (a unique prefix of its key is enough).",
    ),
]


def print_json(value: Any) -> None:
    """Write a value as indented JSON to stdout; NaN and infinity are refused."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def warn(message: str) -> None:
    """One warning line on stderr."""
    _line("warning: ", message, style="yellow")


def warn_of_synthetic(ratings: Path, *, run: str | None) -> None:
    """A warning that names what is synthetic in the figures to come, if anything is."""
    from encore.synthetic import synthetic_in

    if parts := synthetic_in(ratings, run=run):
        warn(f"synthetic: {', '.join(parts)}; read these figures as an example, not as evidence")


def say(message: str) -> None:
    """One line of information on stderr."""
    console.print(visible(message), soft_wrap=True)


def fail(message: str) -> None:
    """One error line on stderr, whatever line breaks the message has."""
    _line("error: ", " ".join(message.split()), style="bold red")


def visible(text: str) -> str:
    """The text with control and direction characters shown as escapes, line breaks and tabs kept.

    What is rated is hostile text; a terminal must not act on it.
    """
    return _CONTROL.sub(lambda match: ascii(match.group())[1:-1], text)


def plain_table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, title: str) -> Table:
    """A table whose numeric columns (all cells after the first) are right-aligned."""
    table = Table(title=title, title_justify="left", header_style="bold")
    for position, column in enumerate(columns):
        table.add_column(column, justify="left" if position == 0 else "right")
    for row in rows:
        table.add_row(*[visible(str(cell)) for cell in row])
    return table


def compact_table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, title: str) -> Table:
    """A `plain_table` without vertical rules that fits a narrow terminal.

    First cells are wrapped at hyphens, as rule ids have them, not in the middle of a word.
    """
    table = plain_table(columns, _wrap_first_cells(columns, rows), title=title)
    table.box = box.SIMPLE_HEAD
    table.pad_edge = False
    table.padding = (0, 0, 0, 1)
    return table


def _wrap_first_cells(
    columns: Sequence[str], rows: Sequence[Sequence[object]]
) -> list[tuple[object, ...]]:
    cells = [[visible(str(cell)) for cell in row] for row in (columns, *rows)]
    needed = sum(_GAP + max(map(len, column)) for column in list(zip(*cells, strict=True))[1:])
    width = max(out.width - needed - _GAP, _MIN_FIRST_COLUMN)
    return [("\n".join(textwrap.wrap(str(row[0]), width)), *row[1:]) for row in rows]


def progress_bar() -> Progress:
    """A progress bar on stderr; silent when stderr is no terminal."""
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )


def _line(label: str, message: str, *, style: str) -> None:
    console.print(Text.assemble((label, style), visible(message)), soft_wrap=True)
