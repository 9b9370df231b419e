"""What a figure of the report is, and drawing it: light and dark for the page, SVG and PNG files.

A chart function turns data into a `Chart`: panels that draw on Matplotlib's axes, words in their
place, and the figures behind as a table. Colours come from the style sheets in ``styles/``: ``C0``
to ``C3``, and what `colour` names.
"""

from __future__ import annotations

import base64
import io
import re
import textwrap
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from encore.report.words import NUMBER_STARTS, printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

Theme = Literal["light", "dark"]

_STYLES = Path(__file__).parent / "styles"
_POINTS_PER_INCH = 72.0
_PNG_DPI = 180
#: Of a title in a file: points that one character takes at its size.
_CHARACTER_POINTS = 6.2
_NO_GLYPH = re.compile(r"Glyph (\d+) .*missing from font")
_COLOURS = {"ink": "text.color", "muted": "axes.labelcolor", "paper": "figure.facecolor"}
#: Height of a row with its name above it, and of what surrounds the rows, in points.
_ROW_HEIGHT, _FRAME_HEIGHT = 29.0, 70.0
_NAME_LENGTH = 46


@dataclass(frozen=True, slots=True, kw_only=True)
class DataTable:
    """The figures behind a chart, written out."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @property
    def are_numbers(self) -> tuple[bool, ...]:
        """For each column whether its cells are numbers or dashes, the first one never."""
        by_column = list(zip(*self.rows, strict=True)) or [()] * len(self.columns)
        return tuple(
            place > 0 and all(cell[:1] in NUMBER_STARTS for cell in cells)
            for place, cells in enumerate(by_column)
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Panel:
    """One pair of axes: a figure of its own on the page, beside its neighbours in a file.

    Attributes:
        title: What it is about, a few words.
        subtitle: Its key figures, n among them.
        alt: What a person sees in it, for those who do not.
        draw: Draws it.
        width: In points, the labels included. At 295 its text is readable on a phone.
        height: In points.
    """

    title: str
    subtitle: str
    alt: str
    draw: Callable[[Axes], None]
    width: float = 295.0
    height: float = 235.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Chart:
    """A figure of the report; ``columns`` is of panels in a file."""

    panels: tuple[Panel, ...]
    table: DataTable
    columns: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """In the place of something that the ratings cannot give, and why."""

    reason: str
    title: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DrawnChart:
    """A chart with its drawings.

    Attributes:
        chart: What was drawn.
        title: Of the files.
        panels: Each panel as SVG in a data URI, by theme.
        svg: All panels as a file, light.
        png: The same as pixels.
        missing_glyphs: Characters that the PNG shows as boxes, because its font lacks them.
    """

    chart: Chart
    title: str
    panels: dict[Theme, tuple[str, ...]]
    svg: bytes
    png: bytes
    missing_glyphs: tuple[str, ...]


def draw_chart(chart: Chart, *, title: str, mark: str | None = None) -> DrawnChart:
    """Draw a chart; the same bytes for the same chart and the same version of Matplotlib.

    Args:
        chart: What to draw.
        title: Of the files.
        mark: A line at the foot of the files, for what must not be taken for evidence.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        panels: dict[Theme, tuple[str, ...]] = {}
        for theme in ("dark", "light"):
            with _style(theme):
                drawings = [_save(_panel_figure(panel), "svg") for panel in chart.panels]
                panels[theme] = tuple(map(_data_uri, drawings))
        with _style("light"):
            sheet = _sheet(chart, title=title, mark=mark)
            svg = _save(sheet, "svg")
            sheet.set_layout_engine("none")  # everything has its place; finding it again takes time
            png = _save(sheet, "png")
    glyphs = (_NO_GLYPH.match(str(warning.message)) for warning in caught)
    return DrawnChart(
        chart=chart,
        title=title,
        panels=panels,
        svg=svg,
        png=png,
        missing_glyphs=tuple(sorted({chr(int(found.group(1))) for found in glyphs if found})),
    )


@contextmanager
def _style(theme: Theme) -> Iterator[None]:
    import matplotlib.style

    # From the defaults: a person's own matplotlibrc must not change the report.
    sheets: list[str | Path] = ["default", _STYLES / "common.mplstyle"]
    sheets.append(_STYLES / f"{theme}.mplstyle")
    with matplotlib.style.context(sheets):
        yield


def _panel_figure(panel: Panel) -> Figure:
    figure = _figure(panel.width, panel.height)
    axes = figure.add_subplot()
    panel.draw(axes)
    axes.set_title(panel.subtitle)
    return figure


def _sheet(chart: Chart, *, title: str, mark: str | None) -> Figure:
    """All panels of a chart side by side and below each other, each under its title."""
    panels, columns = chart.panels, min(chart.columns, len(chart.panels))
    widths = [max(one.width for one in panels[place::columns]) for place in range(columns)]
    starts = range(0, len(panels), columns)
    heights = [max(one.height for one in panels[at : at + columns]) + 26 for at in starts]
    figure = _figure(sum(widths), sum(heights) + 30)
    grid = figure.add_gridspec(
        len(heights), columns, width_ratios=widths, height_ratios=heights, wspace=0.06, hspace=0.06
    )
    for place, panel in enumerate(panels):
        axes = figure.add_subplot(grid[divmod(place, columns)])
        panel.draw(axes)
        width = int(panel.width / _CHARACTER_POINTS) - 4
        words = textwrap.wrap(panel.title, width, max_lines=2, placeholder=" …")
        axes.set_title("\n".join([*words, panel.subtitle]))
    lines = textwrap.wrap(title, int(sum(widths) / 8), max_lines=2, placeholder=" …")
    figure.suptitle("\n".join(lines), fontsize=13, x=0.01, ha="left")
    if mark is not None:
        figure.supxlabel(textwrap.fill(mark, int(sum(widths) / 7)), color="C1", fontsize=9.5)
    return figure


def _figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    size = (width / _POINTS_PER_INCH, height / _POINTS_PER_INCH)
    return Figure(figsize=size, layout="constrained")


def _save(figure: Figure, kind: str) -> bytes:
    # Neither the time nor the version of what drew it: the bytes follow from the data.
    metadata = {"Date": None} if kind == "svg" else {"Software": None}
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, dpi=_PNG_DPI, metadata=metadata)
    return buffer.getvalue()


def _data_uri(svg: bytes) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(svg).decode('ascii')}"


# --- what the charts share ------------------------------------------------------------------------


def colour(name: Literal["ink", "muted", "paper", "band"]) -> str:
    """A colour of the current theme: of text, of labels, of the ground, of what lies behind."""
    import matplotlib as mpl

    settings: dict[str, Any] = mpl.rcParams  # type: ignore[assignment]
    return str(settings[_COLOURS.get(name, "grid.color")])


def diverging_colours() -> Colormap:
    """Orange, the ground, blue; NaN is grey."""
    from matplotlib.colors import LinearSegmentedColormap

    tones = LinearSegmentedColormap.from_list("diverging", ["C1", colour("paper"), "C0"])
    return tones.with_extremes(bad=colour("band"))


def percent_axis(axes: Axes, which: Literal["x", "y"]) -> None:
    """Label an axis of shares in per cent, at steps of 1, 2 or 5 of some decimal place."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_locator(MaxNLocator(nbins=7, steps=[1, 2, 5, 10]))
    axis.set_major_formatter(
        FuncFormatter(lambda share, _: f"{100 * share:.6g}".replace("-", "\N{MINUS SIGN}"))
    )


def rows_height(num_rows: float) -> float:
    """Height of a panel of so many named rows, in points."""
    return num_rows * _ROW_HEIGHT + _FRAME_HEIGHT


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
            name if len(name) <= _NAME_LENGTH else name[: _NAME_LENGTH - 2] + " …",
            xy=(0.0, place - 0.3),
            xycoords=("axes fraction", "data"),
            fontsize=9,
            va="bottom",
            annotation_clip=False,
            bbox={"facecolor": colour("paper"), "alpha": 0.9, "linewidth": 0, "pad": 1.0},
        )


def reference_line(axes: Axes, at: float, which: Literal["x", "y"]) -> None:
    """A thin dashed line at a value that others are read against."""
    draw = axes.axvline if which == "x" else axes.axhline
    draw(at, color=colour("muted"), linewidth=0.9, linestyle=(0, (3, 2)), zorder=1.5)


def padded(values: Sequence[float], *, least: float = 0.0) -> tuple[float, float]:
    """Limits around values with some room, at least ``least`` wide on either side."""
    low, high = min(values), max(values)
    room = max(0.08 * (high - low), least)
    return low - room, high + room


def missing(reason: object) -> Missing:
    """A `Missing` with its reason as a sentence."""
    text = printable(reason).rstrip(".")
    return Missing(reason=f"{text[:1].upper()}{text[1:]}.")
