"""Formats of preference data: one file per format, and the table that names them.

A new format is one file with ``parse(record, *, source) -> PreferencePair`` and one line here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, Literal

from encore.data.records import PreferencePair

FormatName = Literal["hh", "pku", "rlhflow", "pairs"]
Parser = Callable[[Mapping[str, Any]], PreferencePair]


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """Description of a format.

    Attributes:
        columns: Columns that identify the format; a record must have them all.
        label: Default of the ``source`` column; None takes the file's or repository's name.
        has_prefer: True if option ``prefer`` selects which response is chosen.
    """

    columns: tuple[str, ...]
    label: str | None = None
    has_prefer: bool = False


FORMATS: Mapping[FormatName, Format] = {
    "hh": Format(columns=("chosen", "rejected"), label="hh"),
    "pku": Format(columns=("prompt", "response_0", "response_1"), label="pku", has_prefer=True),
    "rlhflow": Format(columns=("chosen", "rejected")),
    "pairs": Format(columns=("prompt", "chosen", "rejected")),
}


def load_parser(name: FormatName, *, source: str, prefer: str | None = None) -> Parser:
    """Return the function that turns a record of a format into a pair labelled ``source``.

    It raises `encore.data.sources.raw_records.MalformedRecordError` for a record that is not a
    pair.
    """
    options = {"prefer": prefer} if FORMATS[name].has_prefer and prefer else {}
    return partial(import_module(f"{__name__}.{name}").parse, source=source, **options)
