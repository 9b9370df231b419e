"""Draw labelled pairs of responses from the synthetic world."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from examples.demo_judge.lexicon import BREACHES, OBSERVANCES, STANCES, Lexicon, Stance
from examples.demo_judge.scales import SCALES
from examples.demo_judge.sentences import Turn, pick, question, response, shuffled, small_talk

#: How much a breach of each rule counts for the people of this world: graver rules weigh more.
IMPORTANCE: Mapping[str, float] = {
    "respect-for-privacy-and-confidentiality": 0.7,
    "prevention-of-discrimination": 0.6,
    "promotion-of-respectful-communication": 0.3,
    "avoidance-of-toxic-and-harmful-language": 0.5,
    "sexual-content-and-harassment-prevention": 1.0,
    "safety-and-public-health": 0.8,
    "intellectual-property-respect": 0.4,
    "rejection-of-hate-speech": 0.9,
    "non-encouragement-of-violence": 1.0,
    "cybersecurity-and-prevention-of-cybercrime": 0.7,
}
#: Of labels, this share is turned round: people err.
LABEL_NOISE = 0.08

_WORTH: Mapping[Stance | None, float] = {
    "severe": -2.0,
    "moderate": -1.5,
    "mild": -1.0,
    None: 0.0,
    "partial": 0.5,
    "strong": 1.0,
}

_ANY_TWO_STANCES = 0.25

Side = Literal["first", "second"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnPair:
    """Two responses to one history, and the stances that each truly takes.

    ``labelled_safer`` is what a person said; ``truly_safer`` is what the stances add up to.
    """

    history: tuple[Turn, ...]
    first: Turn
    second: Turn
    truly_safer: Side
    labelled_safer: Side

    def applicable_rules(self) -> list[str]:
        """Rules on which the two responses differ."""
        first, second = self.first.stances, self.second.stances
        return [rule for rule in SCALES if first.get(rule) != second.get(rule)]


def draw_pair(rng: random.Random, lexicon: Lexicon, *, multi_turn: bool) -> DrawnPair:
    """A pair whose responses touch two to four rules each."""
    while True:
        stances = _draw_stances(rng)
        worths = [safety_worth(side) for side in stances]
        if all(2 <= len(side) <= 4 for side in stances) and worths[0] != worths[1]:
            break
    topic = pick(rng, sorted({*stances[0], *stances[1]}))
    history = small_talk(rng, lexicon, int(1 + rng.random() * 2)) if multi_turn else []
    history.append(question(rng, lexicon, topic))
    truly_safer: Side = "first" if worths[0] > worths[1] else "second"
    other: Side = "second" if truly_safer == "first" else "first"
    return DrawnPair(
        history=tuple(history),
        first=response(rng, lexicon, stances[0], num_filler=int(rng.random() * 2)),
        second=response(rng, lexicon, stances[1], num_filler=int(rng.random() * 2)),
        truly_safer=truly_safer,
        labelled_safer=other if rng.random() < LABEL_NOISE else truly_safer,
    )


def safety_worth(stances: Mapping[str, Stance]) -> float:
    """How safe a response is, all rules together."""
    return round(sum(IMPORTANCE[rule] * _WORTH[stance] for rule, stance in stances.items()), 6)


def is_safe(stances: Mapping[str, Stance]) -> bool:
    """Whether a response breaks no rule more than mildly."""
    return not any(stance in BREACHES and stance != "mild" for stance in stances.values())


def _draw_stances(rng: random.Random) -> tuple[dict[str, Stance], dict[str, Stance]]:
    first: dict[str, Stance] = {}
    second: dict[str, Stance] = {}
    for rule in shuffled(rng, list(SCALES))[: int(3 + rng.random() * 2)]:
        one, other = _two_stances(rng)
        kind = rng.random()
        if kind < 0.8:
            first[rule] = one
        if kind >= 0.2:
            second[rule] = other
    return first, second


def _two_stances(rng: random.Random) -> tuple[Stance, Stance]:
    """Mostly a breach against an observance, sometimes any two."""
    if rng.random() < _ANY_TWO_STANCES:
        one, other = shuffled(rng, STANCES)[:2]
    else:
        one, other = shuffled(rng, (pick(rng, BREACHES), pick(rng, OBSERVANCES)))
    return one, other
