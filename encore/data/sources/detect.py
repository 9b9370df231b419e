"""Tell a format from the columns and types of one record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from encore.data.sources import FORMATS, FormatName
from encore.data.sources.hh import is_transcript
from encore.errors import InputError


def detect_format(record: Mapping[str, Any], *, name: str) -> FormatName:
    """The format of a record.

    Args:
        record: Its columns and values.
        name: What the record comes from, for the error.

    Raises:
        InputError: the columns found, and which one is missing for the nearest format.
    """
    if _has(record, "pku"):
        return "pku"
    if _has(record, "pairs"):
        return "pairs"
    if _has(record, "rlhflow") and isinstance(record["chosen"], list):
        return "rlhflow"
    if _has(record, "hh") and is_transcript(record["chosen"]):
        return "hh"
    raise InputError(
        f"{name}: cannot tell the format from the columns {_listed(record)}: {_nearest(record)}; "
        f"rename the columns, or name the format as FORMAT:SOURCE ({', '.join(FORMATS)})"
    )


def _has(record: Mapping[str, Any], name: FormatName) -> bool:
    return all(column in record for column in FORMATS[name].columns)


def _nearest(record: Mapping[str, Any]) -> str:
    if _has(record, "hh"):
        return (
            "chosen is neither messages nor a 'Human: … Assistant: …' transcript, "
            "and column 'prompt' is missing for format pairs"
        )
    missing: dict[FormatName, list[str]] = {
        name: [column for column in FORMATS[name].columns if column not in record]
        for name in ("pairs", "pku")
    }
    nearest = min(missing, key=lambda name: len(missing[name]))
    columns = ", ".join(repr(column) for column in missing[nearest])
    return f"for format {nearest}, missing column {columns}"


def _listed(record: Mapping[str, Any]) -> str:
    return ", ".join(map(str, record)) or "(none)"
