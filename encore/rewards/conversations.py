"""Conversations as `encore serve` takes them, from the prompts and completions of trainers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from encore.core.errors import InputError

#: A text, or messages with ``role`` and ``content``.
Dialogue = str | Sequence[Mapping[str, Any]]

_ROLES = ("system", "user", "assistant")


def conversation_json(prompt: Dialogue, completion: Dialogue) -> str:
    """Return a prompt and its completion as JSON of `POST /score`.

    A prompt that is a text is the user's turn. Of several completed messages the last is scored;
    the others belong to its prompt. Keys other than role and content are left out.

    Raises:
        InputError: A message of another role, a content that is no text, or a completion that does
            not end with the assistant.
    """
    turns = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else _turns(prompt)
    if isinstance(completion, str):
        response = completion
    else:
        completed = _turns(completion)
        if not completed or completed[-1]["role"] != "assistant":
            role = completed[-1]["role"] if completed else "nobody"
            raise InputError(f"a completion ends with {role}; expected the assistant's message")
        turns += completed[:-1]
        response = completed[-1]["content"]
    return json.dumps({"messages": turns, "response": response})


def _turns(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    turns = []
    for message in messages:
        role = str(message["role"])
        if role not in _ROLES:
            raise InputError(
                f"a message of role {role!r}; the reward model reads {', '.join(_ROLES)}: leave "
                "tools out, or score the final answer alone"
            )
        turns.append({"role": role, "content": _text(message.get("content"))})
    return turns


def _text(content: Any) -> str:
    """Return a message's text; its parts are joined if they are texts."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, Sequence) else [content]
    texts = [part.get("text") if isinstance(part, Mapping) else None for part in parts]
    if not all(isinstance(text, str) for text in texts):
        raise InputError(
            f"a message's content is {type(content).__name__} without text only; the reward model "
            "reads texts: no images, no calls of tools"
        )
    return "".join(map(str, texts))
