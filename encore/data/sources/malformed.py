"""Why a record cannot become a preference pair: the reasons, as codes that are counted."""

from __future__ import annotations

from typing import Literal

Reason = Literal[
    "not-utf8",  # bytes that are no UTF-8
    "not-json",  # a line that is no JSON
    "too-long",  # one record of more than `encore.data.sources.local.MAX_RECORD_BYTES`
    "not-an-object",  # JSON, but a number, a list, …
    "missing-column",
    "wrong-type",
    "unknown-role",  # a message that is neither system nor user nor assistant
    "not-a-transcript",  # text without "Human:" / "Assistant:" turns, or text before the first one
    "no-final-response",  # the conversation does not end with the assistant
    "prefix-mismatch",  # chosen and rejected answer different prompts
    "no-user-turn",  # the turn before the response is not the user's
    "empty-prompt",
    "empty-response",
    "identical-responses",
    "no-preference",  # a preference label other than 0 and 1
    "unstorable-text",  # a null character or half of a surrogate pair
]


class MalformedRecordError(ValueError):
    """One record is no preference pair. It is set aside with ``reason`` and ``detail``."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason: Reason = reason
        self.detail = detail
