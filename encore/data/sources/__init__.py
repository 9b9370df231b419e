"""Formats of preference data: one file per format, and the table that names them.

A new format is one file with ``parse(record, *, source) -> PreferencePair``, its name in
`FormatName` and its line in `FORMATS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, Literal

from encore.data.records import PreferencePair
from encore.data.sources.hh import is_transcript

FormatName = Literal["hh", "pku", "rlhflow", "pairs"]
Parser = Callable[[Mapping[str, Any]], PreferencePair]


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """Description of a format.

    Attributes:
        columns: Columns that identify the format; a record must have them all.
        fits: Return True if a record that has the columns has values of this format.
        label: Default of the ``source`` column; None takes the file's or repository's name.
        has_prefer: True if option ``prefer`` selects which response is chosen.
    """

    columns: tuple[str, ...]
    fits: Callable[[Mapping[str, Any]], bool] = lambda _record: True
    label: str | None = None
    has_prefer: bool = False


FORMATS: Mapping[FormatName, Format] = {
    "hh": Format(
        columns=("chosen", "rejected"),
        fits=lambda record: is_transcript(record["chosen"]),
        label="hh",
    ),
    "pku": Format(columns=("prompt", "response_0", "response_1"), label="pku", has_prefer=True),
    "rlhflow": Format(
        columns=("chosen", "rejected"), fits=lambda record: isinstance(record["chosen"], list)
    ),
    "pairs": Format(columns=("prompt", "chosen", "rejected")),
}


def detect_format(record: Mapping[str, Any]) -> FormatName | None:
    """Return the format of a record by its columns and values; None if no format fits.

    Of several formats it is the one with the most columns, then the first of the table.
    """
    fitting = [
        name
        for name, form in FORMATS.items()
        if record.keys() >= set(form.columns) and form.fits(record)
    ]
    return max(fitting, key=lambda name: len(FORMATS[name].columns), default=None)


def load_parser(name: FormatName, *, source: str, prefer: str | None = None) -> Parser:
    """Return the function that turns a record of a format into a pair labelled ``source``.

    It raises `encore.data.sources.raw_records.MalformedRecordError` for a record that is not a
    pair.
    """
    options = {"prefer": prefer} if FORMATS[name].has_prefer and prefer else {}
    return partial(import_module(f"{__name__}.{name}").parse, source=source, **options)
