"""The pairs that every contender trains on: the same token ids for all."""

from __future__ import annotations

import contextlib
import gzip
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from encore.model.layouts import shared_length
from encore.training.examples import TokenTable

#: Of anthropic/hh-rlhf with Llama 3's tokenizer: a response of 300 tokens on average, of which
#: 219 are prompt, so that 36.5 % of a pair's tokens are the second copy of the prompt.
_PROMPT_MEDIAN, _PROMPT_SIGMA = 170.0, 0.87
_RESPONSE_MEDIAN, _RESPONSE_SIGMA = 60.0, 0.82
_MAX_LENGTH = 1024


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pairs:
    """What the training loop reads of examples for the objective bradley-terry. P pairs."""

    chosen: TokenTable
    rejected: TokenTable

    @property
    def pair_id_P(self) -> NDArray[np.object_]:
        """Names, for messages."""
        return np.array([f"pair-{row}" for row in range(len(self.chosen))], dtype=object)

    @property
    def target_chosen_PR(self) -> NDArray[np.float32]:
        """Preferences have no targets."""
        return np.zeros((len(self.chosen), 0), dtype=np.float32)

    @property
    def target_rejected_PR(self) -> NDArray[np.float32]:
        """Preferences have no targets."""
        return self.target_chosen_PR

    @property
    def length_N(self) -> NDArray[np.int64]:
        """Tokens of every response."""
        return np.concatenate([self.chosen.lengths, self.rejected.lengths])

    @property
    def num_shared(self) -> int:
        """Tokens that need not be computed when a pair's beginning is computed once."""
        rows = range(len(self.chosen))
        return sum(shared_length((self.chosen[row], self.rejected[row])) for row in rows)

    def take(self, rows: NDArray[np.int64]) -> Pairs:
        """Some pairs in the order asked for."""
        return Pairs(chosen=self.chosen.take(rows), rejected=self.rejected.take(rows))

    def save(self, path: Path) -> None:
        """As plain arrays."""
        np.savez(
            path,
            chosen=self.chosen.flat,
            chosen_offsets=self.chosen.offsets,
            rejected=self.rejected.flat,
            rejected_offsets=self.rejected.offsets,
        )

    @classmethod
    def load(cls, path: Path) -> Pairs:
        """What `save` wrote."""
        with np.load(path) as arrays:
            return cls(
                chosen=TokenTable(flat=arrays["chosen"], offsets=arrays["chosen_offsets"]),
                rejected=TokenTable(flat=arrays["rejected"], offsets=arrays["rejected_offsets"]),
            )


def tokenise(path: Path, *, tokenizer: Any) -> Pairs:
    """The pairs of a raw hh-rlhf file, through a `ConversationTokenizer`."""
    from encore.data.sources.hh import parse
    from encore.data.sources.raw_records import MalformedRecordError

    pairs = []
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            with contextlib.suppress(MalformedRecordError):  # `encore ingest` sets them aside too
                pairs.append(parse(json.loads(line), source="hh"))
    encoded = tokenizer.encode_pairs(pairs)
    return Pairs(
        chosen=TokenTable.of(pair.chosen.token_ids for pair in encoded),
        rejected=TokenTable.of(pair.rejected.token_ids for pair in encoded),
    )


def synthesise(*, num_pairs: int, vocabulary: int, seed: int = 0) -> Pairs:
    """Random tokens in pairs as long as hh-rlhf's, the two responses of a pair to one prompt."""
    generator = np.random.default_rng(seed)

    def lengths(median: float, sigma: float) -> NDArray[np.int64]:
        drawn = median * np.exp(sigma * generator.standard_normal(num_pairs))
        return np.clip(drawn, 4, _MAX_LENGTH // 2).astype(np.int64)

    def tokens(count: int) -> NDArray[np.int32]:
        return generator.integers(0, vocabulary, count).astype(np.int32)

    prompts = [tokens(n) for n in lengths(_PROMPT_MEDIAN, _PROMPT_SIGMA)]
    tables = [
        TokenTable.of(
            np.concatenate([prompt, tokens(count)])
            for prompt, count in zip(
                prompts, lengths(_RESPONSE_MEDIAN, _RESPONSE_SIGMA), strict=True
            )
        )
        for _ in range(2)
    ]
    return Pairs(chosen=tables[0], rejected=tables[1])


def sample_of_grouped_batches(pairs: Pairs, *, num_pairs: int, batch_pairs: int) -> Pairs:
    """Some pairs, in batches that length grouping over all pairs would make.

    The sampler of transformers groups within windows that grow with the data, so that on a few
    pairs it would hardly group at all. So its order over the whole file is cut into batches, and
    batches are taken evenly over the range of their lengths.
    """
    import torch
    from transformers.trainer_pt_utils import get_length_grouped_indices

    # A batch is as long as its longest response, so that is a pair's length.
    lengths = np.maximum(pairs.chosen.lengths, pairs.rejected.lengths).tolist()
    generator = torch.Generator().manual_seed(0)
    order = np.array(get_length_grouped_indices(lengths, batch_pairs, generator=generator))
    batches = order[: len(order) // batch_pairs * batch_pairs].reshape(-1, batch_pairs)
    num_batches = min(len(batches), -(-num_pairs // batch_pairs))
    by_length = np.argsort(np.array(lengths)[batches].max(axis=1), kind="stable")
    quantiles = (np.arange(num_batches) + 0.5) / num_batches
    chosen = by_length[(quantiles * len(batches)).astype(np.int64)]
    return pairs.take(batches[np.sort(chosen)].ravel())
