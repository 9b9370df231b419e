"""Tables of the commands, and warnings that several of them have."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.table import Table

from encore.errors import StudyIncompleteError
from encore.terminal import out, visible, warn

_MIN_FIRST_COLUMN = 12
#: Between two columns, and for both edges together.
_GAP = 2


def exit_if_incomplete(num_missing_shards: int, num_shards: int) -> None:
    """Say that planned shards are not in the figures.

    Raises:
        StudyIncompleteError: Some are missing.
    """
    if num_missing_shards:
        raise StudyIncompleteError(
            f"{num_missing_shards} of {num_shards} shards missing, damaged or failed and not in "
            "these figures; `encore status` lists them, `encore rate` with the same parameters "
            "rates exactly these"
        )


def warn_of_synthetic(ratings: Path, *, run: str | None) -> None:
    """A warning that names what is synthetic in the figures to come, if anything is."""
    from encore.synthetic import synthetic_in

    if parts := synthetic_in(ratings, run=run):
        warn(f"synthetic: {', '.join(parts)}; read these figures as an example, not as evidence")


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
