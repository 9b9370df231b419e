"""What a figure of the report is: panels to draw, words in their place, and the data behind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes


_NUMBER_STARTS = frozenset("0123456789+\N{MINUS SIGN}\N{EN DASH}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DataTable:
    """The figures behind a chart, written out. One row's cells are in the order of the columns."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @property
    def are_numbers(self) -> tuple[bool, ...]:
        """For each column whether its cells are numbers or dashes, the first one never."""
        by_column = list(zip(*self.rows, strict=True)) or [()] * len(self.columns)
        return tuple(
            place > 0 and all(cell[:1] in _NUMBER_STARTS for cell in cells)
            for place, cells in enumerate(by_column)
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Panel:
    """One pair of axes. On the page it stands alone, in a file beside its neighbours.

    Attributes:
        title: What it is about, a few words; texts of the data are printable.
        subtitle: Its key figures, n among them.
        alt: What a person sees in it, for those who do not.
        draw: Draws it.
        width: In points, the labels included; a phone shows about 335.
        height: In points.
    """

    title: str
    subtitle: str
    alt: str
    draw: Callable[[Axes], None]
    width: float = 350.0
    height: float = 260.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Chart:
    """A figure of the report.

    Attributes:
        name: Its files' name.
        title: What it shows.
        caption: How to read it.
        panels: At least one.
        table: The same figures in words and numbers.
        columns: Panels beside each other in the file.
    """

    name: str
    title: str
    caption: str
    panels: tuple[Panel, ...]
    table: DataTable
    columns: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """In the place of something that the ratings cannot give, and why."""

    reason: str
