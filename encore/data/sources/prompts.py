"""Read the prompt of a record from text or messages; find turns inside a text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from encore.data.records import Message
from encore.data.sources.hh import is_transcript, turns_of
from encore.data.sources.messages import OnReading, ignore_reading, messages_in_text, messages_of
from encore.data.sources.raw_records import MalformedRecordError

#: Marks of turns in a text, by the name of the form: the first, and the one that follows it.
_MARKS: Mapping[str, tuple[re.Pattern[str], re.Pattern[str]]] = {
    name: (re.compile(first), re.compile(second))
    for name, first, second in (
        ("ChatML", r"<\|im_start\|>", ""),
        ("Llama 3", r"<\|start_header_id\|>", ""),
        ("Llama 4", r"<\|header_start\|>", ""),
        ("Llama 2 or Mistral", r"\[INST\]", r"\[/INST\]"),
        ("Gemma", r"<start_of_turn>", ""),
        ("Zephyr or Phi", r"<\|(?:system|user|assistant)\|>", ""),
        ("DeepSeek", r"<[|｜](?:User|Assistant)[|｜]>", ""),
        (
            "### Instruction",
            r"###\s*(?:Instruction|Human|User)\s*:",
            r"###\s*(?:Response|Assistant)\s*:",
        ),
        ("USER: ASSISTANT:", r"\bUSER:", r"\bASSISTANT:"),
        ("Human: Assistant:", r"(?:\A|\n)(?:Human|User):", r"\n(?:Assistant|AI|Bot):"),
        ("messages as Python prints them", r"\A\s*\[\{'(?:role|from|content|value)':", ""),
    )
}
#: Every first mark has one of these, for which a text is searched faster.
_PARTS_OF_MARKS = (
    "<|",
    "<｜",
    "[INST]",
    "<start_of_turn>",
    "###",
    "USER:",
    "Human:",
    "User:",
    "[{'",
)
#: White space and tokens that begin a rendered conversation before its first turn.
_START_TOKENS = re.compile(r"\A\s*(?:(?:<s>|<bos>|<\|begin_of_text\|>)\s*)?")
#: A shorter prompt may begin two responses by chance.
_MIN_REPEATED_BYTES = 10


def prompt_turns(value: Any, *, on_reading: OnReading = ignore_reading) -> tuple[Message, ...]:
    """Return the turns of a prompt: messages, a transcript of Human and Assistant, or one text.

    Raises:
        MalformedRecordError: It is none of these, or a text with the turns of another form.
    """
    if not isinstance(value, str) or messages_in_text(value) is not None:
        return messages_of(value, name="prompt", on_reading=on_reading)
    if is_transcript(value):
        turns = turns_of(value, name="prompt")
        if turns[-1] == Message(role="assistant", content=""):  # where the response begins
            turns = turns[:-1]
        has_all_turns = len(turns) > 1 or value.rstrip().endswith("\n\nAssistant:")
        if has_all_turns or marked_form(value) is None:
            on_reading("turns-in-prompt")
            return turns
    refuse_turns(value, name="prompt")
    return (Message(role="user", content=value),)


def marked_form(text: str) -> str | None:
    """Return the name of the form in which a text marks several turns; None without marks."""
    if not any(part in text for part in _PARTS_OF_MARKS):
        return None
    for name, (first, second) in _MARKS.items():
        if (mark := first.search(text)) and second.search(text, mark.end()):
            return name
    return None


def refuse_turns(text: str, *, name: str) -> None:
    """Refuse a text that marks several turns.

    Raises:
        MalformedRecordError: The text has such marks.
    """
    if form := marked_form(text):
        raise MalformedRecordError(
            "turns-in-text",
            f"{name} has the turns of a conversation in one text ({form}); write them as messages, "
            'a list of {"role", "content"}; a text that only quotes such marks too',
        )


def starts_with_turn(text: str) -> bool:
    """Return True if a text begins with the mark of a turn, as a rendered conversation does."""
    start = _START_TOKENS.match(text)
    beginning = text[start.end() if start else 0 :]
    return any(
        (mark := first.match(beginning)) and second.search(beginning, mark.end())
        for first, second in _MARKS.values()
    )


def without_prompt(prompt: str, responses: Sequence[str]) -> tuple[str, ...] | None:
    """Return two responses without the prompt that both begin with; None if they do not.

    A response that alone begins with the prompt quotes it, and a short prompt begins responses by
    chance: these are kept as they are.
    """
    prefix = prompt.strip()
    if len(prefix.encode("utf-8", "surrogatepass")) < _MIN_REPEATED_BYTES:
        return None
    if not all(response.lstrip().startswith(prefix) for response in responses):
        return None
    endings = [response.lstrip()[len(prefix) :] for response in responses]
    if any(not ending.strip() or _continues_word(prefix, ending) for ending in endings):
        return None
    return tuple(ending.lstrip() for ending in endings)


def _continues_word(prefix: str, ending: str) -> bool:
    """Return True if a text is cut inside a word, in a language that writes spaces."""
    around = prefix[-1:] + ending[:1]
    return around.isascii() and around.isalnum()
