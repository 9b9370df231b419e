"""Raw PKU-Alignment/PKU-SafeRLHF: two responses to one question, two preference labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from encore.data.records import Message, PreferencePair
from encore.data.sources.raw_records import MalformedRecordError, build_pair, field, text_field

Prefer = Literal["safer", "better"]

#: The rules under audit are safety rules, so the harmlessness label is the one they should
#: predict; ``better`` is the helpfulness label, which often disagrees with it.
DEFAULT_PREFER: Prefer = "safer"


def parse(
    record: Mapping[str, Any], *, source: str, prefer: Prefer = DEFAULT_PREFER
) -> PreferencePair:
    """The pair of a ``{"prompt", "response_0", "response_1", "<prefer>_response_id"}`` record.

    Args:
        record: One record of the data set.
        source: The pair's label.
        prefer: Which label says what is chosen: ``safer_response_id`` or ``better_response_id``.

    Raises:
        MalformedRecordError: a column is missing; the label is neither 0 nor 1; …
    """
    column = f"{prefer}_response_id"
    preferred = field(record, column)
    if isinstance(preferred, bool) or preferred not in (0, 1):
        raise MalformedRecordError("no-preference", f"{column} is {preferred!r:.40}, not 0 or 1")
    responses = (text_field(record, "response_0"), text_field(record, "response_1"))
    return build_pair(
        prompt=(Message(role="user", content=text_field(record, "prompt")),),
        chosen=responses[int(preferred)],
        rejected=responses[1 - int(preferred)],
        source=source,
    )
