"""Do two texts ask for opposite things? A heuristic over English words of negation and direction.

It reads a text up to its first word of content and asks whether the words before it turn it around:
"do not use insults", "avoids insults", "is free from insults" and "is less insulting" all do. Two
texts are opposed if one is turned around, the other is not, and they are about the same: more than
half of the words of content of the shorter one stand in the other one too, by their beginnings.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path

_WORD = re.compile(r"[a-z]+(?:['’-][a-z]+)*")
#: As long as the beginning that two forms of one word share: violence and violent, toxic, toxicity.
_STEM = 5
_SAME_SUBJECT = 0.5


#: What turns a word around, where the other text has the rest of the word.
_PREFIXES = ("dis", "un", "in", "im", "ir", "il", "non-", "non", "anti-")
_ENDINGS = ("fully", "ful", "less", "ness", "ing", "ed", "es", "ty", "ly", "s")


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
    stems = [{_stem(word) for word in _words(text)} for text in (first, second)]
    is_turned, about = _read(first, stems[1])
    other_is_turned, other_about = _read(second, stems[0])
    shorter = min(len(about), len(other_about))
    if is_turned == other_is_turned or not shorter:
        return False
    return len(about & other_about) / shorter > _SAME_SUBJECT


def _read(text: str, other_stems: Collection[str]) -> tuple[bool, set[str]]:
    """Whether the text is turned around at its first word of content, and all such words' stems."""
    turning = word_list("turning_words") | verb_forms("turning_verbs")
    passed_over = word_list("function_words") | verb_forms("forward_verbs")
    is_turned = False
    about: set[str] = set()
    for word in _words(text):
        if word in turning or word.endswith(("n't", "n’t")):
            is_turned ^= not about
        elif word not in passed_over:
            base = _without_negation(word, other_stems)
            is_turned ^= base is not None and not about
            about.add(base or _stem(word))
    return is_turned, about


def _words(text: str) -> Iterator[str]:
    # "free" turns only what it is free from.
    yield from _WORD.findall(re.sub(r"\bfree (?=from|of)", "without ", text.lower()))


def _without_negation(word: str, other_stems: Collection[str]) -> str | None:
    """The stem of harm in harmless and of safe in unsafe, where the other text speaks of it."""
    bases = [word.removeprefix(prefix) for prefix in _PREFIXES if word.startswith(prefix)]
    bases += [word.removesuffix("less")] * word.endswith("less")
    if _stem(word) in other_stems and not word.endswith("less"):
        return None
    return next((_stem(base) for base in bases if _stem(base) in other_stems), None)


def _stem(word: str) -> str:
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= _STEM - 1:
            return word.removesuffix(ending)[:_STEM]
    return word[:_STEM]
