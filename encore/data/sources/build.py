"""What every source shares: typed fields of a record, and a checked pair made from them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from encore.data.records import Message, PreferencePair, Role
from encore.data.sources.identity import pair_id_of
from encore.data.sources.malformed import MalformedRecordError

_ROLES: frozenset[Role] = frozenset(get_args(Role))
#: Half a surrogate pair has no UTF-8; C libraries end a text at a null character.
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


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
        raise MalformedRecordError("wrong-type", f"{name} is {_kind(value)}, expected text")
    return value


def messages_of(value: Any, *, name: str) -> tuple[Message, ...]:
    """A list of ``{"role", "content"}`` objects as messages; other keys are ignored."""
    if not isinstance(value, list):
        raise MalformedRecordError("wrong-type", f"{name} is {_kind(value)}, expected messages")
    return tuple(_message(item, name=f"{name}[{index}]") for index, item in enumerate(value))


def _message(value: Any, *, name: str) -> Message:
    if not isinstance(value, Mapping):
        raise MalformedRecordError("wrong-type", f"{name} is {_kind(value)}, expected a message")
    role, content = field(value, "role"), text_field(value, "content")
    if not isinstance(role, str) or role not in _ROLES:
        raise MalformedRecordError(
            "unknown-role", f"{name} has role {role!r:.40}, expected system, user or assistant"
        )
    return Message(role=role, content=content)


def split_final_response(
    messages: Sequence[Message], *, name: str
) -> tuple[tuple[Message, ...], str]:
    """A conversation as (everything before, the assistant's final turn)."""
    if not messages or messages[-1].role != "assistant":
        last = _turn(messages[-1]) if messages else "nothing at all"
        raise MalformedRecordError("no-final-response", f"{name} ends with {last}")
    return tuple(messages[:-1]), messages[-1].content


def pair_of_conversations(
    *, chosen: Sequence[Message], rejected: Sequence[Message], source: str
) -> PreferencePair:
    """The pair of two conversations that share everything but the assistant's final turn."""
    prompt, chosen_text = split_final_response(chosen, name="chosen")
    other_prompt, rejected_text = split_final_response(rejected, name="rejected")
    if prompt != other_prompt:
        raise MalformedRecordError("prefix-mismatch", _difference(prompt, other_prompt))
    return build_pair(prompt=prompt, chosen=chosen_text, rejected=rejected_text, source=source)


def _difference(prompt: Sequence[Message], other: Sequence[Message]) -> str:
    same = 0
    for left, right in zip(prompt, other, strict=False):
        if left != right:
            break
        same += 1
    return (
        f"chosen has {len(prompt)} turns before its response, rejected {len(other)}; "
        f"they differ from turn {same + 1} on"
    )


def build_pair(
    *, prompt: Sequence[Message], chosen: str, rejected: str, source: str
) -> PreferencePair:
    """A pair that exists is valid: storable text, a user's turn to answer, two unlike responses.

    Raises:
        MalformedRecordError: with the reason, when it would not be.
    """
    _check_text(prompt, chosen, rejected)
    if not prompt or prompt[-1].role != "user":
        before = _turn(prompt[-1]) if prompt else "nothing"
        raise MalformedRecordError("no-user-turn", f"the response follows {before}")
    if not prompt[-1].content.strip():
        raise MalformedRecordError("empty-prompt", "the user's turn before the response is empty")
    for name, response in (("chosen", chosen), ("rejected", rejected)):
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


def _check_text(prompt: Sequence[Message], chosen: str, rejected: str) -> None:
    named = [(f"prompt[{index}]", message.content) for index, message in enumerate(prompt)]
    for name, text in (*named, ("chosen", chosen), ("rejected", rejected)):
        if match := _UNSTORABLE.search(text):
            raise MalformedRecordError(
                "unstorable-text", f"{name} has U+{ord(match[0]):04X} at character {match.start()}"
            )


def _kind(value: Any) -> str:
    return "null" if value is None else _with_article(type(value).__name__)


def _turn(message: Message) -> str:
    return f"{_with_article(message.role)} turn"


def _with_article(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"
