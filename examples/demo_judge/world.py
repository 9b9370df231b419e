"""The synthetic world: its hand-written words, what sentences earn, and pairs drawn from it.

The three splits share neither templates nor word lists: ``train`` is all the judge ever sees,
``demo`` makes the shipped pairs, ``test`` is kept for the tests. Draws use only
``random.Random.random``, whose sequence Python guarantees for a seed.
"""

from __future__ import annotations

import random
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, get_args

from encore.data.records import Message

T = TypeVar("T")
Split = Literal["train", "demo", "test"]
Stance = Literal["severe", "moderate", "mild", "partial", "strong"]
#: From the worst to the best a sentence can do for its rule.
STANCES: tuple[Stance, ...] = get_args(Stance)
BREACHES, OBSERVANCES = STANCES[:3], STANCES[3:]

_SLOT = re.compile(r"\{(\w+)\}")
_FOLDER = Path(__file__).parent / "world_text"
_SAID_TWICE = 0.4
_STRAY_SHARE = 0.2
_DISMISSALS_AMONG_MODERATE = 0.3
_ANY_TWO_STANCES = 0.25
#: Of labels, this share is turned round: people err.
LABEL_NOISE = 0.08
_WORTH = dict(zip(STANCES, (-2.0, -1.5, -1.0, 0.5, 1.0), strict=True))


class Scale(NamedTuple):
    """The rating in tenths (0-10) that each stance earns under a rule: the judge's ground truth.

    Rules differ on purpose in scale and coarseness, so that their rating entropies differ. A rule
    that a response does not touch gets ``untouched_tenths``, whichever response it is. ``topic`` is
    the rule of the ten whose sentences this rule looks at; ``importance`` is what its breach counts
    for the people of this world.
    """

    topic: str
    stance_tenths: tuple[int, int, int, int, int]
    untouched_tenths: int
    importance: float = 0.0

    def tenths(self, stance: Stance | None) -> int:
        """The rating of a response with this stance; None means untouched."""
        place = None if stance is None else STANCES.index(stance)
        return self.untouched_tenths if place is None else self.stance_tenths[place]


_PRIVACY = "respect-for-privacy-and-confidentiality"
_BIAS = "prevention-of-discrimination"
_RESPECT = "promotion-of-respectful-communication"
_TOXIC = "avoidance-of-toxic-and-harmful-language"
_SEXUAL = "sexual-content-and-harassment-prevention"
_HEALTH = "safety-and-public-health"
_PROPERTY = "intellectual-property-respect"
_HATE = "rejection-of-hate-speech"
_VIOLENCE = "non-encouragement-of-violence"
_SECURITY = "cybersecurity-and-prevention-of-cybercrime"

#: Rules 0-9 of the paper: those the synthetic world is about.
SCALES: Mapping[str, Scale] = {
    scale.topic: scale
    for scale in (
        Scale(_PRIVACY, (0, 2, 4, 7, 9), 6, 0.7),
        Scale(_BIAS, (1, 2, 3, 7, 9), 8, 0.6),
        Scale(_RESPECT, (1, 2, 4, 7, 9), 5, 0.3),
        Scale(_TOXIC, (0, 1, 3, 9, 10), 8, 0.5),
        Scale(_SEXUAL, (0, 1, 2, 9, 10), 7, 1.0),
        Scale(_HEALTH, (1, 2, 3, 6, 8), 5, 0.8),
        Scale(_PROPERTY, (2, 3, 4, 8, 9), 7, 0.4),
        Scale(_HATE, (0, 0, 1, 9, 10), 8, 0.9),
        Scale(_VIOLENCE, (0, 0, 1, 8, 10), 5, 1.0),
        Scale(_SECURITY, (1, 3, 4, 7, 8), 5, 0.7),
    )
}
#: Rules 10-19 have no sentences of their own: the judge reads each like its nearest relative
#: above, on a coarser scale, so that it answers them sensibly too.
RELATED_SCALES: Mapping[str, Scale] = {
    "promotion-of-mental-well-being": Scale(_RESPECT, (2, 3, 3, 7, 8), 6),
    "avoidance-of-cultural-appropriation": Scale(_HATE, (1, 2, 2, 8, 9), 7),
    "discouragement-of-conspiracy-theories": Scale(_HEALTH, (2, 2, 4, 6, 8), 6),
    "avoidance-of-perpetuating-stereotypes": Scale(_BIAS, (0, 1, 2, 8, 10), 7),
    "balance-of-innovation-and-safety": Scale(_SECURITY, (3, 3, 5, 7, 7), 6),
    "challenge-to-discriminatory-notions": Scale(_BIAS, (1, 1, 3, 7, 10), 4),
    "promotion-of-intergenerational-understanding": Scale(_RESPECT, (3, 3, 5, 7, 7), 6),
    "promotion-of-peaceful-conflict-resolution": Scale(_VIOLENCE, (0, 1, 3, 7, 9), 6),
    "respect-for-confidentiality": Scale(_PRIVACY, (1, 1, 3, 7, 10), 8),
    "acknowledgment-of-multiple-viewpoints": Scale(_RESPECT, (2, 2, 3, 6, 8), 4),
}


class RuleLexicon(NamedTuple):
    """What one split can say about one rule.

    ``bad`` and ``good`` are verb phrases for the stance frames; ``says`` are whole sentences;
    ``words`` fill the slots of all of them.
    """

    words: Mapping[str, Sequence[str]]
    bad: Mapping[str, Sequence[str]]
    good: Sequence[str]
    says: Mapping[str, Sequence[str]]


class Lexicon(NamedTuple):
    """One split of the world: rules, stance frames and small talk.

    ``exchanges`` are a user's line and the assistant's reply. ``stray_words``, empty but in
    training, now and then fill a slot in place of its own words, so that templates count too.
    """

    rules: Mapping[str, RuleLexicon]
    frames: Mapping[str, Mapping[str, Sequence[str]]]
    talk: Mapping[str, Sequence[str]]
    exchanges: Sequence[tuple[str, str]]
    stray_words: Sequence[str] = ()


class Sentence(NamedTuple):
    """One sentence and what it does for its rule; both None when it touches no rule."""

    text: str
    rule_id: str | None = None
    stance: Stance | None = None


class Turn(NamedTuple):
    """One turn of a conversation as the sentences it is made of."""

    role: Literal["user", "assistant"]
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
        return Message(role=self.role, content=self.text)


class DrawnPair(NamedTuple):
    """Two responses to one history.

    ``labelled_safer`` is the one (0 or 1) that a person called safer; ``truly_safer`` the one whose
    stances add up to more.
    """

    history: tuple[Turn, ...]
    responses: tuple[Turn, Turn]
    truly_safer: int
    labelled_safer: int


@cache
def load_lexicon(split: Split) -> Lexicon:
    """Everything one split can say."""
    files = sorted(_FOLDER.rglob("*.toml"))
    read = {path.stem: tomllib.loads(path.read_text(encoding="utf-8")) for path in files}
    frames, talk = (read.pop(name)[split] for name in ("frames", "small_talk"))
    exchanges = [(line, reply) for line, reply in talk.pop("exchanges")]
    rules = {}
    for data in read.values():
        part = data[split]
        rules[data["rule_id"]] = RuleLexicon(**part | {"good": part["good"]["acts"]})
    return Lexicon(rules, frames, talk, exchanges)


def lexicon_texts(lexicon: Lexicon) -> list[str]:
    """Every hand-written string of a split, slots removed."""
    texts = [*frame_texts(lexicon), *_strings(lexicon.talk), *_strings(lexicon.exchanges)]
    return texts + [text for rule in lexicon.rules.values() for text in _strings(rule)]


def frame_texts(lexicon: Lexicon) -> list[str]:
    """The stance frames of a split."""
    return list(_strings(lexicon.frames))


def words_of(texts: Iterable[str]) -> frozenset[str]:
    """The lower-case words of some texts."""
    return frozenset(word for text in texts for word in re.findall("[a-z]+", text.lower()))


def _strings(node: Any) -> Iterator[str]:
    if isinstance(node, str):
        yield _SLOT.sub(" ", node)
        return
    for value in node.values() if isinstance(node, Mapping) else node:
        yield from _strings(value)


def pick(rng: random.Random, options: Sequence[T]) -> T:
    """One of the options."""
    return options[int(rng.random() * len(options))]


def shuffled(rng: random.Random, items: Sequence[T]) -> list[T]:
    """The items in random order."""
    order = sorted((rng.random(), place) for place in range(len(items)))
    return [items[place] for _, place in order]


def rule_sentence(
    rng: random.Random, lexicon: Lexicon, rule_id: str, stance: Stance, *, framed: bool
) -> Sentence:
    """A sentence that takes this stance on this rule: a filled stance frame or a whole one."""
    rule = lexicon.rules[rule_id]
    template = _framed(rng, lexicon, rule, stance) if framed else pick(rng, rule.says[stance])
    text = _fill(rng, lexicon, rule, template)
    return Sentence(text[0].upper() + text[1:], rule_id, stance)


def _framed(rng: random.Random, lexicon: Lexicon, rule: RuleLexicon, stance: Stance) -> str:
    """A stance frame around a verb phrase: a bad act approved or refused, a good one advised."""
    good = pick(rng, rule.good)
    if stance in BREACHES:
        frame, heads, act = "approve", "heads", good
        if stance == "moderate" and rng.random() < _DISMISSALS_AMONG_MODERATE:
            frame = "dismiss"
        else:
            act = pick(rng, rule.bad[stance])
    elif rng.random() < 0.5:
        frame, heads, act = "refuse", stance, pick(rng, rule.bad[pick(rng, BREACHES)])
    else:
        frame, heads, act = "advise", stance, good
    head = pick(rng, lexicon.frames[frame][heads])
    tail = pick(rng, lexicon.frames[frame]["tails"])
    sentence = head.replace("{act}", act).replace("{deed}", act)
    return f"{sentence}, {tail}." if tail else f"{sentence}."


def _fill(rng: random.Random, lexicon: Lexicon, rule: RuleLexicon, template: str) -> str:
    """Fill the slots; a slot named twice gets the same word twice, except ``{adj}``.

    A rule's own words win over the common ones.
    """
    chosen: dict[str, str] = {}
    text = template
    while match := _SLOT.search(text):
        name = match.group(1)
        options = rule.words.get(name) or lexicon.talk[name]
        if name == "adj" or name not in chosen:
            is_stray = lexicon.stray_words and rng.random() < _STRAY_SHARE
            chosen[name] = pick(rng, lexicon.stray_words if is_stray else options)
        text = text[: match.start()] + chosen[name] + text[match.end() :]
    return text


def response(
    rng: random.Random, lexicon: Lexicon, stances: Mapping[str, Stance], *, num_filler: int = 1
) -> Turn:
    """An assistant turn with a sentence or two per touched rule, in random order, and filler."""
    sentences = []
    for rule, stance in stances.items():  # of either kind, or one of each
        kinds = shuffled(rng, (True, False))[: 2 if rng.random() < _SAID_TWICE else 1]
        sentences += [rule_sentence(rng, lexicon, rule, stance, framed=kind) for kind in kinds]
    sentences += [Sentence(pick(rng, lexicon.talk["filler"])) for _ in range(num_filler)]
    ordered = shuffled(rng, sentences)
    if rng.random() < 0.3:
        ordered.insert(0, Sentence(pick(rng, lexicon.talk["openers"])))
    return Turn("assistant", tuple(ordered))


def question(rng: random.Random, lexicon: Lexicon, rule_id: str) -> Turn:
    """A user turn about the topic of a rule. It takes no stance: only responses are judged."""
    rule = lexicon.rules[rule_id]
    if rng.random() < 0.65:
        template = pick(rng, lexicon.talk["ask_act"])
        act = pick(rng, rule.bad[pick(rng, BREACHES)])
    else:
        template = pick(rng, lexicon.talk["ask_deed"])
        act = pick(rng, rule.good)
    text = _fill(rng, lexicon, rule, template.replace("{act}", act).replace("{deed}", act))
    more = pick(rng, lexicon.talk["ask_more"])
    return Turn("user", (Sentence(text), Sentence(more)) if more else (Sentence(text),))


def small_talk(rng: random.Random, lexicon: Lexicon, num_exchanges: int) -> list[Turn]:
    """Exchanges of user and assistant that touch no rule."""
    turns = []
    for _ in range(num_exchanges):
        line, reply = pick(rng, lexicon.exchanges)
        turns += [Turn("user", (Sentence(line),)), Turn("assistant", (Sentence(reply),))]
    return turns


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
    truly_safer = 0 if worths[0] > worths[1] else 1
    first, second = (
        response(rng, lexicon, side, num_filler=int(rng.random() * 2)) for side in stances
    )
    is_wrong = rng.random() < LABEL_NOISE
    labelled_safer = 1 - truly_safer if is_wrong else truly_safer
    return DrawnPair(tuple(history), (first, second), truly_safer, labelled_safer)


def safety_worth(stances: Mapping[str, Stance]) -> float:
    """How safe a response is, all rules together."""
    worths = (SCALES[rule].importance * _WORTH[stance] for rule, stance in stances.items())
    return round(sum(worths), 6)


def _draw_stances(rng: random.Random) -> tuple[dict[str, Stance], dict[str, Stance]]:
    first: dict[str, Stance] = {}
    second: dict[str, Stance] = {}
    for rule in shuffled(rng, list(SCALES))[: int(3 + rng.random() * 2)]:
        # Mostly a breach against an observance, sometimes any two.
        if rng.random() < _ANY_TWO_STANCES:
            one, other = shuffled(rng, STANCES)[:2]
        else:
            one, other = shuffled(rng, (pick(rng, BREACHES), pick(rng, OBSERVANCES)))
        kind = rng.random()
        if kind < 0.8:
            first[rule] = one
        if kind >= 0.2:
            second[rule] = other
    return first, second
