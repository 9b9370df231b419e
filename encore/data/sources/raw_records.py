"""From a record as it was read to a checked pair: what every source format shares."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from encore.core.errors import first_problem
from encore.data.records import Message, PreferencePair, pair_id_of

Reason = Literal[
    "not-utf8",  # bytes that are no UTF-8
    "not-json",  # a line that is no JSON
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

_MESSAGES = TypeAdapter(list[Message])
#: Of what pydantic finds wrong with messages; everything else is ``wrong-type``.
_REASON_OF_ERROR: Mapping[str, Reason] = {
    "missing": "missing-column",
    "literal_error": "unknown-role",
}
#: Half a surrogate pair has no UTF-8; C libraries end a text at a null character.
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_EXCERPT_CHARACTERS = 200


class MalformedRecordError(ValueError):
    """One record is no preference pair. It is set aside with ``reason`` and ``detail``."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason: Reason = reason
        self.detail = detail


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


def field(record: Mapping[str, Any], name: str) -> Any:
    """The value of a column that must exist."""
    if name not in record:
        found = ", ".join(map(str, record)) or "no columns"
        raise MalformedRecordError("missing-column", f"column {name!r} is missing (found: {found})")
    return record[name]


def text_field(record: Mapping[str, Any], name: str) -> str:
    """The text in a column."""
    value = field(record, name)
    if not isinstance(value, str):
        kind = "null" if value is None else type(value).__name__
        raise MalformedRecordError("wrong-type", f"{name} is {kind}, expected text")
    return value


def messages_of(value: Any, *, name: str) -> tuple[Message, ...]:
    """A list of ``{"role", "content"}`` objects as messages; other keys are ignored."""
    try:
        return tuple(_MESSAGES.validate_python(value))
    except ValidationError as error:
        problem = first_problem(error)
        reason = _REASON_OF_ERROR.get(problem.kind, "wrong-type")
        where = f"{name}.{problem.path}".rstrip(".")
        raise MalformedRecordError(reason, f"{where}: {problem.message}") from error


def split_final_response(
    messages: Sequence[Message], *, name: str
) -> tuple[tuple[Message, ...], str]:
    """A conversation as (everything before, the assistant's final turn)."""
    if not messages or messages[-1].role != "assistant":
        raise MalformedRecordError("no-final-response", f"{name} ends with {_last_turn(messages)}")
    return tuple(messages[:-1]), messages[-1].content


def pair_of_conversations(
    *, chosen: Sequence[Message], rejected: Sequence[Message], source: str
) -> PreferencePair:
    """The pair of two conversations that share everything but the assistant's final turn."""
    prompt, chosen_text = split_final_response(chosen, name="chosen")
    other, rejected_text = split_final_response(rejected, name="rejected")
    if prompt != other:
        both = enumerate(zip_longest(prompt, other), start=1)
        turn = next(number for number, (left, right) in both if left != right)
        raise MalformedRecordError(
            "prefix-mismatch", f"chosen and rejected differ from turn {turn} on"
        )
    return build_pair(prompt=prompt, chosen=chosen_text, rejected=rejected_text, source=source)


def build_pair(
    *, prompt: Sequence[Message], chosen: str, rejected: str, source: str
) -> PreferencePair:
    """A pair that exists is valid: storable text, a user's turn to answer, two unlike responses.

    Raises:
        MalformedRecordError: with the reason, when it would not be.
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
    return f"the turn of the {messages[-1].role}" if messages else "nothing"
