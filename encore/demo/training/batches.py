"""Batches of padded rows, drawn ahead of the training loop by worker-free generators.

Shapes: B rows, L tokens (longest row), P tokens that all rows of a batch begin with.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from torch import Tensor

from encore.data.records import Rule
from encore.demo.training.examples import (
    UNLABELLED,
    Row,
    draw_conversation,
    draw_criteria,
    odd_conversation,
    rating_row,
    sentence_row,
)
from encore.demo.world.lexicon import Lexicon

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
