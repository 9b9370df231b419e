"""What a figure of the report is, and drawing it: light and dark for the page, SVG and PNG files.

A chart function turns data into a `Chart`: panels that draw on Matplotlib's axes, words in their
place, and the figures behind as a table. Finding the place of labels takes most of the time, so a
panel is drawn once: dark by its colours' names, and the files from the drawings of their panels.
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
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.collections import QuadMesh
    from matplotlib.figure import Figure

Theme = Literal["light", "dark"]
Floats = NDArray[np.float64]

_STYLE = Path(__file__).parent / "report.mplstyle"
#: The dark theme: the colour in the place of each one of the style sheet. Blue, orange, green and
#: purple can be told apart without red and green.
_DARK = {
    "0068ad": "5ab2f2",
    "c4520c": "f39a55",
    "00775a": "43c79c",
    "8a4a82": "d693cd",
    "1d232b": "e7ebf0",
    "59636f": "9ca7b4",
    "ffffff": "161b21",
    "dce2e9": "343f4b",
}
_COLOUR = re.compile('(?<=: #)[0-9a-f]{6}(?=[;"])')
_GROUP_ID = re.compile(r'<g id="\w+">')
_POINTS_PER_INCH = 72.0
_PNG_DPI = 180
#: Around what a panel shows, in pixels.
_PAD = 8.0

# Colours beside the first four: of text, of labels, of the ground, of what lies behind.
INK, MUTED, PAPER, BAND = "C4", "C5", "C6", "C7"
#: The look of a line at a value that others are read against.
REFERENCE: Mapping[str, Any] = {
    "color": MUTED,
    "linewidth": 0.9,
    "linestyle": (0, (3, 2)),
    "zorder": 1.5,
}


@dataclass(frozen=True, slots=True)
class DataTable:
    """The figures behind a chart, written out."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @property
    def are_numbers(self) -> list[bool]:
        """For each column whether its cells are numbers or dashes, the first one never."""
        by_column = list(zip(*self.rows, strict=True)) or [()] * len(self.columns)
        is_number = re.compile("[0-9+−–]").match
        return [place > 0 and all(map(is_number, cells)) for place, cells in enumerate(by_column)]


@dataclass(frozen=True, slots=True, eq=False)
class Panel:
    """One pair of axes: a figure of its own on the page, beside its neighbours in a file.

    Attributes:
        title: What it is about, a few words.
        subtitle: Its key figures, n among them; with the titles what is read to those who do not
            see it.
        draw: Draws it.
        width: In points, the labels included. At 295 its text is readable on a phone.
        height: In points.
    """

    title: str
    subtitle: str
    draw: Callable[[Axes], None]
    width: float = 295.0
    height: float = 235.0


@dataclass(frozen=True, slots=True, eq=False)
class Chart:
    """A figure of the report; ``columns`` is of panels in a file."""

    panels: Sequence[Panel]
    table: DataTable
    columns: int = 2


@dataclass(frozen=True, slots=True)
class Missing:
    """In the place of something that the ratings cannot give, and why: a sentence."""

    reason: str
    title: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DrawnChart:
    """A chart with its drawings.

    Attributes:
        chart: What was drawn.
        title: Of the files.
        panels: Each panel as SVG in a data URI, by theme.
        files: All panels in one picture, light, by format: ``svg`` and ``png``.
    """

    chart: Chart
    title: str
    panels: Mapping[Theme, Sequence[str]]
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
        drawings = [_draw_panel(panel) for panel in chart.panels]
        files = _sheet(chart, drawings, title=title, mark=mark)
    light = [svg for svg, _ in drawings]
    dark = [_COLOUR.sub(lambda found: _DARK.get(found[0], found[0]), svg) for svg in light]
    return DrawnChart(
        chart=chart,
        title=title,
        panels={"light": [*map(_data_uri, light)], "dark": [*map(_data_uri, dark)]},
        files=files,
    )


def _data_uri(svg: str) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"


def _draw_panel(panel: Panel) -> tuple[str, NDArray[np.uint8]]:
    figure = _figure(panel.width, panel.height)
    axes = figure.add_subplot()
    panel.draw(axes)
    # A title that looks for room above ticks takes as long as everything else together.
    is_free = axes.xaxis.get_ticks_position() != "top"
    axes.set_title(panel.subtitle, y=1.0 if is_free else None)
    _fit(figure)
    return _draw(figure)


def _fit(figure: Figure) -> None:
    """Give labels the room they need: a constrained layout in one pass, of the same result."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.transforms import Bbox

    canvas: Any = FigureCanvasAgg(figure)
    boxes = (one.get_tightbbox(canvas.get_renderer(), for_layout_only=True) for one in figure.axes)
    taken = Bbox.union([box for box in boxes if box is not None])
    (left, bottom), (right, top) = figure.transFigure.inverted().transform(taken.padded(_PAD))
    edges = figure.subplotpars
    figure.subplots_adjust(
        edges.left - left, edges.bottom - bottom, edges.right + 1 - right, edges.top + 1 - top
    )


def _draw(figure: Figure) -> tuple[str, NDArray[np.uint8]]:
    """A figure as SVG and as pixels; neither tells the time nor what drew it."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    canvas: Any = FigureCanvasAgg(figure)
    canvas.draw()
    pixels = np.array(canvas.buffer_rgba())
    buffer = io.BytesIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    canvas = FigureCanvasSVG(figure)
    canvas.print_svg(buffer, metadata=nothing)
    return _GROUP_ID.sub("<g>", buffer.getvalue().decode()), pixels


def _sheet(
    chart: Chart,
    drawings: Sequence[tuple[str, NDArray[np.uint8]]],
    *,
    title: str,
    mark: str | None,
) -> dict[str, bytes]:
    """All panels side by side and below each other, each under its title: the files' bytes."""
    from PIL import Image

    panels, columns = chart.panels, min(chart.columns, len(chart.panels))
    widths = [max(one.width for one in panels[place::columns]) for place in range(columns)]
    starts = range(0, len(panels), columns)
    heights = [max(one.height for one in panels[at : at + columns]) + 30 for at in starts]
    heading = _wrapped(title, sum(widths) / 8)
    top = 28 + 16 * heading.count("\n")
    width, height = sum(widths), top + sum(heights) + 30 * (mark is not None)
    figure = _figure(width, height)

    def write(text: str, x: float, y: float, **look: Any) -> None:
        figure.text((x + 4) / width, 1 - y / height, text, va="bottom", **look)

    write(heading, 0, top - 4, fontsize=13)
    if mark is not None:
        write(textwrap.fill(mark, int(width / 6)), 0, height - 4, color="C1")
    corners = []
    for place, panel in enumerate(panels):
        row, column = divmod(place, columns)
        x, y = sum(widths[:column]), top + sum(heights[:row])
        write(_wrapped(panel.title, panel.width / 6.2 - 4), x, y + 30)
        corners.append((x, y + 30))
    svg, pixels = _draw(figure)
    for (x, y), (panel_svg, panel_pixels) in zip(corners, drawings, strict=True):
        inner = panel_svg[panel_svg.index(">", panel_svg.index("<svg")) + 1 :]
        moved = f'<g transform="translate({x:g} {y:g})">{inner.replace("</svg>", "</g>")}</svg>'
        svg = svg.replace("</svg>", moved)
        row, column = (int(points * _PNG_DPI / _POINTS_PER_INCH) for points in (y, x))
        num_rows, num_columns = panel_pixels.shape[:2]
        pixels[row : row + num_rows, column : column + num_columns] = panel_pixels
    png = io.BytesIO()
    Image.fromarray(pixels).convert("RGB").save(png, "png", dpi=(_PNG_DPI, _PNG_DPI))
    return {"svg": svg.encode(), "png": png.getvalue()}


def _wrapped(text: str, num_characters: float) -> str:
    return "\n".join(textwrap.wrap(text, int(num_characters), max_lines=2, placeholder=" …"))


def _figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width / _POINTS_PER_INCH, height / _POINTS_PER_INCH), dpi=_PNG_DPI)


# --- what the charts share ------------------------------------------------------------------------


def floats(values: object) -> Floats:
    """Figures as an array; None is NaN, which is not drawn."""
    return np.asarray(values, dtype=np.float64)


def draw_cells(axes: Axes, value_RC: Floats, words: Callable[[int, int], str]) -> QuadMesh:
    """Cells from orange at −1 over the ground to blue at 1, NaN grey, with words in them."""
    from matplotlib.colors import ListedColormap, to_rgba

    # Tones that fade rather than blends with the ground, which would be other colours when dark.
    tones = ListedColormap(
        [to_rgba("C1" if level < 0 else "C0", abs(level)) for level in np.linspace(-1, 1, 129)]
    ).with_extremes(bad=BAND)
    edges_C, edges_R = (np.arange(size + 1) - 0.5 for size in value_RC.T.shape)
    image = axes.pcolormesh(edges_C, edges_R, value_RC, cmap=tones, vmin=-1, vmax=1)
    axes.invert_yaxis()
    for row, column in np.ndindex(*value_RC.shape):
        tone = PAPER if abs(value_RC[row, column]) > 0.6 else INK
        text = axes.text(column, row, words(row, column), color=tone, fontsize=9)
        text.set(ha="center", va="center_baseline")
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.set_ylabel("rule")
    return image


def draw_dots(
    axes: Axes,
    names: Sequence[str],
    figures: Sequence[Sequence[float | None]],
    tones: Sequence[str],
) -> None:
    """A named row for each share and the two ends of its interval."""
    for place, (value, low, high) in enumerate(floats(figures)):
        axes.plot([low, high], [place, place], color=tones[place], linewidth=1.4)
        axes.plot(value, place, "o", color=tones[place], markersize=7.5)
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
    axes.set_ylim(len(names) - 0.5, -0.85 - room_above)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.grid(visible=False, axis="y")
    for place, name in enumerate(names):
        axes.annotate(
            name if len(name) <= 46 else f"{name[:44]} …",
            xy=(0.0, place - 0.3),
            xycoords=("axes fraction", "data"),
            fontsize=9,
            va="bottom",
            annotation_clip=False,
            bbox={"facecolor": PAPER, "alpha": 0.9, "linewidth": 0, "pad": 1.0},
        )
