"""Draw charts with Matplotlib's object interface: SVG for the page, SVG and PNG for files."""

from __future__ import annotations

import contextlib
import io
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from encore.report.chart import Chart, Panel
from encore.report.palette import INK, LINE, MUTED, ORANGE, PAPER
from encore.report.svg import file_svg, inline_svg
from encore.report.words import wrapped

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_POINTS_PER_INCH = 72.0
_PNG_DPI = 180
#: Of a title in a file: points that one character takes at its size.
_CHARACTER_POINTS = 6.2
_NO_GLYPH = re.compile(r"Glyph (\d+) .*missing from font")

_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text: it can be read aloud, selected and edited
    "svg.hashsalt": "encore",  # ids are the same in every run
    "text.parse_math": False,  # a rule's name may hold two dollar signs
    "font.family": ["DejaVu Sans"],  # Matplotlib brings it along: the same on every machine
    "font.size": 10.0,
    "text.color": INK,
    "axes.labelcolor": MUTED,
    "axes.labelsize": 10.0,
    "axes.titlesize": 10.0,
    "axes.titlecolor": MUTED,
    "axes.titlelocation": "left",
    "axes.edgecolor": MUTED,
    "axes.facecolor": "none",
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": LINE,
    "grid.linewidth": 0.8,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelsize": 9.0,
    "ytick.labelsize": 9.0,
    "xtick.major.size": 0.0,
    "ytick.major.size": 0.0,
    "xtick.minor.size": 0.0,
    "ytick.minor.size": 0.0,
    "legend.facecolor": PAPER,
    "legend.edgecolor": "none",
    "legend.framealpha": 0.9,
    "legend.fontsize": 9.0,
    "figure.facecolor": PAPER,
    "savefig.facecolor": PAPER,
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DrawnChart:
    """A chart with its drawings.

    Attributes:
        chart: What was drawn.
        panels: One SVG element for each panel, for the page.
        svg: All panels as a file.
        png: The same as pixels.
        missing_glyphs: Characters that the PNG shows as boxes, because its font lacks them.
    """

    chart: Chart
    panels: tuple[str, ...]
    svg: bytes
    png: bytes
    missing_glyphs: tuple[str, ...] = ()


def draw_chart(chart: Chart, *, mark: str | None = None) -> DrawnChart:
    """Draw a chart; the same bytes for the same chart and the same version of Matplotlib.

    Args:
        chart: What to draw.
        mark: A line at the foot of the files, for what must not be taken for evidence.
    """
    import matplotlib
    import matplotlib.style

    missing: dict[str, None] = {}
    # A person's own matplotlibrc must not change the report.
    with (
        matplotlib.style.context("default"),
        matplotlib.rc_context(_STYLE),
        _noting_glyphs(missing),
    ):
        panels = tuple(
            inline_svg(_saved(_panel_figure(panel), "svg"), label=panel.alt, prefix=prefix)
            for panel, prefix in zip(chart.panels, _prefixes(chart), strict=True)
        )
        label = " ".join([f"{chart.title}.", *(panel.alt for panel in chart.panels)])
        sheet = _sheet(chart, mark=mark)
        svg = file_svg(_saved(sheet, "svg"), label=label)
        sheet.set_layout_engine("none")  # everything has its place; finding it again takes time
        png = _saved(sheet, "png")
    return DrawnChart(
        chart=chart, panels=panels, svg=svg, png=png, missing_glyphs=tuple(sorted(missing))
    )


def _prefixes(chart: Chart) -> Iterator[str]:
    return (f"{chart.name}-{place}-" for place in range(len(chart.panels)))


def _panel_figure(panel: Panel) -> Figure:
    figure = _figure(width=panel.width, height=panel.height)
    axes = figure.add_subplot()
    panel.draw(axes)
    axes.set_title(panel.subtitle)
    return figure


def _sheet(chart: Chart, *, mark: str | None) -> Figure:
    """All panels of a chart side by side and below each other, each under its title."""
    rows = _rows(chart.panels, columns=chart.columns)
    widths = [max(panel.width for panel in column) for column in _columns(rows)]
    heights = [max(panel.height for panel in row) + 26 for row in rows]
    figure = _figure(width=sum(widths), height=sum(heights) + 30)
    grid = figure.add_gridspec(
        len(rows), len(widths), width_ratios=widths, height_ratios=heights, wspace=0.06, hspace=0.06
    )
    for place, panel in enumerate(chart.panels):
        axes = figure.add_subplot(grid[divmod(place, chart.columns)])
        panel.draw(axes)
        title = wrapped(panel.title, width=int(panel.width / _CHARACTER_POINTS) - 4)
        axes.set_title("\n".join(text for text in (title, panel.subtitle) if text))
    figure.suptitle(chart.title, fontsize=13, x=0.01, ha="left")
    if mark is not None:
        figure.supxlabel(mark, color=ORANGE, fontsize=10, fontweight="bold")
    return figure


def _rows(panels: Sequence[Panel], *, columns: int) -> list[Sequence[Panel]]:
    return [panels[start : start + columns] for start in range(0, len(panels), columns)]


def _columns(rows: Sequence[Sequence[Panel]]) -> list[list[Panel]]:
    return [[row[place] for row in rows if place < len(row)] for place in range(len(rows[0]))]


def _figure(*, width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    size = (width / _POINTS_PER_INCH, height / _POINTS_PER_INCH)
    return Figure(figsize=size, layout="constrained")


def _saved(figure: Figure, kind: str) -> bytes:
    # Neither the time nor the version of what drew it: the bytes follow from the data.
    metadata = {"Date": None} if kind == "svg" else {"Software": None}
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, dpi=_PNG_DPI, metadata=metadata)
    return buffer.getvalue()


@contextlib.contextmanager
def _noting_glyphs(missing: dict[str, None]) -> Iterator[None]:
    """Collect the characters that the font lacks; every other warning is passed on."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for warning in caught:
        if match := _NO_GLYPH.match(str(warning.message)):
            missing[chr(int(match.group(1)))] = None
        else:
            warnings.warn_explicit(
                warning.message, warning.category, warning.filename, warning.lineno
            )
