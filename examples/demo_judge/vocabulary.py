"""The judge's tokenizer: byte-level BPE with whole English words on top.

Any text has an encoding, because single bytes are tokens. Digits stand alone. A small set of
merges covers pieces of words; whole words that matter to the world, or are near in meaning to one
that does, are tokens of their own, so that an unseen word still arrives with its meaning.
Built from the train split and the teacher's word list alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from encore.rating.prompts import RATING_TEMPLATE
from examples.demo_judge.word_vectors import SPACE, WordVectors

PAD, BEGIN, END, USER, ASSISTANT, SYSTEM = SPECIAL_TOKENS = (
    "<|pad|>",
    "<|begin|>",
    "<|end|>",
    "<|user|>",
    "<|assistant|>",
    "<|system|>",
)
VOCAB_SIZE = 16_384
_NUM_PIECES = 1600
_NUM_COMMON_WORDS = 2000
_NUM_CAPITALISED = 300


def build_tokenizer(teacher: WordVectors, texts: list[str]) -> Tokenizer:
    """The tokenizer of ``VOCAB_SIZE`` tokens, special tokens first."""
    texts = [*texts, RATING_TEMPLATE]
    description = json.loads(_pieces(teacher, texts).to_str())
    vocabulary: dict[str, int] = description["model"]["vocab"]
    for token in _whole_words(teacher, texts):
        if len(vocabulary) < VOCAB_SIZE:
            vocabulary.setdefault(token, len(vocabulary))
    # A word that is a token is taken whole; merges only serve the rest.
    description["model"]["ignore_merges"] = True
    return Tokenizer.from_str(json.dumps(description))


def _pieces(teacher: WordVectors, texts: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_NUM_PIECES,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    common = [(" " + word) * 40 for word in teacher.words[:6000]]
    tokenizer.train_from_iterator([*common, *(" " + text for text in texts * 3)], trainer)
    return tokenizer


def _whole_words(teacher: WordVectors, texts: list[str]) -> Iterator[str]:
    """Words in order of need: the world's own, common ones, capitals, the world's neighbours."""
    written = sorted({word for text in texts for word in re.findall(r"[A-Za-z]+", text)})
    yield from (SPACE + word for word in sorted({word.lower() for word in written}))
    yield from (SPACE + word for word in teacher.words[:_NUM_COMMON_WORDS])
    yield from (SPACE + word.capitalize() for word in teacher.words[:_NUM_CAPITALISED])
    yield from (SPACE + word for word in written if word[0].isupper())
    rank = teacher.rank
    content = [rank[word] for word in written if rank.get(word, 0) > 250]
    similarity = teacher.vector_WT @ teacher.vector_WT[content].T
    nearness = np.sort(similarity, axis=1)[:, -3:].mean(axis=1)
    # Rarer words must be nearer to earn a token.
    order = np.argsort(-(nearness - 1.2e-5 * np.arange(len(teacher.words))), kind="stable")
    yield from (SPACE + teacher.words[int(place)] for place in order)
