"""What the figures have in common: tips, shares as per cent, rows with their names above them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from encore.report.palette import INK, MUTED, PAPER
from encore.report.svg import TIP
from encore.report.words import printable, short_count

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.patches import Patch

    AnyArtist = TypeVar("AnyArtist", bound=Artist)

#: Height of a row with its name above it, and of what surrounds the rows, in points.
ROW_HEIGHT = 31.0
FRAME_HEIGHT = 74.0
#: Of a name above its row: more does not fit the width of a phone.
_NAME_LENGTH = 54


def tip(artist: AnyArtist, text: str) -> AnyArtist:
    """The artist, which shows the text when it is pointed at."""
    artist.set_gid(TIP + printable(text))
    return artist


def percent_axis(axes: Axes, which: str) -> None:
    """Label an axis of shares in per cent, at steps of 1, 2 or 5 of some decimal place."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_locator(MaxNLocator(nbins=7, steps=[1, 2, 5, 10]))
    axis.set_major_formatter(
        FuncFormatter(lambda share, _: f"{100 * share:.6g}".replace("-", "\N{MINUS SIGN}"))
    )


def count_axis(axes: Axes, values: Sequence[float]) -> None:
    """A logarithmic horizontal axis of counts, labelled at 1, 3, 10, … of them."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axes.set_xscale("log")
    low, high = min(values), max(values)
    ticks = [
        digit * 10**power
        for power in range(12)
        for digit in (1, 3)
        if low <= digit * 10**power <= high
    ]
    axes.xaxis.set_major_locator(FixedLocator(ticks or [low]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short_count(value)))
    axes.xaxis.set_minor_locator(NullLocator())


def rows_height(num_rows: float) -> float:
    """Height of a panel of so many rows, in points."""
    return num_rows * ROW_HEIGHT + FRAME_HEIGHT


def name_rows(axes: Axes, names: Sequence[str], *, room_above: float = 0.0) -> None:
    """Rows from the top down at 0, 1, …, each with its name above it, where there is room.

    ``room_above`` the first row is in heights of a row, for a legend.
    """
    axes.set_ylim(len(names) - 0.5, -0.85 - room_above)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.grid(visible=False, axis="y")
    for place, name in enumerate(names):
        shown = name if len(name) <= _NAME_LENGTH else name[: _NAME_LENGTH - 2] + " …"
        axes.annotate(
            shown,
            xy=(0.0, place - 0.32),
            xycoords=("axes fraction", "data"),
            fontsize=9,
            color=INK,
            va="bottom",
            annotation_clip=False,
            bbox={"facecolor": PAPER, "alpha": 0.9, "linewidth": 0, "pad": 1.0},
        )


def zero_line(axes: Axes, at: float, *, which: str) -> None:
    """A thin line at a value that means "nothing"."""
    draw = axes.axvline if which == "x" else axes.axhline
    draw(at, color=MUTED, linewidth=0.9, linestyle=(0, (3, 2)), zorder=1.5)


def padded(
    values: Sequence[float], *, share: float = 0.08, least: float = 0.0
) -> tuple[float, float]:
    """Limits around values with some room, at least ``least`` wide on either side."""
    low, high = min(values), max(values)
    room = max(share * (high - low), least)
    return low - room, high + room


def swatch(colour: str, label: str, *, alpha: float = 1.0) -> Patch:
    """A patch for a legend."""
    from matplotlib.patches import Patch

    return Patch(facecolor=colour, alpha=alpha, linewidth=0, label=label)
