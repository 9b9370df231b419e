"""The hand-written strings of a split, as plain text and as words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from encore.demo.world.lexicon import SLOT, Lexicon


def lexicon_texts(lexicon: Lexicon) -> list[str]:
    """Every hand-written string of a split, slots removed."""
    parts: list[object] = [lexicon.talk, lexicon.exchanges]
    for rule in lexicon.rules.values():
        parts += [rule.words, rule.bad, rule.good, rule.says]
    return frame_texts(lexicon) + [_plain(text) for part in parts for text in _strings(part)]


def frame_texts(lexicon: Lexicon) -> list[str]:
    """The stance frames of a split."""
    return [_plain(text) for text in _strings(lexicon.frames)]


def words_of(texts: Iterable[str]) -> frozenset[str]:
    """The lower-case words of some texts."""
    return frozenset(word for text in texts for word in re.findall("[a-z]+", text.lower()))


def _plain(text: str) -> str:
    return SLOT.sub(" ", text)


def _strings(node: object) -> Iterator[str]:
    if isinstance(node, str):
        yield node
    elif isinstance(node, Mapping):
        for value in node.values():
            yield from _strings(value)
    elif isinstance(node, (list, tuple)):
        for value in node:
            yield from _strings(value)
