"""Do two texts ask for opposite things? A heuristic over English words of negation and direction.

A text is negated if a word before its first content word turns it around: "do not use insults",
"avoids insults", "is free from insults" and "is less insulting" are all negated. Two texts are
opposed if exactly one of them is negated and they have the same subject: the longer text has more
than half of the shorter one's content words, compared by their first letters.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from functools import cache
from pathlib import Path

_WORD = re.compile(r"[a-z]+(?:['’-][a-z]+)*")
#: A word that its prefix or suffix negates; the groups hold the word without it.
_NEGATED_WORD = re.compile(r"(?:dis|un|in|im|ir|il|non-?|anti-)([a-z-]+)|([a-z-]+)less")
#: Letters by which forms of one word are compared: violence and violent, toxic and toxicity.
_STEM_LENGTH = 4
#: Two texts have the same subject above this share of common content words.
_MIN_SHARED_STEMS = 0.5


@cache
def word_list(name: str) -> frozenset[str]:
    """Return the words of one list of ``rule_words.toml``."""
    text = Path(__file__).with_name("rule_words.toml").read_text(encoding="utf-8")
    return frozenset(tomllib.loads(text)[name].split())


@cache
def verb_forms(name: str) -> frozenset[str]:
    """Return the verbs of one list of ``rule_words.toml``, in all their forms."""
    verbs = word_list(name)
    stems = {verb.removesuffix("e") for verb in verbs}
    return verbs | {stem + ending for stem in stems for ending in ("s", "es", "ing", "ed")}


def are_opposed(first: str, second: str, *, counts_all_negations: bool = False) -> bool:
    """Return True if two texts seem to ask for opposite things.

    Args:
        first: A text.
        second: Another text.
        counts_all_negations: True for texts of nearly the same words: one of them must also have an
            odd number of negations more, wherever they stand.
    """
    first_tokens, second_tokens = _tokens(first), _tokens(second)
    first_is_negated, first_count, first_stems = _negations_and_stems(first_tokens, second_tokens)
    second_is_negated, second_count, second_stems = _negations_and_stems(
        second_tokens, first_tokens
    )
    num_stems = min(len(first_stems), len(second_stems))
    if first_is_negated == second_is_negated or not num_stems:
        return False
    if counts_all_negations and (first_count - second_count) % 2 == 0:
        return False
    return len(first_stems & second_stems) / num_stems > _MIN_SHARED_STEMS


def _tokens(text: str) -> list[str]:
    """Return the lower-case content words and negating words of a text."""
    # "free" negates only in "free from" and "free of".
    tokens = _WORD.findall(re.sub(r"\bfree (?=from|of)", "without ", text.lower()))
    ignored = word_list("function_words") | verb_forms("forward_verbs")
    return [token for token in tokens if token not in ignored]


def _negations_and_stems(
    tokens: Sequence[str], compared_tokens: Sequence[str]
) -> tuple[bool, int, set[str]]:
    """Return if a text's first content word is negated, all negations, and its words' stems.

    The stem of harmless is that of harm, and of unsafe that of safe, if the compared text has it.
    """
    negating = word_list("turning_words") | verb_forms("turning_verbs")
    compared_stems = {token[:_STEM_LENGTH] for token in compared_tokens}
    is_negated, num_negations = False, 0
    stems: set[str] = set()
    for token in tokens:
        # Only what comes before the first content word, or is part of it, negates the text.
        if token in negating or token.endswith(("n't", "n’t")):
            is_negated ^= not stems
            num_negations += 1
            continue
        stem, match = token[:_STEM_LENGTH], _NEGATED_WORD.fullmatch(token)
        base = (match[1] or match[2])[:_STEM_LENGTH] if match else ""
        if base in compared_stems and (stem == base or stem not in compared_stems):
            is_negated ^= not stems
            num_negations += 1
            stem = base
        stems.add(stem)
    return is_negated, num_negations, stems
