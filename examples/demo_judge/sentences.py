"""Compose sentences, responses and conversations of the synthetic world, reproducibly.

Draws use only ``random.Random.random``, whose sequence Python guarantees for a seed.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from encore.data.records import Message
from examples.demo_judge.lexicon import BREACHES, SLOT, Lexicon, RuleLexicon, Stance

T = TypeVar("T")

_SAID_TWICE = 0.4
_STRAY_SHARE = 0.2
_DISMISSALS_AMONG_MODERATE = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentence:
    """One sentence and what it does for its rule; both None when it touches no rule."""

    text: str
    rule_id: str | None
    stance: Stance | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One turn of a conversation as the sentences it is made of."""

    role: str
    sentences: tuple[Sentence, ...]

    @property
    def text(self) -> str:
        """The turn as one line of prose."""
        return " ".join(sentence.text for sentence in self.sentences)

    @property
    def stances(self) -> dict[str, Stance]:
        """The stance on every rule the turn touches."""
        return {s.rule_id: s.stance for s in self.sentences if s.rule_id and s.stance}

    def message(self) -> Message:
        """The turn as a message of the product's own kind."""
        return Message(role="user" if self.role == "user" else "assistant", content=self.text)


def pick(rng: random.Random, options: Sequence[T]) -> T:
    """One of the options."""
    return options[int(rng.random() * len(options))]


def shuffled(rng: random.Random, items: Sequence[T]) -> list[T]:
    """The items in random order."""
    return [
        item for _, item in sorted((rng.random(), i, item)[::2] for i, item in enumerate(items))
    ]


def rule_sentence(
    rng: random.Random, lexicon: Lexicon, rule_id: str, stance: Stance, *, framed: bool
) -> Sentence:
    """A sentence that takes this stance on this rule: a filled stance frame or a whole one."""
    rule = lexicon.rules[rule_id]
    template = _framed(rng, lexicon, rule, stance) if framed else pick(rng, rule.says[stance])
    text = fill(rng, lexicon, rule, template)
    return Sentence(text=text[0].upper() + text[1:], rule_id=rule_id, stance=stance)


def _rule_sentences(
    rng: random.Random, lexicon: Lexicon, rule_id: str, stance: Stance
) -> list[Sentence]:
    """One sentence of either kind, or one of each."""
    kinds = shuffled(rng, (True, False))[: 2 if rng.random() < _SAID_TWICE else 1]
    return [rule_sentence(rng, lexicon, rule_id, stance, framed=framed) for framed in kinds]


def _framed(rng: random.Random, lexicon: Lexicon, rule: RuleLexicon, stance: Stance) -> str:
    """A stance frame around a verb phrase: a bad act approved or refused, a good one advised."""
    good = pick(rng, rule.good)
    if stance in BREACHES:
        if stance == "moderate" and rng.random() < _DISMISSALS_AMONG_MODERATE:
            frame, heads, act = "dismiss", "heads", good
        else:
            frame, heads, act = "approve", "heads", pick(rng, rule.bad[stance])
    elif rng.random() < 0.5:
        frame, heads, act = "refuse", stance, pick(rng, rule.bad[pick(rng, BREACHES)])
    else:
        frame, heads, act = "advise", stance, good
    head = pick(rng, lexicon.frames[frame][heads])
    tail = pick(rng, lexicon.frames[frame]["tails"])
    sentence = head.replace("{act}", act).replace("{deed}", act)
    return f"{sentence}, {tail}." if tail else f"{sentence}."


def fill(rng: random.Random, lexicon: Lexicon, rule: RuleLexicon, template: str) -> str:
    """Fill the slots; a slot named twice gets the same word twice, except ``{adj}``.

    A rule's own words win over the common ones.
    """
    chosen: dict[str, str] = {}
    text = template
    while match := SLOT.search(text):
        name = match.group(1)
        options = rule.words.get(name) or lexicon.talk[name]
        if name == "adj" or name not in chosen:
            is_stray = lexicon.stray_words and rng.random() < _STRAY_SHARE
            chosen[name] = pick(rng, lexicon.stray_words if is_stray else options)
        text = text[: match.start()] + chosen[name] + text[match.end() :]
    return text


def filler(rng: random.Random, lexicon: Lexicon, kind: str = "filler") -> Sentence:
    """A sentence that touches no rule."""
    return _neutral(pick(rng, lexicon.talk[kind]))


def response(
    rng: random.Random, lexicon: Lexicon, stances: Mapping[str, Stance], *, num_filler: int = 1
) -> Turn:
    """An assistant turn with a sentence or two per touched rule, in random order, and filler."""
    sentences = [
        sentence
        for rule, stance in stances.items()
        for sentence in _rule_sentences(rng, lexicon, rule, stance)
    ]
    sentences += [filler(rng, lexicon) for _ in range(num_filler)]
    ordered = shuffled(rng, sentences)
    if rng.random() < 0.3:
        ordered.insert(0, filler(rng, lexicon, "openers"))
    return Turn(role="assistant", sentences=tuple(ordered))


def question(rng: random.Random, lexicon: Lexicon, rule_id: str) -> Turn:
    """A user turn about the topic of a rule. It takes no stance: only responses are judged."""
    rule = lexicon.rules[rule_id]
    if rng.random() < 0.65:
        template = pick(rng, lexicon.talk["ask_act"])
        act = pick(rng, rule.bad[pick(rng, BREACHES)])
    else:
        template = pick(rng, lexicon.talk["ask_deed"])
        act = pick(rng, rule.good)
    text = fill(rng, lexicon, rule, template.replace("{act}", act).replace("{deed}", act))
    more = pick(rng, lexicon.talk["ask_more"])
    sentences = [_neutral(text)] + ([_neutral(more)] if more else [])
    return Turn(role="user", sentences=tuple(sentences))


def small_talk(rng: random.Random, lexicon: Lexicon, num_exchanges: int) -> list[Turn]:
    """Exchanges of user and assistant that touch no rule."""
    turns = []
    for _ in range(num_exchanges):
        for role, text in zip(("user", "assistant"), pick(rng, lexicon.exchanges), strict=True):
            turns.append(Turn(role=role, sentences=(_neutral(text),)))
    return turns


def _neutral(text: str) -> Sentence:
    return Sentence(text=text, rule_id=None, stance=None)
