"""Read the columns of a record that belong to the conversation beside prompt and responses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from encore.data.records import Message, PreferencePair, Role
from encore.data.sources.hh import is_transcript
from encore.data.sources.messages import OnReading, ignore_reading, is_empty, messages_of
from encore.data.sources.raw_records import MalformedRecordError, Reason, build_pair

#: Columns that data sets without a column ``prompt`` have in its place.
PROMPT_COLUMNS = ("instruction", "question", "query", "conversations", "conversation", "messages")
_SYSTEM_COLUMNS = ("system", "system_prompt", "system_message")
_HISTORY_COLUMNS = ("history", "chat_history", "conversation_history")
_INPUT_COLUMN = "input"
#: Columns whose content a judge would have to read, and that have no place in a pair.
_UNREAD_COLUMNS: Mapping[str, Reason] = {
    **dict.fromkeys((*PROMPT_COLUMNS, *_HISTORY_COLUMNS, _INPUT_COLUMN), "unread-text"),
    **dict.fromkeys(("context", "dialogue", "dialog", "passage", "persona"), "unread-text"),
    **dict.fromkeys(("document", "documents"), "unread-text"),
    **dict.fromkeys(("tools", "functions", "tool_calls"), "tool-calls"),
    **dict.fromkeys(("images", "image", "audio", "audios", "video", "videos"), "not-text"),
}
#: Every column that is read, or whose content sets a record aside.
CONTEXT_COLUMNS = {*_SYSTEM_COLUMNS, *_UNREAD_COLUMNS}
_MAX_SHOWN = 40


def with_prompt_column(
    record: Mapping[str, Any], *, on_reading: OnReading = ignore_reading
) -> Mapping[str, Any]:
    """Return a record of two responses with its prompt in the column ``prompt``.

    A record whose responses are whole conversations is returned as it is.
    """
    chosen = record.get("chosen")
    has_conversations = isinstance(chosen, list | tuple) and len(chosen) > 1
    has_prompt = not is_empty(record.get("prompt"))
    if has_prompt or chosen is None or has_conversations or is_transcript(chosen):
        return record
    names = (name for name in PROMPT_COLUMNS if not is_empty(record.get(name)))
    if (name := next(names, None)) is None:
        return record
    on_reading("prompt-column")
    return {**{key: record[key] for key in record if key != name}, "prompt": record[name]}


def with_input(
    prompt: Sequence[Message], record: Mapping[str, Any], *, on_reading: OnReading
) -> tuple[Message, ...]:
    """Return a prompt of one user turn with the text of column ``input`` below it."""
    (turn,) = prompt
    text = record.get(_INPUT_COLUMN)
    if not isinstance(text, str) or is_empty(text) or text.strip() in turn.content:
        return (turn,)
    on_reading("input-column")
    return (Message(role=turn.role, content=f"{turn.content}\n{text}"),)


def with_context(
    pair: PreferencePair, record: Mapping[str, Any], *, on_reading: OnReading = ignore_reading
) -> PreferencePair:
    """Return a pair with the turns of the record's columns ``system`` and ``history`` before it.

    Other columns that are known to belong to conversations may only repeat what is read. Columns
    without a value are ignored, and so are columns of other names.

    Raises:
        MalformedRecordError: A column belongs to the conversation, and has no place in the pair.
    """
    if not CONTEXT_COLUMNS & record.keys():
        return pair
    prompt = pair.prompt
    for name in _HISTORY_COLUMNS:
        history = _history(record.get(name), name=name, on_reading=on_reading)
        num_system = int(prompt[0].role == "system")
        if history and prompt[num_system:][: len(history)] != history:
            on_reading("history-column")
            prompt = (*prompt[:num_system], *history, *prompt[num_system:])
    for name in _SYSTEM_COLUMNS:
        prompt = _with_system(prompt, record.get(name), name=name, on_reading=on_reading)
    texts = [*(turn.content for turn in prompt), pair.chosen, pair.rejected]
    for name in filter(record.__contains__, _UNREAD_COLUMNS):
        _refuse_unread(record[name], name=name, texts=texts)
    return build_pair(prompt=prompt, chosen=pair.chosen, rejected=pair.rejected, source=pair.source)


def _with_system(
    prompt: tuple[Message, ...], text: Any, *, name: str, on_reading: OnReading
) -> tuple[Message, ...]:
    """Return a prompt that begins with the system turn of a column."""
    if is_empty(text):
        return prompt
    if not isinstance(text, str):
        kind = type(text).__name__
        raise MalformedRecordError("wrong-type", f"{name} is {kind}, expected text")
    if prompt[0].role != "system":
        on_reading("system-column")
        return (Message(role="system", content=text), *prompt)
    if prompt[0].content.strip() != text.strip():
        raise MalformedRecordError(
            "unread-text",
            f"column {name!r} has another text than the system turn of the prompt; keep one",
        )
    return prompt


def _history(value: Any, *, name: str, on_reading: OnReading) -> tuple[Message, ...]:
    """Return the turns of a history: a list of messages, or of texts of user and assistant."""
    if is_empty(value) or not isinstance(value, list | tuple):
        return ()
    if all(isinstance(turn, Mapping) for turn in value):
        return messages_of(value, name=name, on_reading=on_reading)
    turns: list[Message] = []
    for index, exchange in enumerate(value):
        texts = exchange if isinstance(exchange, list | tuple) else ()
        if len(texts) != 2 or not all(isinstance(text, str | None) for text in texts):
            raise MalformedRecordError(
                "unread-text",
                f"{name}.{index} is neither a message nor a pair of texts, of the user and the "
                "assistant; write the history as messages",
            )
        roles: tuple[Role, Role] = ("user", "assistant")
        turns += [
            Message(role=role, content=text)
            for role, text in zip(roles, texts, strict=True)
            if text
        ]
    return tuple(turns)


def _refuse_unread(value: Any, *, name: str, texts: Sequence[str]) -> None:
    """Refuse the content of a column that is not among the texts of a pair.

    Raises:
        MalformedRecordError: The column has such content.
    """
    reason = _UNREAD_COLUMNS[name]
    unread = [
        text for text in _texts_in(value) if not any(text in pair_text for pair_text in texts)
    ]
    if unread if reason == "unread-text" else not is_empty(value):
        excerpt = f" {unread[0][:_MAX_SHOWN]!r}" if unread else ""
        raise MalformedRecordError(
            reason,
            f"column {name!r} has content{excerpt} that is not in the conversation; write it into "
            "the prompt, or drop or rename the column if no response depends on it",
        )


def _texts_in(value: Any) -> Iterator[str]:
    """Yield every text that is not blank in a value of nested lists and objects; no roles."""
    if isinstance(value, str) and value.strip():
        yield value.strip()
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            if key not in ("role", "from"):
                yield from _texts_in(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts_in(inner)
