"""Check raw records and build preference pairs from them, for all source formats."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Literal

from encore.data.records import Message, PreferencePair, pair_id_of

Reason = Literal[
    "not-utf8",  # bytes that are not UTF-8
    "not-json",  # a line that is not JSON
    "not-an-object",  # JSON, but a number, a list, …
    "missing-column",
    "wrong-type",
    "unknown-role",  # a message that is neither system nor user nor assistant
    "tool-calls",  # a turn calls a tool, or is what a tool returned, or tools are offered
    "reasoning",  # a turn has reasoning beside its text
    "speaker-name",  # a turn has a name beside its role
    "not-text",  # a turn has an image or another part that is no text
    "turns-in-text",  # a text holds the marks of several turns
    "unread-text",  # a column or key has a text of the conversation that is read nowhere
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

#: Half of a surrogate pair has no UTF-8 form; C libraries end a text at a null character.
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_EXCERPT_CHARACTERS = 200


class MalformedRecordError(ValueError):
    """Error: a record is not a preference pair. It is set aside with ``reason`` and ``detail``."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason: Reason = reason
        self.detail = detail


@dataclass(frozen=True, slots=True, kw_only=True)
class RawRecord:
    """A record as it was read, or the problem of reading it.

    Attributes:
        number: Number of the line, blank lines included, or of the record; from 1.
        value: The decoded value; None if there is a problem.
        problem: Error to set the record aside with; None if it was decoded.
        raw: Bytes of the line; empty for other files.
    """

    number: int
    value: Any = None
    problem: MalformedRecordError | None = None
    raw: bytes = b""

    def excerpt(self) -> str:
        """Return the beginning of the record, by which a person recognises it."""
        if self.raw:
            text = self.raw[: 4 * _EXCERPT_CHARACTERS].decode("utf-8", "backslashreplace")
        else:
            text = json.dumps(self.value, ensure_ascii=False, default=str)
        return text.strip()[:_EXCERPT_CHARACTERS]


def field(record: Mapping[str, Any], name: str) -> Any:
    """Return the value of a column that must exist."""
    if name not in record:
        columns = ", ".join(map(str, record)) or "no columns"
        detail = f"column {name!r} is missing (found: {columns})"
        raise MalformedRecordError("missing-column", detail)
    return record[name]


def text_field(record: Mapping[str, Any], name: str) -> str:
    """Return the text in a column."""
    value = field(record, name)
    if not isinstance(value, str):
        kind = "null" if value is None else type(value).__name__
        raise MalformedRecordError("wrong-type", f"{name} is {kind}, expected text")
    return value


def split_final_response(
    messages: Sequence[Message], *, name: str
) -> tuple[tuple[Message, ...], str]:
    """Split a conversation into its prompt and the text of the assistant's final turn."""
    if not messages or messages[-1].role != "assistant":
        raise MalformedRecordError("no-final-response", f"{name} ends with {_last_turn(messages)}")
    return tuple(messages[:-1]), messages[-1].content


def pair_of_conversations(
    *, chosen: Sequence[Message], rejected: Sequence[Message], source: str
) -> PreferencePair:
    """Return the pair of two conversations that differ only in the assistant's final turn."""
    prompt, chosen_text = split_final_response(chosen, name="chosen")
    rejected_prompt, rejected_text = split_final_response(rejected, name="rejected")
    if prompt != rejected_prompt:
        turns = enumerate(zip_longest(prompt, rejected_prompt), start=1)
        turn = next(number for number, (first, second) in turns if first != second)
        raise MalformedRecordError(
            "prefix-mismatch", f"chosen and rejected differ from turn {turn} on"
        )
    return build_pair(prompt=prompt, chosen=chosen_text, rejected=rejected_text, source=source)


def build_pair(
    *, prompt: Sequence[Message], chosen: str, rejected: str, source: str
) -> PreferencePair:
    """Return a valid pair: storable texts, a user's turn to answer, two different responses.

    Raises:
        MalformedRecordError: The pair would not be valid; with the reason.
    """
    responses = {"chosen": chosen, "rejected": rejected}
    turns = {f"prompt[{index}]": message.content for index, message in enumerate(prompt)}
    for name, text in (turns | responses).items():
        if match := _UNSTORABLE.search(text):
            raise MalformedRecordError(
                "unstorable-text", f"{name} has U+{ord(match[0]):04X} at character {match.start()}"
            )
    if not prompt or prompt[-1].role != "user":
        raise MalformedRecordError("no-user-turn", f"the response follows {_last_turn(prompt)}")
    if not prompt[-1].content.strip():
        raise MalformedRecordError("empty-prompt", "the user's turn before the response is empty")
    for name, response in responses.items():
        if not response.strip():
            raise MalformedRecordError("empty-response", f"{name} is empty or only white space")
    if chosen == rejected:
        raise MalformedRecordError("identical-responses", "chosen and rejected are the same text")
    return PreferencePair(
        pair_id=pair_id_of(prompt, chosen=chosen, rejected=rejected),
        source=source,
        prompt=tuple(prompt),
        chosen=chosen,
        rejected=rejected,
    )


def _last_turn(messages: Sequence[Message]) -> str:
    """Describe the last turn for a message."""
    return f"the turn of the {messages[-1].role}" if messages else "nothing"
