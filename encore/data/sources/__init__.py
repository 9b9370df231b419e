"""Formats of preference data: one file per format, and the table that names them.

A new format is one file with ``parse(record, *, source, on_reading) -> PreferencePair``, its name
in `FormatName` and its line in `FORMATS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal

from encore.data.records import PreferencePair
from encore.data.sources.context_columns import CONTEXT_COLUMNS, with_context, with_prompt_column
from encore.data.sources.hh import is_transcript
from encore.data.sources.messages import OnReading, ignore_reading, messages_in_text

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
        columns=("chosen", "rejected"),
        fits=lambda record: (
            isinstance(record["chosen"], list) or messages_in_text(record["chosen"]) is not None
        ),
    ),
    "pairs": Format(columns=("prompt", "chosen", "rejected")),
}


def detect_format(record: Mapping[str, Any]) -> FormatName | None:
    """Return the format of a record by its columns and values; None if no format fits.

    Of several formats it is the one with the most columns, then the first of the table.
    """
    record = with_prompt_column(record)
    fitting = [
        name
        for name, form in FORMATS.items()
        if record.keys() >= set(form.columns) and form.fits(record)
    ]
    return max(fitting, key=lambda name: len(FORMATS[name].columns), default=None)


def load_parser(
    name: FormatName,
    *,
    source: str,
    prefer: str | None = None,
    on_reading: OnReading = ignore_reading,
) -> Parser:
    """Return the function that turns a record of a format into a pair labelled ``source``.

    It raises `encore.data.sources.raw_records.MalformedRecordError` for a record that is not a
    pair, and tells ``on_reading`` what it read from another form.
    """
    options = {"prefer": prefer} if FORMATS[name].has_prefer and prefer else {}
    parse = import_module(f"{__name__}.{name}").parse

    def parse_whole(record: Mapping[str, Any]) -> PreferencePair:
        pair = parse(record, source=source, on_reading=on_reading, **options)
        return with_context(pair, record, on_reading=on_reading)

    return parse_whole


def columns_to_read(name: FormatName, *, prefer: str | None = None) -> set[str]:
    """Return the columns that a parser of `load_parser` reads, where a record has them."""
    preference = {f"{prefer}_response_id"} if prefer else set()
    return {*FORMATS[name].columns, *CONTEXT_COLUMNS, *preference}
