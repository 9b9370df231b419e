"""The report's colours: few, told apart without red and green, in a light and a dark tone."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tone:
    """One colour on light and on dark ground, as ``#rrggbb``."""

    light: str
    dark: str


#: Figures are drawn in the light tones. In the page each tone becomes a CSS class, so that figures
#: follow the theme. So no two light tones may be equal, and none black, which SVG leaves out.
PALETTE = {
    "paper": Tone("#ffffff", "#161b21"),
    "ink": Tone("#1d232b", "#e7ebf0"),
    "muted": Tone("#59636f", "#9ca7b4"),
    "line": Tone("#dce2e9", "#2f3842"),
    "band": Tone("#e3e8ee", "#343f4b"),
    "blue": Tone("#0068ad", "#5ab2f2"),
    "orange": Tone("#c4520c", "#f39a55"),
    "green": Tone("#00775a", "#43c79c"),
    "purple": Tone("#8a4a82", "#d693cd"),
}

PAPER, INK, MUTED, LINE, BAND, BLUE, ORANGE, GREEN, PURPLE = (
    tone.light for tone in PALETTE.values()
)
