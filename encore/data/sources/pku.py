"""Parse raw PKU-Alignment/PKU-SafeRLHF: two responses to a question, two preference labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from encore.data.records import PreferencePair
from encore.data.sources.messages import OnReading, ignore_reading
from encore.data.sources.prompts import prompt_turns
from encore.data.sources.raw_records import MalformedRecordError, build_pair, field, text_field

Prefer = Literal["safer", "better"]

#: ``safer`` is the label of harmlessness, which safety rules should predict; ``better`` is the
#: label of helpfulness, which often differs from it.
DEFAULT_PREFER: Prefer = "safer"


def parse(
    record: Mapping[str, Any],
    *,
    source: str,
    prefer: Prefer = DEFAULT_PREFER,
    on_reading: OnReading = ignore_reading,
) -> PreferencePair:
    """Return the pair of a record.

    Args:
        record: Columns ``prompt``, ``response_0``, ``response_1`` and the preference label.
        source: Label of the pair.
        prefer: Column that says which response is chosen: ``safer`` for ``safer_response_id``,
            ``better`` for ``better_response_id``.
        on_reading: Receives what was read from another form.

    Raises:
        MalformedRecordError: For example: a column is missing, or the label is neither 0 nor 1.
    """
    column = f"{prefer}_response_id"
    preferred = field(record, column)
    if isinstance(preferred, bool) or preferred not in (0, 1):
        raise MalformedRecordError("no-preference", f"{column} is {preferred!r:.40}, not 0 or 1")
    responses = (text_field(record, "response_0"), text_field(record, "response_1"))
    return build_pair(
        prompt=prompt_turns(text_field(record, "prompt"), on_reading=on_reading),
        chosen=responses[int(preferred)],
        rejected=responses[1 - int(preferred)],
        source=source,
    )
