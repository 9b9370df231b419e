"""Texts in CSV cells that a spreadsheet must not run as formulas."""

from __future__ import annotations

#: First characters of cells that a spreadsheet runs as formulas.
_FORMULA_SIGNS = ("=", "+", "-", "@", "\t", "\r")


def is_formula(text: str) -> bool:
    """Return True if a spreadsheet would run a cell with this text."""
    return text.startswith(_FORMULA_SIGNS)


def to_cell(text: str) -> str:
    """Return the text as a cell that is only shown: a formula gets an apostrophe before it."""
    return f"'{text}" if is_formula(text) else text
