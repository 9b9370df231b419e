"""Read turns of conversations from messages: their roles, their texts, and what is no text."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Literal

from encore.data.records import Message, Role
from encore.data.sources.raw_records import MalformedRecordError, Reason

#: Kinds of things that are read from another form than the one that a study stores.
Reading = Literal[
    "prompt-column",  # the prompt stood in a column of another name
    "role-names",  # a role had another name
    "content-parts",  # a turn's text was a list of parts
    "messages-as-text",  # a list of messages was JSON in a text
    "turns-in-prompt",  # a transcript became turns
    "prompt-in-response",  # both responses repeated the prompt, which was cut off
    "system-column",  # a column became the system turn
    "history-column",  # a column became the first turns
    "input-column",  # a column was added to the user's turn
]
#: Receives each `Reading` of a record.
OnReading = Callable[[Reading], object]


def ignore_reading(_reading: Reading) -> None:
    """Ignore how a record was read."""


_ROLES: Mapping[str, Role] = {
    **dict.fromkeys(("system", "developer"), "system"),
    **dict.fromkeys(("user", "human", "prompter"), "user"),
    **dict.fromkeys(("assistant", "gpt", "chatgpt", "model", "bot", "ai", "chatbot"), "assistant"),
}
#: Names that data sets give to calls of tools and to what the tools return.
_CALL_ROLES = {
    *("tool", "tools", "function", "tool_call", "tool_calls", "tool_response", "tool_result"),
    *("function_call", "function_response", "observation", "ipython", "environment"),
}
#: Keys of a message beside its role and text that change what a judge has to read.
_UNREAD_KEYS: Mapping[str, Reason] = {
    **dict.fromkeys(("tool_calls", "function_call", "tool_call_id", "tool_plan"), "tool-calls"),
    **dict.fromkeys(("reasoning_content", "reasoning", "thinking", "thought"), "reasoning"),
    **dict.fromkeys(("images", "image", "image_url", "audio", "video", "videos"), "not-text"),
    **dict.fromkeys(("files", "attachments"), "not-text"),
    "name": "speaker-name",
    "refusal": "unread-text",
}
_TEXT_PARTS = {"text", "input_text", "output_text"}


def messages_of(
    value: Any, *, name: str, on_reading: OnReading = ignore_reading
) -> tuple[Message, ...]:
    """Return a list of messages as turns.

    A message is ``{"role", "content"}`` or ``{"from", "value"}``. Other names of the roles are
    known, and parts that are texts are joined by line breaks. Keys without a value are ignored,
    and so are keys that are not part of a conversation.

    Args:
        value: The list, one message alone, or either as JSON in a text.
        name: Name of the column in messages.
        on_reading: Receives what was read from another form.

    Raises:
        MalformedRecordError: It is no list of messages, or a message has what is no text: a call
            of a tool, reasoning beside its text, an image.
    """
    messages = value
    if isinstance(value, str) and (decoded := messages_in_text(value)) is not None:
        on_reading("messages-as-text")
        messages = decoded
    if isinstance(messages, dict):
        messages = [messages]
    if not isinstance(messages, list | tuple):
        kind = "null" if value is None else type(value).__name__
        raise MalformedRecordError("wrong-type", f"{name} is {kind}, expected a list of messages")
    return tuple(
        _message(message, where=f"{name}.{index}", on_reading=on_reading)
        for index, message in enumerate(messages)
    )


def messages_in_text(text: object) -> Any:
    """Return the messages that are JSON in a text, as CSV files have them; None for others."""
    if not isinstance(text, str) or not text.lstrip().startswith(("[", "{")):
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    messages = [value] if isinstance(value, dict) else value
    is_message = [isinstance(row, dict) and {"role", "from"} & row.keys() for row in messages]
    return value if is_message and all(is_message) else None


def is_empty(value: Any) -> bool:
    """Return True for null, NaN, white space, and lists or objects of nothing else, as text too."""
    if isinstance(value, str):
        return value.strip() in ("", "[]", "{}")
    if isinstance(value, Mapping):
        return all(map(is_empty, value.values()))
    if isinstance(value, list | tuple):
        return all(map(is_empty, value))
    return value is None or value is False or value != value


def _message(value: Any, *, where: str, on_reading: OnReading) -> Message:
    if not isinstance(value, Mapping):
        kind = "null" if value is None else type(value).__name__
        raise MalformedRecordError("wrong-type", f"{where} is {kind}, expected a message")
    named_role = value.get("role")
    role = _role(
        value.get("from") if named_role is None else named_role, where=where, on_reading=on_reading
    )
    for key in filter(value.__contains__, _UNREAD_KEYS):
        is_role = key == "name" and _ROLES.get(str(value[key]).casefold()) == role
        if not is_role and not is_empty(value[key]):
            raise MalformedRecordError(
                _UNREAD_KEYS[key],
                f"{where} has {key}, and of a turn only its text is read; write it into the text, "
                "or leave the record out",
            )
    if role is None:
        keys = ", ".join(map(str, value)) or "nothing"
        raise MalformedRecordError("missing-column", f"{where} has no role (found: {keys})")
    name = "value" if value.get("content") is None and "value" in value else "content"
    if name not in value:
        keys = ", ".join(map(str, value))
        raise MalformedRecordError("missing-column", f"{where} has no content (found: {keys})")
    content = value[name]
    if isinstance(content, list | tuple):
        on_reading("content-parts")
        content = "\n".join(
            _part(part, where=f"{where}.{name}.{index}") for index, part in enumerate(content)
        )
    if not isinstance(content, str):
        kind = "null" if content is None else type(content).__name__
        raise MalformedRecordError("wrong-type", f"{where}.{name} is {kind}, expected text")
    return Message(role=role, content=content)


def _role(value: Any, *, where: str, on_reading: OnReading) -> Role | None:
    """Return the role of a name; None for null."""
    if value is None:
        return None
    text = str(value).strip().casefold()
    if text in _CALL_ROLES:
        raise MalformedRecordError(
            "tool-calls",
            f"{where} is the turn of a {text}, and calls of tools are not read; write call and "
            "result into the texts of the turns, or leave the record out",
        )
    if text not in _ROLES:
        raise MalformedRecordError(
            "unknown-role",
            f"{where} has the role {value!r:.40}; rename it to system, user or assistant",
        )
    if value != _ROLES[text]:
        on_reading("role-names")
    return _ROLES[text]


def _part(value: Any, *, where: str) -> str:
    """Return the text of a part of a turn."""
    if isinstance(value, str):
        return value
    kind = value.get("type", "text") if isinstance(value, Mapping) else type(value).__name__
    text = value.get("text") if isinstance(value, Mapping) else None
    if kind not in _TEXT_PARTS or not isinstance(text, str):
        raise MalformedRecordError(
            "tool-calls" if "tool" in str(kind) else "not-text",
            f"{where} is {kind!r:.40}, and only texts are read; describe it in the text, or leave "
            "the record out",
        )
    return text
