"""Texts in CSV cells that a spreadsheet must not run as formulas."""

from __future__ import annotations

#: What a cell begins with where a spreadsheet takes it for a formula.
_FORMULA_SIGNS = ("=", "+", "-", "@", "\t", "\r")


def is_formula(text: str) -> bool:
    """Whether a spreadsheet would run a cell with this text."""
    return text.startswith(_FORMULA_SIGNS)


def to_cell(text: str) -> str:
    """The text as a cell that a spreadsheet shows: an apostrophe stands before a formula."""
    return f"'{text}" if is_formula(text) else text
