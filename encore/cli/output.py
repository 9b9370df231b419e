"""What every command shares: where text goes, and options that mean the same everywhere."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
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

#: Progress, warnings and messages: stderr, so that stdout stays machine-readable.
console = Console(stderr=True, highlight=False)
#: Results.
out = Console(highlight=False)

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
    console.print(f"[yellow]warning:[/yellow] {_escape(message)}", soft_wrap=True)


def say(message: str) -> None:
    """One line of information on stderr."""
    console.print(_escape(message), soft_wrap=True)


def plain_table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, title: str) -> Table:
    """A table whose numeric columns (all cells after the first) are right-aligned."""
    table = Table(title=title, title_justify="left", header_style="bold")
    for position, column in enumerate(columns):
        table.add_column(column, justify="left" if position == 0 else "right")
    for row in rows:
        table.add_row(*[_escape(str(cell)) for cell in row])
    return table


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


def _escape(text: str) -> str:
    return text.replace("[", "\\[")
