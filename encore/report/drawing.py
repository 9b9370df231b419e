"""What a figure of the report is, and drawing it: light and dark for the page, SVG and PNG files.

A chart function turns data into a `Chart`: panels that draw on Matplotlib's axes, words in their
place, and the figures behind as a table. Colours are those of the style sheets in ``styles/``.
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
    from contextlib import AbstractContextManager

    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

Theme = Literal["light", "dark"]
Floats = NDArray[np.float64]

_STYLES = Path(__file__).parent / "styles"
_POINTS_PER_INCH = 72.0
_PNG_DPI = 180
_NO_GLYPH = re.compile(r"Glyph (\d+) .*missing from font")

# Colours of both themes beside the first four: of text, of labels, of the ground, of what lies
# behind.
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
        missing_glyphs: Characters that the PNG shows as boxes, because its font lacks them.
    """

    chart: Chart
    title: str
    panels: Mapping[Theme, Sequence[str]]
    files: Mapping[str, bytes]
    missing_glyphs: Sequence[str]


def draw_chart(chart: Chart, *, title: str, mark: str | None = None) -> DrawnChart:
    """Draw a chart; the same bytes for the same chart and the same version of Matplotlib.

    Args:
        chart: What to draw.
        title: Of the files.
        mark: A line at the foot of the files, for what must not be taken for evidence.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        panels: dict[Theme, Sequence[str]] = {}
        for theme in ("dark", "light"):
            with _style(theme):
                drawings = [_save(_panel_figure(panel), "svg") for panel in chart.panels]
            encoded = [base64.b64encode(svg).decode("ascii") for svg in drawings]
            panels[theme] = [f"data:image/svg+xml;base64,{text}" for text in encoded]
        with _style("light"):
            sheet = _sheet(chart, title=title, mark=mark)
            files = {"svg": _save(sheet, "svg")}
            sheet.set_layout_engine("none")  # everything has its place; finding it again takes time
            files["png"] = _save(sheet, "png")
    glyphs = (_NO_GLYPH.match(str(warning.message)) for warning in caught)
    return DrawnChart(
        chart=chart,
        title=title,
        panels=panels,
        files=files,
        missing_glyphs=sorted({chr(int(found.group(1))) for found in glyphs if found}),
    )


def _style(theme: Theme) -> AbstractContextManager[None]:
    import matplotlib.style

    # From the defaults: a person's own matplotlibrc must not change the report.
    sheets = ["default", _STYLES / "common.mplstyle", _STYLES / f"{theme}.mplstyle"]
    return matplotlib.style.context(sheets)  # type: ignore[arg-type]  # names and paths may mix


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
        axes.set_title(f"{_wrapped(panel.title, panel.width / 6.2 - 4)}\n{panel.subtitle}".strip())
    figure.suptitle(_wrapped(title, sum(widths) / 8), fontsize=13, x=0.01, ha="left")
    if mark is not None:
        figure.supxlabel(textwrap.fill(mark, int(sum(widths) / 7)), color="C1", fontsize=9.5)
    return figure


def _wrapped(text: str, num_characters: float) -> str:
    return "\n".join(textwrap.wrap(text, int(num_characters), max_lines=2, placeholder=" …"))


def _figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    size = (width / _POINTS_PER_INCH, height / _POINTS_PER_INCH)
    return Figure(figsize=size, layout="constrained")


def _save(figure: Figure, kind: Literal["svg", "png"]) -> bytes:
    # Neither the time nor the version of what drew it: the bytes follow from the data.
    metadata = {"Date": None} if kind == "svg" else {"Software": None}
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, dpi=_PNG_DPI, metadata=metadata)
    return buffer.getvalue()


# --- what the charts share ------------------------------------------------------------------------


def floats(values: object) -> Floats:
    """Figures as an array; None is NaN, which is not drawn."""
    return np.asarray(values, dtype=np.float64)


def draw_cells(axes: Axes, value_RC: Floats, words: Callable[[int, int], str]) -> AxesImage:
    """Cells from orange at −1 over the ground to blue at 1, NaN grey, with words in them."""
    from matplotlib.colors import LinearSegmentedColormap

    tones = LinearSegmentedColormap.from_list("diverging", ["C1", PAPER, "C0"])
    colours = tones.with_extremes(bad=BAND)
    image = axes.imshow(value_RC, cmap=colours, vmin=-1, vmax=1, aspect="auto")
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
