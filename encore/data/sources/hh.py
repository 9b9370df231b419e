"""Parse raw Anthropic/hh-rlhf: each response is a transcript of Human and Assistant turns."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from encore.data.records import Message, PreferencePair, Role
from encore.data.sources.raw_records import MalformedRecordError, pair_of_conversations, text_field

#: A turn starts at the beginning of the transcript or after a blank line. "Human:" also occurs
#: inside turns, even as their first word ("Assistant: Human: …"); there it is text.
_TURN = re.compile(r"(?:\A\s*|\n\n)(Human|Assistant):")
_ROLE: Mapping[str, Role] = {"Human": "user", "Assistant": "assistant"}


def parse(record: Mapping[str, Any], *, source: str, **_options: Any) -> PreferencePair:
    """Return the pair of a ``{"chosen", "rejected"}`` record; the last turn is the response.

    White space around a turn belongs to the transcript's layout and is stripped. Two consecutive
    turns of one speaker, which the data set has, stay two turns.

    Raises:
        MalformedRecordError: For example: a column is not a transcript, it ends with the human, or
            the prompts differ.
    """
    return pair_of_conversations(
        chosen=turns_of(text_field(record, "chosen"), name="chosen"),
        rejected=turns_of(text_field(record, "rejected"), name="rejected"),
        source=source,
    )


def turns_of(transcript: str, *, name: str) -> tuple[Message, ...]:
    """Split a transcript into its turns."""
    before, *speakers_and_texts = _TURN.split(transcript)
    if before.strip() or not speakers_and_texts:
        raise MalformedRecordError(
            "not-a-transcript",
            f"{name} starts with {transcript[:40]!r}, expected 'Human:' or 'Assistant:'",
        )
    speakers, texts = speakers_and_texts[::2], speakers_and_texts[1::2]
    return tuple(
        Message(role=_ROLE[speaker], content=text.strip())
        for speaker, text in zip(speakers, texts, strict=True)
    )


def is_transcript(value: object) -> bool:
    """Return True if a value looks like a transcript, for the detection of formats."""
    return isinstance(value, str) and _TURN.match(value) is not None
