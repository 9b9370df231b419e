"""Do two texts ask for opposite things? A heuristic over English words of negation and direction.

It reads a text up to its first word of content and asks whether the words before it turn it around:
"do not use insults", "avoids insults", "is free from insults" and "is less insulting" all do. Two
texts are opposed if one is turned around, the other is not, and they are about the same: more than
half of the words of content of the shorter one stand in the other one too, by their beginnings.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from functools import cache
from pathlib import Path

_WORD = re.compile(r"[a-z]+(?:['’-][a-z]+)*")
#: The rest of a word that its beginning or end turns around.
_NEGATED = re.compile(r"(?:dis|un|in|im|ir|il|non-?|anti-)([a-z-]+)|([a-z-]+)less")
#: As long as the beginning that two forms of one word share: violence and violent, toxic, toxicity.
_STEM = 4
_SAME_SUBJECT = 0.5


@cache
def word_list(name: str) -> frozenset[str]:
    """Words of a list of ``rule_words.toml``."""
    text = Path(__file__).with_name("rule_words.toml").read_text(encoding="utf-8")
    return frozenset(tomllib.loads(text)[name].split())


@cache
def verb_forms(name: str) -> frozenset[str]:
    """Verbs of a list of ``rule_words.toml``, in all their forms."""
    verbs = word_list(name)
    stems = {verb.removesuffix("e") for verb in verbs}
    return verbs | {stem + ending for stem in stems for ending in ("s", "es", "ing", "ed")}


def are_opposed(first: str, second: str) -> bool:
    """Whether two texts seem to ask for opposite things."""
    words = [_words(text) for text in (first, second)]
    is_turned, about = _read(words[0], words[1])
    other_is_turned, other_about = _read(words[1], words[0])
    shorter = min(len(about), len(other_about))
    if is_turned == other_is_turned or not shorter:
        return False
    return len(about & other_about) / shorter > _SAME_SUBJECT


def _words(text: str) -> list[str]:
    """The words of a text that turn it around or say what it is about."""
    # "free" turns only what it is free from.
    words = _WORD.findall(re.sub(r"\bfree (?=from|of)", "without ", text.lower()))
    passed_over = word_list("function_words") | verb_forms("forward_verbs")
    return [word for word in words if word not in passed_over]


def _read(words: Sequence[str], others: Sequence[str]) -> tuple[bool, set[str]]:
    """Whether a text is turned around at its first word of content, and all such words' stems.

    The stem of harmless is that of harm, and of unsafe that of safe, where the other text has it.
    """
    turning = word_list("turning_words") | verb_forms("turning_verbs")
    other_stems = {word[:_STEM] for word in others}
    is_turned = False
    about: set[str] = set()
    for word in words:
        if word in turning or word.endswith(("n't", "n’t")):
            is_turned ^= not about
            continue
        stem, negated = word[:_STEM], _NEGATED.fullmatch(word)
        rest = (negated[1] or negated[2])[:_STEM] if negated else ""
        if rest in other_stems and (stem == rest or stem not in other_stems):
            is_turned ^= not about
            stem = rest
        about.add(stem)
    return is_turned, about
