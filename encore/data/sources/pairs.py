"""Anybody's preference pairs: prompt, chosen and rejected, each as text or as messages."""

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
    """The pair of a ``{"prompt", "chosen", "rejected"}`` record; other columns are ignored.

    A prompt given as text is one user turn. A response given as messages is the assistant's turn
    alone, or the whole conversation that begins with exactly the prompt. Texts are kept as they
    are.

    Raises:
        MalformedRecordError: a column is missing; a response repeats another prompt; …
    """
    asked = field(record, "prompt")
    if isinstance(asked, list):
        prompt = messages_of(asked, name="prompt")
    else:
        prompt = (Message(role="user", content=text_field(record, "prompt")),)
    return build_pair(
        prompt=prompt,
        chosen=_response(record, "chosen", prompt=prompt),
        rejected=_response(record, "rejected", prompt=prompt),
        source=source,
    )


def _response(record: Mapping[str, Any], name: str, *, prompt: Sequence[Message]) -> str:
    value = field(record, name)
    if not isinstance(value, list):
        return text_field(record, name)
    repeated, response = split_final_response(messages_of(value, name=name), name=name)
    if repeated not in ((), tuple(prompt)):
        raise MalformedRecordError(
            "prefix-mismatch", f"{name} repeats a prompt that differs from the prompt column"
        )
    return response
