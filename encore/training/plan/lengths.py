"""How many tokens a study has: tokenised where that is cheap, else from its characters.

Suffixes: N sequences (two a pair), P pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from encore.errors import EncoreError, InputError
from encore.model.batching import MAX_PADDING_SHARE

if TYPE_CHECKING:
    from encore.data.records import PreferencePair

#: Of English text, with the tokenizers of current models.
CHARACTERS_PER_TOKEN = 4
#: Tokens that the two responses of a pair share with each other, of all tokens: measured on HH.
SHARED_SHARE = 0.365
#: More pairs than these are measured on a sample, every n-th.
MAX_MEASURED_PAIRS = 2000
#: A step's tokens stay below its mean and this many standard deviations.
_LARGEST_STEP_DEVIATIONS = 4

#: How responses can be put side by side; "padded" to the maximum length is for comparison alone.
LAYOUTS = ("packed", "prefix-shared", "sorted", "padded")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lengths:
    """The tokens of a set of preference pairs.

    Attributes:
        num_pairs: All pairs.
        length_N: Tokens of each measured response with its prompt, two a pair, at most
            ``max_length``.
        shared_P: Tokens each measured pair's sequences begin with in common.
        max_length: Longest sequence.
        origin: How they are known, for the reader.
        is_spread_known: False where every pair was given the mean length.
    """

    num_pairs: int
    length_N: NDArray[np.float64]
    shared_P: NDArray[np.float64]
    max_length: int
    origin: str
    is_spread_known: bool = True

    @property
    def num_tokens(self) -> int:
        """Of all responses, each with its prompt as if it stood alone."""
        return round(float(self.length_N.sum()) * self._scale)

    @property
    def mean_length(self) -> float:
        """Tokens of a response with its prompt."""
        return float(self.length_N.mean())

    @property
    def attention_length(self) -> float:
        """Length of the sequence that an average token is in."""
        return float(np.square(self.length_N).sum() / self.length_N.sum())

    def computed_tokens(self, layout: str) -> int:
        """Token positions that one pass over all pairs computes."""
        if layout == "padded":
            return 2 * self.num_pairs * self.max_length
        if layout == "prefix-shared":
            return self.num_tokens - round(float(self.shared_P.sum()) * self._scale)
        if layout == "sorted":  # rows are closed before their padding reaches this share
            return round(self.num_tokens / (1 - MAX_PADDING_SHARE))
        return self.num_tokens

    def largest_step(self, batch_pairs: int, *, layout: str) -> int:
        """Tokens of the fullest of some thousand steps, about; never more than there can be."""
        cost_P = self.length_N[::2] + self.length_N[1::2]
        if layout == "prefix-shared":
            cost_P = cost_P - self.shared_P
        mean = float(cost_P.mean())
        # Lengths of conversations are spread about as widely as their mean.
        deviation = float(cost_P.std()) if self.is_spread_known else mean
        pairs = min(batch_pairs, self.num_pairs)
        largest = pairs * mean + _LARGEST_STEP_DEVIATIONS * deviation * pairs**0.5
        return int(min(round(largest), 2 * pairs * self.max_length))

    @property
    def _scale(self) -> float:
        return self.num_pairs / len(self.shared_P)


def lengths_from_average(num_pairs: int, *, tokens_per_response: float, max_length: int) -> Lengths:
    """Pairs of responses that all have the average length.

    Raises:
        InputError: an average beyond the maximum length.
    """
    if tokens_per_response > max_length:
        raise InputError(
            f"tokens per response {tokens_per_response:g}: more than the maximum length of "
            f"{max_length} tokens; longer conversations are cut to it, so give at most that"
        )
    return Lengths(
        num_pairs=num_pairs,
        length_N=np.full(2, tokens_per_response, dtype=np.float64),
        shared_P=np.array([2 * tokens_per_response * SHARED_SHARE]),
        max_length=max_length,
        origin=f"{num_pairs:,} pairs of {tokens_per_response:g} tokens a response with its prompt; "
        f"shared prompts taken as {SHARED_SHARE:.1%} of tokens, as in HH",
        is_spread_known=False,
    )


def lengths_of_study(study: Path, *, model: str, max_length: int) -> Lengths:
    """The lengths of a study's pairs, by the backbone's own tokenizer if it lies in a folder.

    Otherwise, or where that tokenizer does not load, a token is taken as four characters; the
    origin says which and why.

    Raises:
        InputError: no study, or one without pairs.
    """
    pairs, num_pairs = _sample(study)
    measured = f"{len(pairs):,} of {num_pairs:,}" if len(pairs) < num_pairs else f"{num_pairs:,}"
    try:
        length_N, shared_P = _tokenised(pairs, model=model, max_length=max_length)
        origin = f"{measured} pairs tokenised as training does"
    except (EncoreError, ImportError) as error:
        length_N, shared_P = _from_characters(pairs, max_length=max_length)
        how = f"{CHARACTERS_PER_TOKEN} characters a token, not tokenised"
        origin = f"{measured} pairs at {how} ({error})"
    return Lengths(
        num_pairs=num_pairs,
        length_N=length_N,
        shared_P=shared_P,
        max_length=max_length,
        origin=origin,
    )


def _sample(study: Path) -> tuple[list[PreferencePair], int]:
    """(every n-th pair, number of all pairs)."""
    from encore.data.pairs import read_pairs, records_of
    from encore.data.study import open_study

    table = read_pairs(open_study(study))
    if table.num_rows == 0:
        raise InputError(f"study {study}: no pairs; run `encore ingest SOURCE --out {study}` first")
    step = -(-table.num_rows // MAX_MEASURED_PAIRS)
    return records_of(table.take(list(range(0, table.num_rows, step)))), table.num_rows


def _tokenised(
    pairs: Sequence[PreferencePair], *, model: str, max_length: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(length_N, shared_P) in the tokens of a folder's tokenizer.

    Raises:
        InputError: not a folder, or one whose tokenizer does not load.
        ImportError: the packages of training are not installed.
    """
    if not Path(model).expanduser().is_dir():
        raise InputError(f"{model} is no folder")
    from encore.model.config import BackboneConfig
    from encore.model.layouts import shared_length
    from encore.model.loading import load_tokenizer

    # "random": config.json and tokenizer are enough, weights need not be there.
    tokenizer = load_tokenizer(BackboneConfig(model=model, init="random", max_length=max_length))
    lengths: list[int] = []
    shared: list[int] = []
    for encoded in tokenizer.encode_pairs(pairs):
        chosen, rejected = encoded.chosen.token_ids, encoded.rejected.token_ids
        lengths += [len(chosen), len(rejected)]
        shared.append(shared_length([chosen, rejected]))
    return np.array(lengths, dtype=np.float64), np.array(shared, dtype=np.float64)


def _from_characters(
    pairs: Sequence[PreferencePair], *, max_length: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(length_N, shared_P); what is beyond the maximum is cut from the prompt, as in training."""
    prompt_P = np.array([sum(len(turn.content) for turn in pair.prompt) for pair in pairs])
    response_N = np.array([len(text) for pair in pairs for text in (pair.chosen, pair.rejected)])
    length_N = (np.repeat(prompt_P, 2) + response_N) / CHARACTERS_PER_TOKEN
    is_cut_N = length_N > max_length
    # Two sequences cut by different amounts begin differently.
    is_whole_P = ~(is_cut_N[::2] | is_cut_N[1::2])
    shared_P = np.where(is_whole_P, prompt_P / CHARACTERS_PER_TOKEN, 0.0)
    return np.clip(length_N, 1, max_length), shared_P
