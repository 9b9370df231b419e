"""Raw Anthropic/hh-rlhf: each response is a whole transcript of Human and Assistant turns."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from encore.data.records import Message, PreferencePair, Role
from encore.data.sources.raw_records import MalformedRecordError, pair_of_conversations, text_field

#: A speaker starts a turn only after a blank line or at the very start. The data set contains
#: "Human:" inside turns, even as their first word ("Assistant: Human: …"); that is text.
_TURN = re.compile(r"(?:\A\s*|\n\n)(Human|Assistant):")
_ROLE: Mapping[str, Role] = {"Human": "user", "Assistant": "assistant"}


def parse(record: Mapping[str, Any], *, source: str) -> PreferencePair:
    """The pair of a ``{"chosen", "rejected"}`` record; the prompt is all up to the last turn.

    White space around a turn is layout of the transcript and is stripped; nothing else is
    changed. Two turns of one speaker in a row (the data set has some) stay two turns.

    Raises:
        MalformedRecordError: no transcript; it ends with the human; the prefixes differ; …
    """
    return pair_of_conversations(
        chosen=turns_of(text_field(record, "chosen"), name="chosen"),
        rejected=turns_of(text_field(record, "rejected"), name="rejected"),
        source=source,
    )


def turns_of(transcript: str, *, name: str) -> tuple[Message, ...]:
    """The turns of a transcript in order."""
    before, *rest = _TURN.split(transcript)
    if before.strip() or not rest:
        raise MalformedRecordError(
            "not-a-transcript",
            f"{name} starts with {transcript[:40]!r}, expected 'Human:' or 'Assistant:'",
        )
    speakers, texts = rest[::2], rest[1::2]
    return tuple(
        Message(role=_ROLE[speaker], content=text.strip())
        for speaker, text in zip(speakers, texts, strict=True)
    )


def is_transcript(value: object) -> bool:
    """Whether a value looks like a transcript (used to tell formats apart)."""
    return isinstance(value, str) and _TURN.match(value) is not None
