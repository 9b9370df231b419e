"""Parse general preference pairs: prompt, chosen and rejected, each as text or as messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from encore.data.records import Message, PreferencePair
from encore.data.sources.raw_records import (
    MalformedRecordError,
    build_pair,
    field,
    messages_of,
    split_final_response,
    text_field,
)


def parse(record: Mapping[str, Any], *, source: str) -> PreferencePair:
    """Return the pair of a ``{"prompt", "chosen", "rejected"}`` record; ignore other columns.

    A prompt as text is one user turn. A response as messages is the assistant's turn alone, or
    the whole conversation, which must begin with the prompt. Texts are not changed.

    Raises:
        MalformedRecordError: For example: a column is missing, or a response repeats another
            prompt.
    """
    value = field(record, "prompt")
    if isinstance(value, list):
        prompt = messages_of(value, name="prompt")
    else:
        prompt = (Message(role="user", content=text_field(record, "prompt")),)
    return build_pair(
        prompt=prompt,
        chosen=_response(record, "chosen", prompt=prompt),
        rejected=_response(record, "rejected", prompt=prompt),
        source=source,
    )


def _response(record: Mapping[str, Any], name: str, *, prompt: Sequence[Message]) -> str:
    """Return the text of a response column."""
    value = field(record, name)
    if not isinstance(value, list):
        return text_field(record, name)
    repeated, response = split_final_response(messages_of(value, name=name), name=name)
    if repeated not in ((), tuple(prompt)):
        raise MalformedRecordError(
            "prefix-mismatch", f"{name} repeats a prompt that differs from the prompt column"
        )
    return response
