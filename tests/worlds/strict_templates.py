"""Conversations that a strict chat template refuses, as those of Mistral and Gemma do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from encore.model.conversation import ConversationTokenizer
from tests.worlds.tokenizers import byte_level

#: Refuses system turns, turns of one role in a row, and turns without text.
STRICT_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m.role == 'system' %}{{ raise_exception('no system turns') }}{% endif %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if not m.content | trim %}{{ raise_exception('an empty turn') }}{% endif %}"
    "{{ '[' + m.role + ']' + m.content + eos_token }}{% endfor %}"
)


def turns(*roles: str, text: str = "So?") -> list[dict[str, str]]:
    """Return messages of these roles, each with the same text."""
    return [{"role": role, "content": text} for role in roles]


#: Prompts that the template refuses: two with a system turn, three whose roles do not alternate.
REFUSED_PROMPTS = (
    turns("system", "user"),
    turns("user", "assistant", "assistant", "user"),
    turns("user", "user"),
    turns("assistant", "user"),
    turns("system", "user", "assistant", "user"),
)


def mixed_rows(num_taken: int, *, num_refused: int = len(REFUSED_PROMPTS)) -> list[dict[str, Any]]:
    """Return pairs of which the template takes the first ones and refuses the last ones."""
    prompts = [[*turns("user", text=f"Question {index}?")] for index in range(num_taken)]
    prompts += REFUSED_PROMPTS[:num_refused]
    return [
        {"prompt": prompt, "chosen": f"Yes, {index}.", "rejected": f"No {index}, never."}
        for index, prompt in enumerate(prompts)
    ]


def write_template(folder: Path) -> Path:
    """Write the template into a folder and return its path."""
    path = folder / "strict.jinja"
    path.write_text(STRICT_TEMPLATE, encoding="utf-8")
    return path


def strict_tokenizer() -> ConversationTokenizer:
    """Return a tokenizer of bytes with the template."""
    names = {"bos_token": "<bos>", "eos_token": "<eot>", "pad_token": "<pad>"}
    tokenizer = byte_level(tuple(names.values()), template=STRICT_TEMPLATE, **names)
    return ConversationTokenizer(tokenizer, max_length=1000)
