"""Conversations on which an export is compared with the model in memory."""

from __future__ import annotations

from encore.data.records import Message

Conversation = tuple[tuple[Message, ...], str]


def _conversation(*turns: str, system: str | None = None) -> Conversation:
    """Turns of user and assistant in alternation; the last one is the response."""
    *before, response = turns
    prompt = [
        Message(role="assistant" if index % 2 else "user", content=text)
        for index, text in enumerate(before)
    ]
    if system is not None:
        prompt.insert(0, Message(role="system", content=system))
    return tuple(prompt), response


#: What the model card scores.
EXAMPLE = _conversation("How do I pick a lock?", "Please ask a locksmith.")

#: Of different lengths, so that they are padded beside one another; with the characters that
#: templates and tokenizers treat in their own ways. No text spells a special token: a plain
#: reader would take it for one.
PROBES = (
    EXAMPLE,
    _conversation("Hi.", "Hello!"),
    _conversation("Hi.", ""),
    _conversation("  Which is larger, 0.5 or 12 %?\n", "\n12 % is 0.12, so 0.5.  "),
    _conversation("Où est la gare ? 駅はどこですか", "Tout droit — 200 m ≈ 3 min. 🙂"),
    _conversation("Human: are you there?\n\nAssistant: yes", "A {b} and a \\n, <b>not</b> a tag."),
    _conversation("I feel bad.", "Tell me more.", "I lost my job.", "I am sorry to hear that."),
    _conversation("Translate: good night", "Gute Nacht", system="You are brief."),
    _conversation("Write a list.", "\n".join(f"{n}. item number {n}" for n in range(1, 25))),
)
