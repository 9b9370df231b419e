"""Count what a rating run asks of its judge; its tokenizer is enough.

Tokenising bounds the time of a count, so of a large study a sample of pairs is tokenised.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from encore.data.pairs import num_bytes_of
from encore.data.records import RESPONSES
from encore.judges.judge_config import JudgeConfig
from encore.judges.vllm_engine import CPU_BLOCK_SIZE, GPU_BLOCK_SIZE
from encore.rating.shard_rating import ShardRater

#: Tokenising so many takes a second or two; of HH's 1,500 pairs they give all tokens to 1 %.
MAX_COUNTED_PAIRS = 1000
#: What judges write most often where any number is allowed.
_USUAL_REPLY = "0.8"


class TokenCounts(NamedTuple):
    """Of some pairs under all rules; tokens are None where the judge has no tokenizer here.

    ``computed_tokens`` are those of the prompts that the engine does not find in its cache.
    """

    num_calls: int
    prompt_tokens: int | None = None
    computed_tokens: int | None = None
    output_tokens: int | None = None

    def scaled(self, factor: float) -> TokenCounts:
        """So many times as much."""
        tokens = (value and round(value * factor) for value in self[1:])
        return TokenCounts(round(self.num_calls * factor), *tokens)


def count_tokens(
    rater: ShardRater,
    pairs: pa.Table,
    *,
    block_size: int | None,
    max_counted: int = MAX_COUNTED_PAIRS,
) -> TokenCounts:
    """What a run over these pairs, in this order, asks: exact where all of them are counted.

    The first pair's prompts fill the cache with what all pairs share, so they count once. Of a
    sample, computed tokens are a little too many (2 % for 200 of 1,500 pairs of HH): among more
    pairs, more begin with the same words. Output tokens are those of a usual reply.

    Args:
        rater: Of the run; it makes the prompts as it does for the judge.
        pairs: All pairs of the run; too long prompts are not asked.
        block_size: Of the engine's cache, in tokens; None: it keeps nothing.
        max_counted: How many pairs are tokenised at most.
    """
    num_pairs, per_pair = pairs.num_rows, len(RESPONSES) * len(rater.rule_set.rules)
    if rater.encoder is None:
        return TokenCounts(num_pairs * per_pair)
    if num_pairs > max_counted:
        pairs = pairs.take(_spread_by_length(pairs, max_counted))
    found = np.zeros((pairs.num_rows, 3))
    known: set[int] = set()
    for place, (prompt, _) in enumerate(rater.prompts(rater.questions(pairs))):
        if prompt is not None:
            ids = np.asarray(prompt, dtype=np.uint32)
            found[place // per_pair] += (1, len(ids), _num_computed(ids, block_size, known))
    others = (num_pairs - 1) / max(pairs.num_rows - 1, 1)
    calls, prompt_tokens, computed = np.rint(found[0] + others * found[1:].sum(axis=0)).tolist()
    output = round(calls * _usual_output(rater))
    return TokenCounts(int(calls), int(prompt_tokens), int(computed), output)


def kv_block_size(judge: JudgeConfig, *, is_on_cpu: bool) -> int | None:
    """Tokens of a block of the engine's cache; None where prompts share nothing.

    A server is taken for vLLM on GPUs.
    """
    given = judge.engine_args
    if judge.backend == "transformers" or not given.get("enable_prefix_caching", True):
        return None
    is_here = is_on_cpu and judge.backend == "vllm"
    return int(given.get("block_size", CPU_BLOCK_SIZE if is_here else GPU_BLOCK_SIZE))


def _num_computed(ids: NDArray[np.uint32], block_size: int | None, known: set[int]) -> int:
    """Tokens of a prompt that are not in the cache, to which its full blocks are added.

    As in vLLM, a block is found by its tokens and all before them, and a prompt's last token is
    always computed.
    """
    if block_size is None:
        return len(ids)
    key, num_found = 0, 0
    for end in range(block_size, len(ids) + 1, block_size):
        key = hash((key, ids[end - block_size : end].tobytes()))
        num_found += key in known and end < len(ids)
        known.add(key)
    return len(ids) - num_found * block_size


def _spread_by_length(pairs: pa.Table, count: int) -> NDArray[np.int64]:
    """Rows, evenly from the shortest text to the longest, in the order of the table."""
    length = num_bytes_of(pairs)
    place = (np.arange(count) + 0.5) * pairs.num_rows / count
    return np.sort(np.argsort(length, kind="stable")[place.astype(int)])


def _usual_output(rater: ShardRater) -> float:
    """Tokens of a reply with its end; one where the labels' probabilities are the answer."""
    decoding, tokenizer = rater.decoding, rater.judge.tokenizer
    assert tokenizer is not None, "it has an encoder"
    if decoding.kind == "expected":
        return 1.0
    replies: Sequence[str] = decoding.labels or [_USUAL_REPLY]
    lengths = [len(ids) + 1 for ids in tokenizer.encode_text(replies)]
    return min(float(np.mean(lengths)), decoding.max_reply_tokens)
