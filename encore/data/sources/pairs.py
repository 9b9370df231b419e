"""Parse general preference pairs: prompt, chosen and rejected, each as text or as messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from encore.data.records import RESPONSES, Message, PreferencePair
from encore.data.sources.context_columns import with_input, with_prompt_column
from encore.data.sources.hh import is_transcript, turns_of
from encore.data.sources.messages import OnReading, ignore_reading, messages_in_text, messages_of
from encore.data.sources.prompts import prompt_turns, refuse_turns, starts_with_turn, without_prompt
from encore.data.sources.raw_records import (
    MalformedRecordError,
    build_pair,
    field,
    split_final_response,
    text_field,
)


def parse(
    record: Mapping[str, Any], *, source: str, on_reading: OnReading = ignore_reading
) -> PreferencePair:
    """Return the pair of a ``{"prompt", "chosen", "rejected"}`` record.

    A prompt as text is a transcript of Human and Assistant, or one user turn, to which a column
    ``input`` is added. A response as messages is the assistant's turn alone, or the whole
    conversation, which must begin with the prompt. Texts are not changed, but for a prompt that
    both responses repeat: it is cut off.

    Raises:
        MalformedRecordError: For example: a column is missing, or a response repeats another
            prompt.
    """
    record = with_prompt_column(record, on_reading=on_reading)
    value = field(record, "prompt")
    prompt = prompt_turns(value, on_reading=on_reading)
    is_plain = [turn.content for turn in prompt] == [value]
    if is_plain:
        prompt = with_input(prompt, record, on_reading=on_reading)
    responses = [
        _response(record, name, prompt=prompt, on_reading=on_reading) for name in RESPONSES
    ]
    if is_transcript(value) and not is_plain:  # its layout has white space around a turn
        responses = [response.strip() for response in responses]
    chosen, rejected = responses
    if len(prompt) == 1 and (endings := without_prompt(prompt[0].content, (chosen, rejected))):
        on_reading("prompt-in-response")
        chosen, rejected = endings
    return build_pair(prompt=prompt, chosen=chosen, rejected=rejected, source=source)


def _response(
    record: Mapping[str, Any], name: str, *, prompt: Sequence[Message], on_reading: OnReading
) -> str:
    """Return the text of a response column."""
    value = field(record, name)
    if isinstance(value, list | tuple | Mapping) or messages_in_text(value) is not None:
        turns = messages_of(value, name=name, on_reading=on_reading)
    else:
        text = text_field(record, name)
        turns = turns_of(text, name=name) if is_transcript(text) else ()
        if len(turns) < 2:
            if starts_with_turn(text):
                refuse_turns(text, name=name)
            return text
        on_reading("prompt-in-response")
    repeated, response = split_final_response(turns, name=name)
    if repeated not in ((), tuple(prompt)):
        raise MalformedRecordError(
            "prefix-mismatch", f"{name} repeats a prompt that differs from the prompt column"
        )
    return response
