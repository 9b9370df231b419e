"""Charts of the report: their parts, and drawing them as SVG and PNG.

A chart function turns findings into a `Chart`: panels that draw on Matplotlib's axes, and a table
of the values. The page shows each panel as a picture of its own, so that it fits a phone; a file
shows all panels. The style is that of `report.mplstyle`, which is light: the page's style sheet
turns the pictures dark where the reader prefers that.
"""

from __future__ import annotations

import base64
import io
import re
import textwrap
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
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
#: Width and height in points of the area inside the axes of a panel of the usual size, roughly.
_PLOT_POINTS = (240.0, 165.0)
#: Room in points for the name of a row above it, in a panel of the usual width.
_ROW_NAME_POINTS = 255.0
#: Width and height in points of a label beside a point.
_LABEL_POINTS = (15.0, 11.0)

# Further colours of the style: text, labels, background, and areas behind the data.
INK, MUTED, PAPER, BAND = "C4", "C5", "C6", "C7"
#: Colour of intervals, which must not hide labels.
GRID = "0.75"
#: Style of a reference line.
REFERENCE: Mapping[str, Any] = {"color": MUTED, "linewidth": 0.9, "linestyle": "--"}


@dataclass(frozen=True, slots=True)
class DataTable:
    """The values behind a chart, as text."""

    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]

    @property
    def are_numbers(self) -> list[bool]:
        """Return for each column True if all cells are numbers or dashes; the first is False."""
        cells_by_column = list(zip(*self.rows, strict=True)) or [()] * len(self.columns)
        is_number = re.compile("[0-9+−–]").match
        return [
            index > 0 and all(map(is_number, cells)) for index, cells in enumerate(cells_by_column)
        ]


@dataclass(frozen=True, slots=True, eq=False)
class Panel:
    """One pair of axes of a chart.

    Attributes:
        title: Subject of the panel in a few words.
        subtitle: Key values, including the number of pairs. Screen readers read the titles.
        draw: Function that draws the panel on Matplotlib's axes.
        hints: Text that the page shows when the mouse is over a position in the axes' data.
    """

    title: str
    subtitle: str
    draw: Callable[[Axes], None]
    hints: Mapping[tuple[float, float], str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Chart:
    """A chart of the report.

    Attributes:
        panels: Panels of the chart. Each is a picture on the page; a file has all of them.
        table: Values behind the chart.
        columns: Number of panels side by side in a file.
        width: Width of a panel in points. At 295 its text is readable on a phone.
        height: Height of a panel in points.
    """

    panels: Sequence[Panel]
    table: DataTable
    columns: int = 2
    width: float = 295.0
    height: float = 235.0


@dataclass(frozen=True, slots=True)
class Missing:
    """Stands for a result that the ratings cannot give; ``reason`` is a sentence."""

    reason: str
    title: str = ""


@dataclass(frozen=True, slots=True)
class DrawnPanel:
    """Picture of a panel.

    Attributes:
        uri: The picture as SVG in a data URI.
        hints: Position from the left and from the top in per cent of the picture, and the text, of
            each hint.
    """

    uri: str
    hints: Sequence[tuple[float, float, str]] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DrawnChart:
    """A chart with its title and drawings.

    Attributes:
        chart: The chart that was drawn.
        title: Title in the files.
        panels: Picture of each panel.
        files: Bytes of the picture with all panels, by format.
    """

    chart: Chart
    title: str
    panels: Sequence[DrawnPanel]
    files: Mapping[str, bytes]


def draw_chart(
    chart: Chart, *, title: str, mark: str | None = None, formats: Sequence[str] = FORMATS
) -> DrawnChart:
    """Draw a chart. The same chart and version of Matplotlib give the same bytes.

    Args:
        chart: Chart to draw.
        title: Title in the files.
        mark: Line at the foot of the files, for data that are no evidence.
        formats: Formats of the files; none for the page's pictures alone.
    """
    import matplotlib.style

    # The defaults come first: a user's own matplotlibrc must not change the report.
    with warnings.catch_warnings(), matplotlib.style.context(["default", _STYLE]):
        # The PNG shows boxes for characters that its font lacks; the SVG keeps the characters.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        files = {}
        if formats:
            sheet = _sheet(chart, title=title, mark=mark)
            files = {kind: _saved(sheet, kind) for kind in formats}
        return DrawnChart(
            chart=chart,
            title=title,
            panels=[_drawn_panel(panel, chart) for panel in chart.panels],
            files=files,
        )


def _drawn_panel(panel: Panel, chart: Chart) -> DrawnPanel:
    figure = _figure(chart.width, chart.height)
    axes = figure.add_subplot()
    panel.draw(axes)
    axes.set_title(panel.subtitle)
    figure.tight_layout()
    svg = _saved(figure, "svg", transparent=True)
    to_figure = axes.transData + figure.transFigure.inverted()
    hints = [
        (round(100 * x, 2), round(100 - 100 * y, 2), text)
        for (x, y), text in zip(
            to_figure.transform(np.array([*panel.hints]).reshape(-1, 2)).tolist(),
            panel.hints.values(),
            strict=True,
        )
    ]
    return DrawnPanel(f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}", hints)


def _sheet(chart: Chart, *, title: str, mark: str | None) -> Figure:
    """Draw all panels on one sheet, each under its title."""
    columns = min(chart.columns, len(chart.panels))
    num_rows = -(-len(chart.panels) // columns)
    width = columns * chart.width
    figure = _figure(width, num_rows * (chart.height + 28) + 50)
    figure.suptitle(_wrapped(title, width / 8), x=0.01, ha="left")
    if mark is not None:
        figure.supxlabel(_wrapped(mark, width / 6), color="C1")
    for number, panel in enumerate(chart.panels, start=1):
        axes = figure.add_subplot(num_rows, columns, number)
        panel.draw(axes)
        title_lines = _wrapped(panel.title, chart.width / 6.5)
        axes.set_title(f"{title_lines}\n{panel.subtitle}".strip())
    figure.tight_layout()
    return figure


def _wrapped(text: str, num_characters: float) -> str:
    return "\n".join(textwrap.wrap(text, int(num_characters), max_lines=2, placeholder=" …"))


def _figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width / _POINTS_PER_INCH, height / _POINTS_PER_INCH))


def _saved(figure: Figure, kind: str, *, transparent: bool = False) -> bytes:
    """Return a figure as a file without a date, so that equal figures are equal bytes.

    `Figure.savefig` would draw it twice, the first time for a layout that it has already.
    """
    from matplotlib import rcParams
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    buffer = io.BytesIO()
    figure.set_facecolor("none" if transparent else rcParams["savefig.facecolor"])
    canvas: Any
    if kind == "svg":
        canvas = FigureCanvasSVG(figure)
        canvas.print_svg(buffer, metadata={"Date": None})
    else:
        figure.set_dpi(rcParams["savefig.dpi"])
        canvas = FigureCanvasAgg(figure)
        canvas.print_png(buffer)
    return buffer.getvalue()


# --- shared by the charts -------------------------------------------------------------------------


def floats(values: object) -> Floats:
    """Return values as an array; None becomes NaN, which is not drawn."""
    return np.asarray(values, dtype=np.float64)


def draw_cells(
    axes: Axes, value_RC: Floats, texts: Sequence[Sequence[str]], names: Sequence[str]
) -> None:
    """Draw named rows of cells with texts: orange at −1, white at 0, blue at 1, grey for NaN."""
    from matplotlib.colors import LinearSegmentedColormap

    tones = LinearSegmentedColormap.from_list("tones", ["C1", PAPER, "C0"]).with_extremes(bad=BAND)
    edges_C, edges_R = (np.arange(size + 1) - 0.5 for size in value_RC.T.shape)
    axes.pcolormesh(edges_C, edges_R, value_RC, cmap=tones, vmin=-1, vmax=1)
    for row, column in np.ndindex(*value_RC.shape):
        tone = PAPER if abs(value_RC[row, column]) > 0.6 else INK
        text = axes.text(column, row, texts[row][column], color=tone, fontsize=8)
        text.set(ha="center", va="center_baseline")
    axes.spines[:].set_visible(False)
    axes.set_yticks(range(len(names)), [_wrapped(name, 26) for name in names], fontsize=8)
    axes.invert_yaxis()


def draw_dots(
    axes: Axes,
    names: Sequence[str],
    estimates: Sequence[Sequence[float | None]],
    colors: Sequence[str],
) -> None:
    """Draw a named row for each estimate: a share and the two ends of its interval."""
    value_N, low_N, high_N = floats(estimates).T
    axes.hlines(range(len(names)), low_N, high_N, colors)
    axes.scatter(value_N, range(len(names)), 50, colors)
    name_rows(axes, names)
    in_percent(axes.xaxis)


def label_points(axes: Axes, x_N: Floats, y_N: Floats, labels: Sequence[str]) -> None:
    """Write a short label beside each point, at the nearest place that nothing else covers.

    Args:
        axes: Axes with their final limits.
        x_N: Points to label, in data coordinates.
        y_N: Points to label, in data coordinates.
        labels: Text of each label, of one or two characters.
    """
    x_low, x_high, y_low, y_high = axes.axis()
    share_N2 = np.column_stack([(x_N - x_low) / (x_high - x_low), (y_N - y_low) / (y_high - y_low)])
    point_N2 = share_N2 * _PLOT_POINTS
    angle_A = np.array([1, 3, 5, 7, 0, 2, 4, 6]) * np.pi / 4  # first between the error bars
    circle_A2 = np.column_stack([np.cos(angle_A), np.sin(angle_A)])
    shift_K2 = np.concatenate([radius * circle_A2 for radius in (16, 21, 27, 34)])
    covered = [*point_N2]
    for x, y, point, label in zip(x_N, y_N, point_N2, labels, strict=True):
        distance_KC2 = np.abs((point + shift_K2)[:, None] - np.array(covered)) / _LABEL_POINTS
        clearance_K = distance_KC2.max(axis=2).min(axis=1)
        shift = shift_K2[np.minimum(clearance_K, 1).argmax()]  # the first is the nearest
        covered.append(point + shift)
        text = axes.annotate(
            label,
            (x, y),
            tuple(shift),
            textcoords="offset points",
            arrowprops={"arrowstyle": "-", "color": "C0", "linewidth": 0.6, "shrinkB": 3},
        )
        text.set(fontsize=9, fontweight="bold", color="C0", ha="center", va="center")


def in_percent(axis: Axis) -> None:
    """Label an axis of shares in per cent."""
    axis.set_major_formatter(lambda share, _: f"{100 * share:.6g}")


def rows_height(num_rows: float) -> float:
    """Return the height in points of a panel with this number of named rows."""
    return num_rows * 29 + 70


def name_rows(axes: Axes, names: Sequence[str], *, room_above: float = 0.0) -> None:
    """Place rows at 0, 1, … from the top, each with its name above it, where a phone has room.

    Args:
        axes: Axes of the panel.
        names: Names of the rows, from the top.
        room_above: Space for a legend above the first row, in heights of a row.
    """
    axes.set(ylim=(len(names) - 0.5, -0.85 - room_above), yticks=[])
    axes.spines["left"].set_visible(False)
    for row, name in enumerate(names):
        text = axes.text(0, row - 0.3, name, transform=axes.get_yaxis_transform())
        text.set(fontsize=9, va="bottom")
        width = text.get_window_extent(dpi=_POINTS_PER_INCH).width
        if width > _ROW_NAME_POINTS:
            num_kept = int(len(name) * _ROW_NAME_POINTS / width) - 2
            text.set_text(f"{name[:num_kept]} …")
        text.set_bbox({"facecolor": PAPER, "linewidth": 0, "pad": 1.0})
