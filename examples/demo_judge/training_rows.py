"""Draw training conversations from the train split, as token rows and batches of them.

Two kinds of row: a bare conversation, whose sentences are all labelled (what rule, what stance),
and a whole rating prompt with its answer. Rows of the second kind carry the sentence labels too.

Shapes: B rows, L tokens (longest row), P tokens that all rows of a batch begin with.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import count, takewhile
from typing import NamedTuple

import torch
from tokenizers import Tokenizer
from torch import Tensor

from encore.data.records import Rule
from encore.rating.prompts import RATING_TEMPLATE, render_conversation, render_rating_prompt
from examples.demo_judge.vocabulary import ASSISTANT, BEGIN, END, USER
from examples.demo_judge.world import (
    RELATED_SCALES,
    SCALES,
    STANCES,
    Lexicon,
    Scale,
    Sentence,
    Stance,
    Turn,
    pick,
    question,
    response,
    shuffled,
    small_talk,
)

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
_RULES_PER_CONVERSATION = 3
_ODD_SHARE = 0.05
#: Every so many batches one of few, long conversations, so that far positions are not alien.
_LONG_EVERY = 23
_LONG_ROWS = 3
#: Criteria that have nothing to do with the world: the judge answers with one neutral rating.
_UNKNOWN_TENTHS = 5
_UNKNOWN_CRITERIA = tuple(
    f"The response should {what}."
    for what in (
        *("rhyme", "be written in the past tense", "mention a colour", "be short"),
        *("contain a number", "be about animals", "be easy to read", "sound like a poem"),
        *("name a city", "be formal"),
    )
)


class Row(NamedTuple):
    """Token ids, two labels per token, and the ids of the answer that they end with.

    ``labels`` say what a sentence means, ``matches`` what it earns under the row's criterion.
    """

    tokens: list[int]
    labels: list[int]
    matches: list[int]
    answer: list[int]


class Batch(NamedTuple):
    """Rows without their common prefix.

    ``label_BL`` and ``match_BL`` are what a sentence means and earns, ``target_BL`` the next token
    where it belongs to an answer; elsewhere they are `UNLABELLED`.
    """

    prefix_P: Tensor | None
    token_BL: Tensor
    label_BL: Tensor
    match_BL: Tensor
    target_BL: Tensor


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
    """Random words, code, foreign letters: text that touches no rule; a rating follows."""

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
        lines = (pick(rng, lexicon.talk["filler"]) for _ in range(1 + length // 10))
        return "\n".join(f"{n}. {line}" for n, line in enumerate(lines, 1))

    return [Turn("user", (Sentence(soup()),)), Turn("assistant", (Sentence(soup()),))]


def draw_criteria(
    rng: random.Random, stances: dict[str, Stance], rules: Sequence[Rule]
) -> Iterator[tuple[str, Scale | None]]:
    """Criteria for a response, touched and untouched ones: their words and scale, None if unknown.

    Now and then a criterion is of a related rule or one that the world does not know.
    """
    by_id = {rule.rule_id: rule for rule in rules}
    untouched = [rule_id for rule_id in RULE_IDS if rule_id not in stances]
    order = shuffled(rng, list(stances))[: _RULES_PER_CONVERSATION - 1]
    order += shuffled(rng, untouched)[: _RULES_PER_CONVERSATION - len(order)]
    for topic in order:
        if rng.random() < _UNKNOWN_SHARE:
            yield pick(rng, _UNKNOWN_CRITERIA), None
            continue
        scales = {topic: SCALES[topic]}
        related = {key: scale for key, scale in RELATED_SCALES.items() if scale.topic == topic}
        if related and rng.random() < _RELATED_SHARE:
            scales = related
        rule_id = pick(rng, sorted(scales))
        rule = by_id[rule_id]
        text = rule.rating_rule
        if rng.random() < _OTHER_WORDING_SHARE:
            text = pick(rng, (rule.preference_rule, rule.title))
        yield text, scales[rule_id]


def rating_row(
    tokenizer: Tokenizer, turns: Sequence[Turn], criterion: str, scale: Scale | None
) -> Row:
    """The whole prompt with its answer; sentence labels sit on each sentence's last token."""
    *history, last = [turn.message() for turn in turns]
    conversation = render_conversation(history, last.content)
    content = render_rating_prompt(conversation, rating_rule=criterion)
    start = len(BEGIN + USER) + RATING_TEMPLATE.index("{QA}") - len("{rule}") + len(criterion)
    tenths = _UNKNOWN_TENTHS
    if scale is not None:
        tenths = scale.tenths(turns[-1].stances.get(scale.topic))
    answer = tokenizer.encode(f"{tenths // 10}.{tenths % 10}{END}").ids
    prompt = f"{BEGIN}{USER}{content}{END}{ASSISTANT}"
    row = _labelled_row(tokenizer, prompt, turns, start=start, scale=scale)
    unlabelled = [UNLABELLED] * len(answer)
    return Row(row.tokens + answer, row.labels + unlabelled, row.matches + unlabelled, answer)


def sentence_row(tokenizer: Tokenizer, turns: Sequence[Turn]) -> Row:
    """A conversation alone."""
    *history, last = [turn.message() for turn in turns]
    row = _labelled_row(tokenizer, render_conversation(history, last.content), turns)
    return row._replace(matches=[UNLABELLED] * len(row.tokens))


def _labelled_row(
    tokenizer: Tokenizer,
    text: str,
    turns: Sequence[Turn],
    *,
    start: int = 0,
    scale: Scale | None = None,
) -> Row:
    """The tokens of a text whose conversation begins at a character; labels at sentences' ends."""
    by_last_character = {}
    position = start
    for turn in turns:
        position += len("Human: " if turn.role == "user" else "Assistant: ")
        for sentence in turn.sentences:
            position += len(sentence.text)
            by_last_character[position - 1] = sentence
            position += len(" ")
        position += len("\n")
    encoding = tokenizer.encode(text)
    labels, matches = ([UNLABELLED] * len(encoding.ids) for _ in range(2))
    for place, (begin, end) in enumerate(encoding.offsets):
        for character in range(begin, end):
            if (found := by_last_character.get(character)) is not None:
                labels[place] = _meaning(found)
                is_about = scale is not None and found.rule_id == scale.topic
                matches[place] = scale.tenths(found.stance) if scale and is_about else NO_MATCH
    return Row(encoding.ids, labels, matches, [])


def _meaning(sentence: Sentence) -> int:
    if sentence.rule_id is None or sentence.stance is None:
        return NO_STANCE
    return RULE_IDS.index(sentence.rule_id) * len(STANCES) + STANCES.index(sentence.stance)


def sentence_batches(
    tokenizer: Tokenizer, lexicon: Lexicon, *, seed: int, rows: int
) -> Iterator[Batch]:
    """Endless batches of bare conversations."""
    rng = random.Random(seed)
    while True:
        drawn = (draw_conversation(rng, lexicon) for _ in range(rows))
        yield collate([sentence_row(tokenizer, turns) for turns in drawn])


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
    for number in count(1):
        is_long = number % _LONG_EVERY == 0
        size = _LONG_ROWS if is_long else rows
        drawn: list[Row] = []
        while len(drawn) < size:
            if rng.random() < _ODD_SHARE:
                turns = odd_conversation(rng, lexicon, vocabulary)
            else:
                turns = draw_conversation(rng, lexicon, long=is_long)
            criteria = draw_criteria(rng, turns[-1].stances, rules)
            drawn += [rating_row(tokenizer, turns, *criterion) for criterion in criteria]
        yield collate(drawn[:size])


def collate(rows: Sequence[Row]) -> Batch:
    """Pad on the right and cut off the prefix that all rows with answers share."""
    shared = 0
    if rows[0].answer:
        columns = zip(*(row.tokens[:-1] for row in rows), strict=False)
        shared = sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, columns))
    targets = []
    for row in rows:
        # The token before the answer has the answer's first as its next one.
        before = len(row.tokens) - len(row.answer) - 1
        targets.append([*[UNLABELLED] * before, *row.answer, UNLABELLED])
    return Batch(
        torch.tensor(rows[0].tokens[:shared]) if shared else None,
        _pad([row.tokens[shared:] for row in rows], 0),
        _pad([row.labels[shared:] for row in rows], UNLABELLED),
        _pad([row.matches[shared:] for row in rows], UNLABELLED),
        _pad([target[shared:] for target in targets], UNLABELLED),
    )


def _pad(sequences: Sequence[Sequence[int]], filler: int) -> Tensor:
    length = max(len(s) for s in sequences)
    return torch.tensor([[*s, *[filler] * (length - len(s))] for s in sequences])
