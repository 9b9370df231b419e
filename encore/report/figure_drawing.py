"""What a figure of the report is, and drawing it as SVG and PNG.

A chart function turns findings into a `Chart`: panels that draw on Matplotlib's axes, words in
their place, and the figures behind as a table. The page has each panel as a picture of its own, so
that they fit a phone; a file has them all. The look is that of `report.mplstyle`, and is light: the
page's style sheet turns its pictures dark.
"""

from __future__ import annotations

import base64
import io
import re
import textwrap
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]

FORMATS = ("svg", "png")
_STYLE = Path(__file__).parent / "report.mplstyle"
_POINTS_PER_INCH = 72.0

# Colours beside the first four: of text, of labels, of the ground, of what lies behind.
INK, MUTED, PAPER, BAND = "C4", "C5", "C6", "C7"
#: The look of a line at a value that others are read against.
REFERENCE: Mapping[str, Any] = {"color": MUTED, "linewidth": 0.9, "linestyle": "--"}


@dataclass(frozen=True, slots=True)
class DataTable:
    """The figures behind a chart, written out."""

    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]

    @property
    def are_numbers(self) -> list[bool]:
        """For each column whether its cells are numbers or dashes, the first one never."""
        by_column = list(zip(*self.rows, strict=True)) or [()] * len(self.columns)
        is_number = re.compile("[0-9+−–]").match
        return [place > 0 and all(map(is_number, cells)) for place, cells in enumerate(by_column)]


@dataclass(frozen=True, slots=True, eq=False)
class Panel:
    """One pair of axes.

    Attributes:
        title: What it is about, a few words.
        subtitle: Its key figures, n among them; with the titles what is read to those who do not
            see it.
        draw: Draws it.
    """

    title: str
    subtitle: str
    draw: Callable[[Axes], None]


@dataclass(frozen=True, slots=True, eq=False)
class Chart:
    """A figure of the report.

    Attributes:
        panels: A figure of its own on the page each, beside its neighbours in a file.
        table: The figures behind.
        columns: Of panels in a file.
        width: Of a panel in points. At 295 its text is readable on a phone.
        height: In points.
    """

    panels: Sequence[Panel]
    table: DataTable
    columns: int = 2
    width: float = 295.0
    height: float = 235.0


@dataclass(frozen=True, slots=True)
class Missing:
    """In the place of something that the ratings cannot give, and why: a sentence."""

    reason: str
    title: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DrawnChart:
    """A chart with its title and drawings.

    Attributes:
        chart: What was drawn.
        title: Of the files.
        panels: Each panel as SVG in a data URI.
        files: All panels in one picture, by format.
    """

    chart: Chart
    title: str
    panels: Sequence[str]
    files: Mapping[str, bytes]


def draw_chart(chart: Chart, *, title: str, mark: str | None = None) -> DrawnChart:
    """Draw a chart; the same bytes for the same chart and the same version of Matplotlib.

    Args:
        chart: What to draw.
        title: Of the files.
        mark: A line at the foot of the files, for what must not be taken for evidence.
    """
    import matplotlib.style

    # From the defaults: a person's own matplotlibrc must not change the report.
    with warnings.catch_warnings(), matplotlib.style.context(["default", _STYLE]):
        # The PNG shows boxes for what its font lacks; the SVG has the characters.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        sheet = _sheet(chart, title=title, mark=mark)
        return DrawnChart(
            chart=chart,
            title=title,
            panels=[_data_uri(panel, chart) for panel in chart.panels],
            files={kind: _saved(sheet, kind) for kind in FORMATS},
        )


def _data_uri(panel: Panel, chart: Chart) -> str:
    figure = _figure(chart.width, chart.height)
    axes = figure.add_subplot()
    panel.draw(axes)
    axes.set_title(panel.subtitle)
    figure.tight_layout()
    svg = _saved(figure, "svg", transparent=True)
    return f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}"


def _sheet(chart: Chart, *, title: str, mark: str | None) -> Figure:
    """All panels side by side and below each other, each under its title."""
    columns = min(chart.columns, len(chart.panels))
    num_rows = -(-len(chart.panels) // columns)
    width = columns * chart.width
    figure = _figure(width, num_rows * (chart.height + 28) + 50)
    figure.suptitle(_wrapped(title, width / 8), x=0.01, ha="left")
    if mark is not None:
        figure.supxlabel(_wrapped(mark, width / 6), color="C1")
    for place, panel in enumerate(chart.panels, start=1):
        axes = figure.add_subplot(num_rows, columns, place)
        panel.draw(axes)
        name = _wrapped(panel.title, chart.width / 6.5)
        axes.set_title(f"{name}\n{panel.subtitle}".strip())
    figure.tight_layout()
    return figure


def _wrapped(text: str, num_characters: float) -> str:
    return "\n".join(textwrap.wrap(text, int(num_characters), max_lines=2, placeholder=" …"))


def _figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width / _POINTS_PER_INCH, height / _POINTS_PER_INCH))


def _saved(figure: Figure, kind: str, *, transparent: bool = False) -> bytes:
    """A figure as a file that does not tell the time."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, metadata={"Date": None}, transparent=transparent)
    return buffer.getvalue()


# --- what the charts share ------------------------------------------------------------------------


def floats(values: object) -> Floats:
    """Figures as an array; None is NaN, which is not drawn."""
    return np.asarray(values, dtype=np.float64)


def draw_cells(axes: Axes, value_RC: Floats, words: Callable[[int, int], str]) -> None:
    """Cells from orange at −1 over white to blue at 1, NaN grey, with words in them."""
    from matplotlib.colors import LinearSegmentedColormap

    tones = LinearSegmentedColormap.from_list("tones", ["C1", PAPER, "C0"]).with_extremes(bad=BAND)
    edges_C, edges_R = (np.arange(size + 1) - 0.5 for size in value_RC.T.shape)
    axes.pcolormesh(edges_C, edges_R, value_RC, cmap=tones, vmin=-1, vmax=1)
    for row, column in np.ndindex(*value_RC.shape):
        tone = PAPER if abs(value_RC[row, column]) > 0.6 else INK
        text = axes.text(column, row, words(row, column), color=tone, fontsize=9)
        text.set(ha="center", va="center_baseline")
    axes.spines[:].set_visible(False)
    axes.invert_yaxis()
    axes.set_ylabel("rule")


def draw_dots(
    axes: Axes,
    names: Sequence[str],
    figures: Sequence[Sequence[float | None]],
    tones: Sequence[str],
) -> None:
    """A named row for each share and the two ends of its interval."""
    value_N, low_N, high_N = floats(figures).T
    axes.hlines(range(len(names)), low_N, high_N, tones)
    axes.scatter(value_N, range(len(names)), 50, tones)
    name_rows(axes, names)
    in_percent(axes.xaxis)


def in_percent(axis: Axis) -> None:
    """Label an axis of shares in per cent."""
    axis.set_major_formatter(lambda share, _: f"{100 * share:.6g}")


def rows_height(num_rows: float) -> float:
    """Height of a panel of so many named rows, in points."""
    return num_rows * 29 + 70


def name_rows(axes: Axes, names: Sequence[str], *, room_above: float = 0.0) -> None:
    """Rows from the top down at 0, 1, …, each with its name above it, which a phone has room for.

    ``room_above`` the first row is in heights of a row, for a legend.
    """
    axes.set(ylim=(len(names) - 0.5, -0.85 - room_above), yticks=[])
    axes.spines["left"].set_visible(False)
    for place, name in enumerate(names):
        shown = name if len(name) <= 46 else f"{name[:44]} …"
        text = axes.text(0, place - 0.3, shown, transform=axes.get_yaxis_transform())
        text.set(fontsize=9, va="bottom", bbox={"facecolor": PAPER, "linewidth": 0, "pad": 1.0})
