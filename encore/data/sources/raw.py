"""One record as it was read, before anybody looked into it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from encore.data.sources.malformed import MalformedRecordError

_EXCERPT_CHARACTERS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class RawRecord:
    """A value, or the reason why there is none.

    ``number`` counts from 1: lines of a JSON-lines file (blank ones too), else records.
    """

    number: int
    value: Any = None
    problem: MalformedRecordError | None = None
    raw: bytes = b""

    def excerpt(self) -> str:
        """The beginning of the record, for a person to recognise it by."""
        if self.raw:
            text = self.raw[: 4 * _EXCERPT_CHARACTERS].decode("utf-8", "backslashreplace")
        else:
            text = json.dumps(self.value, ensure_ascii=False, default=str)
        return text.strip()[:_EXCERPT_CHARACTERS]
