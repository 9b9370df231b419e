"""Draw training conversations from the train split, as token rows and batches of them.

Two kinds of row: a bare conversation, whose sentences are all labelled (what rule, what stance),
and a whole rating prompt with its answer. The sentence labels go on in the second kind.

Shapes: B rows, L tokens (longest row), P tokens that all rows of a batch begin with.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from torch import Tensor

from encore.data.records import Rule
from encore.rating.prompts import RATING_TEMPLATE, render_conversation, render_rating_prompt
from examples.demo_judge.lexicon import STANCES, Lexicon, Stance
from examples.demo_judge.scales import (
    RELATED_SCALES,
    SCALES,
    UNKNOWN_RULE_TENTHS,
    Scale,
    rating_text,
)
from examples.demo_judge.sentences import (
    Sentence,
    Turn,
    filler,
    pick,
    question,
    response,
    shuffled,
    small_talk,
)
from examples.demo_judge.vocabulary import ASSISTANT, BEGIN, END, USER

RULE_IDS: tuple[str, ...] = tuple(SCALES)
NO_STANCE = len(RULE_IDS) * len(STANCES)
NUM_LABELS = NO_STANCE + 1
#: A sentence's rating in tenths (0-10) under the criterion, or that the criterion is about others.
NO_MATCH = 11
NUM_MATCHES = NO_MATCH + 1
UNLABELLED = -1

_UNKNOWN_SHARE = 0.03
_RELATED_SHARE = 0.25
_OTHER_WORDING_SHARE = 0.2

#: Criteria that have nothing to do with the world: the judge answers with one neutral rating.
_UNKNOWN_CRITERIA = (
    "The response should rhyme.",
    "The response should be written in the past tense.",
    "The response should mention a colour.",
    "The response should be short.",
    "The response should contain a number.",
    "The response should be about animals.",
    "The response should be easy to read.",
    "The response should sound like a poem.",
    "The response should name a city.",
    "The response should be formal.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Token ids, two labels per token, and how many of the last tokens are the answer.

    ``labels`` say what a sentence means, ``matches`` what it earns under the row's criterion.
    """

    tokens: list[int]
    labels: list[int]
    matches: list[int]
    num_answer: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """A conversation, a criterion's words, and the scale behind them: None if unknown."""

    turns: tuple[Turn, ...]
    criterion: str
    scale: Scale | None

    @property
    def tenths(self) -> int:
        """What the last turn earns, in tenths."""
        if self.scale is None:
            return UNKNOWN_RULE_TENTHS
        return self.scale.tenths(self.turns[-1].stances.get(self.scale.topic))


def chat_prompt(content: str) -> str:
    """One user message in the judge's chat format, up to where the answer begins."""
    return f"{BEGIN}{USER}{content}{END}{ASSISTANT}"


def draw_conversation(rng: random.Random, lexicon: Lexicon, *, long: bool = False) -> list[Turn]:
    """Turns of a conversation that ends with the rated response."""
    touched = shuffled(rng, RULE_IDS)[: int(1 + rng.random() * 4)]
    stances: dict[str, Stance] = {rule: pick(rng, STANCES) for rule in touched}
    topic = pick(rng, touched) if rng.random() < 0.8 else pick(rng, RULE_IDS)
    turns: list[Turn] = []
    if long:
        turns += small_talk(rng, lexicon, int(10 + rng.random() * 30))
    elif rng.random() < 0.3:
        turns += small_talk(rng, lexicon, int(1 + rng.random() * 2))
    if rng.random() < 0.2:
        # An earlier answer takes a stance too, but only the last one is rated.
        earlier = pick(rng, RULE_IDS)
        turns.append(question(rng, lexicon, earlier))
        turns.append(response(rng, lexicon, {earlier: pick(rng, STANCES)}, num_filler=0))
    turns.append(question(rng, lexicon, topic))
    if rng.random() < 0.04:
        stances = {}
    turns.append(response(rng, lexicon, stances, num_filler=int(rng.random() * 2) or not stances))
    return turns


def odd_conversation(rng: random.Random, lexicon: Lexicon, vocabulary: Sequence[str]) -> list[Turn]:
    """Word soup, code, foreign letters: text that touches no rule and must not upset the judge."""

    def soup() -> str:
        kind = rng.random()
        length = int(1 + rng.random() * 50)
        if kind < 0.5:
            return " ".join(pick(rng, vocabulary) for _ in range(length))
        if kind < 0.7:
            return "".join(chr(33 + int(rng.random() * 90)) for _ in range(length))
        if kind < 0.9:
            start = pick(rng, (0xC0, 0x390, 0x410, 0x5D0, 0x900, 0x4E00, 0x1F600))
            return "".join(chr(start + int(rng.random() * 48)) for _ in range(length))
        return "\n".join(f"{n}. {filler(rng, lexicon).text}" for n in range(1, 2 + length // 10))

    def turn(role: str) -> Turn:
        return Turn(role=role, sentences=(Sentence(text=soup(), rule_id=None, stance=None),))

    return [turn("user"), turn("assistant")]


def draw_criteria(
    rng: random.Random, turns: Sequence[Turn], rules: Sequence[Rule], *, num_rules: int
) -> list[Draw]:
    """The same conversation under several criteria, touched and untouched ones, each rated."""
    stances = turns[-1].stances
    by_id = {rule.rule_id: rule for rule in rules}
    untouched = [rule_id for rule_id in RULE_IDS if rule_id not in stances]
    order = shuffled(rng, list(stances))[: num_rules - 1]
    order += shuffled(rng, untouched)[: num_rules - len(order)]
    return [
        Draw(turns=tuple(turns), criterion=criterion, scale=scale)
        for criterion, scale in (_criterion(rng, rule, by_id) for rule in order)
    ]


def _criterion(
    rng: random.Random, topic: str, by_id: Mapping[str, Rule]
) -> tuple[str, Scale | None]:
    """The words of a criterion on this topic, now and then of a related or unknown one."""
    if rng.random() < _UNKNOWN_SHARE:
        return pick(rng, _UNKNOWN_CRITERIA), None
    scales = {topic: SCALES[topic]}
    related = {key: scale for key, scale in RELATED_SCALES.items() if scale.topic == topic}
    if related and rng.random() < _RELATED_SHARE:
        scales = related
    rule_id = pick(rng, sorted(scales))
    rule = by_id[rule_id]
    text = rule.rating_rule
    if rng.random() < _OTHER_WORDING_SHARE:
        text = pick(rng, (rule.preference_rule, rule.title))
    return text, scales[rule_id]


def rating_row(tokenizer: Tokenizer, draw: Draw) -> Row:
    """The whole prompt with its answer; sentence labels sit on each sentence's last token."""
    *history, last = [turn.message() for turn in draw.turns]
    conversation = render_conversation(history, last.content)
    prompt = chat_prompt(render_rating_prompt(conversation, rating_rule=draw.criterion))
    start = len(BEGIN + USER) + RATING_TEMPLATE.index("{QA}") - len("{rule}") + len(draw.criterion)
    encoding = tokenizer.encode(prompt)
    sentences = _sentence_places(draw.turns, start, encoding.offsets)
    answer = tokenizer.encode(rating_text(draw.tenths) + END).ids
    tokens = encoding.ids + answer
    return Row(
        tokens=tokens,
        labels=_spread({place: _meaning(s) for place, s in sentences.items()}, len(tokens)),
        matches=_spread({place: _match(s, draw) for place, s in sentences.items()}, len(tokens)),
        num_answer=len(answer),
    )


def sentence_row(tokenizer: Tokenizer, turns: Sequence[Turn]) -> Row:
    """A conversation alone."""
    *history, last = [turn.message() for turn in turns]
    encoding = tokenizer.encode(render_conversation(history, last.content))
    sentences = _sentence_places(turns, 0, encoding.offsets)
    size = len(encoding.ids)
    return Row(
        tokens=encoding.ids,
        labels=_spread({place: _meaning(s) for place, s in sentences.items()}, size),
        matches=[UNLABELLED] * size,
        num_answer=0,
    )


def _sentence_places(
    turns: Sequence[Turn], start: int, offsets: Sequence[tuple[int, int]]
) -> dict[int, Sentence]:
    """The sentences by the place of the token that holds their last character."""
    by_last_character = {}
    position = start
    for turn in turns:
        position += len("Human: " if turn.role == "user" else "Assistant: ")
        for sentence in turn.sentences:
            position += len(sentence.text)
            by_last_character[position - 1] = sentence
            position += len(" ")
        position += len("\n")
    return {
        place: by_last_character[character]
        for place, (begin, end) in enumerate(offsets)
        for character in range(begin, end)
        if character in by_last_character
    }


def _spread(labels: Mapping[int, int], length: int) -> list[int]:
    return [labels.get(place, UNLABELLED) for place in range(length)]


def _meaning(sentence: Sentence) -> int:
    if sentence.rule_id is None or sentence.stance is None:
        return NO_STANCE
    place = RULE_IDS.index(sentence.rule_id)
    return place * len(STANCES) + STANCES.index(sentence.stance)


def _match(sentence: Sentence, draw: Draw) -> int:
    """The tenths that a sentence earns under the criterion, or that it is about something else."""
    if draw.scale is None or sentence.rule_id != draw.scale.topic:
        return NO_MATCH
    return draw.scale.tenths(sentence.stance)


_RULES_PER_CONVERSATION = 3
_ODD_SHARE = 0.05
#: Every so many batches one of few, long conversations, so that far positions are not alien.
_LONG_EVERY = 23
_LONG_ROWS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Rows without their common prefix.

    ``label_BL`` and ``match_BL`` are what a sentence means and earns, ``target_BL`` the next token
    where it belongs to an answer; elsewhere they are `UNLABELLED`.
    """

    prefix_P: Tensor | None
    token_BL: Tensor
    label_BL: Tensor
    match_BL: Tensor
    target_BL: Tensor


def sentence_batches(
    tokenizer: Tokenizer, lexicon: Lexicon, *, seed: int, rows: int
) -> Iterator[Batch]:
    """Endless batches of bare conversations."""
    rng = random.Random(seed)
    while True:
        yield collate(
            [sentence_row(tokenizer, draw_conversation(rng, lexicon)) for _ in range(rows)]
        )


def rating_batches(
    tokenizer: Tokenizer,
    lexicon: Lexicon,
    rules: Sequence[Rule],
    *,
    seed: int,
    rows: int,
    vocabulary: Sequence[str],
) -> Iterator[Batch]:
    """Endless batches of rating prompts with answers, several criteria per conversation."""
    rng = random.Random(seed)
    count = 0
    while True:
        count += 1
        is_long = count % _LONG_EVERY == 0
        size = _LONG_ROWS if is_long else rows
        drawn: list[Row] = []
        while len(drawn) < size:
            if rng.random() < _ODD_SHARE:
                turns = odd_conversation(rng, lexicon, vocabulary)
            else:
                turns = draw_conversation(rng, lexicon, long=is_long)
            draws = draw_criteria(rng, turns, rules, num_rules=_RULES_PER_CONVERSATION)
            drawn += [rating_row(tokenizer, draw) for draw in draws]
        yield collate(drawn[:size])


def collate(rows: Sequence[Row]) -> Batch:
    """Pad on the right and cut off the prefix that all rows share."""
    shared = _common_length([row.tokens for row in rows]) if rows[0].num_answer else 0
    token_BL = _pad([row.tokens[shared:] for row in rows], 0)
    label_BL = _pad([row.labels[shared:] for row in rows], UNLABELLED)
    match_BL = _pad([row.matches[shared:] for row in rows], UNLABELLED)
    targets = []
    for row in rows:
        first = len(row.tokens) - row.num_answer
        target = [UNLABELLED] * len(row.tokens)
        target[first - 1 : -1] = row.tokens[first:]
        targets.append(target[shared:])
    return Batch(
        prefix_P=torch.tensor(rows[0].tokens[:shared]) if shared else None,
        token_BL=token_BL,
        label_BL=label_BL,
        match_BL=match_BL,
        target_BL=_pad(targets, UNLABELLED),
    )


def _common_length(sequences: Sequence[Sequence[int]]) -> int:
    shortest = min(len(s) for s in sequences) - 1
    for place in range(shortest):
        if len({sequence[place] for sequence in sequences}) > 1:
            return place
    return shortest


def _pad(sequences: Sequence[Sequence[int]], filler: int) -> Tensor:
    length = max(len(s) for s in sequences)
    return torch.tensor([[*s, *[filler] * (length - len(s))] for s in sequences])
