"""Count what rating some pairs costs, calls and tokens, and compare it with the real cost.

Tokens are counted with the judge's tokenizer alone. Tokenising bounds the time of a count, so of a
large study a sample of pairs is tokenised.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from encore.core.chat_tokenizer import ChatTokenizer
from encore.data.pairs import num_bytes_of
from encore.judges.base import Decoding
from encore.judges.gpu_groups import visible_gpus
from encore.judges.judge_options import JudgeConfig
from encore.judges.vllm_engine import CPU_BLOCK_SIZE, GPU_BLOCK_SIZE
from encore.rating.prompts import PromptMaker
from encore.rating.shard_rating import ShardRater
from encore.runs.worker import RunReport

#: Tokenising this many pairs takes a second or two; for HH's 1,500 pairs the error is 1 %.
MAX_COUNTED_PAIRS = 1000
#: The most frequent reply of judges that may write any number.
_USUAL_REPLY = "0.8"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCounts:
    """Calls and tokens of some pairs under all rules.

    Attributes:
        num_calls: Number of prompts.
        prompt_tokens: Tokens of all prompts; None if the judge has no tokenizer here.
        computed_tokens: Tokens of prompts that the engine does not find in its cache, or None.
        output_tokens: Tokens of all replies, or None.
    """

    num_calls: int
    prompt_tokens: int | None = None
    computed_tokens: int | None = None
    output_tokens: int | None = None

    @property
    def work_units(self) -> int:
        """Return the amount of work: computed tokens of prompts and replies; calls if unknown."""
        return (self.computed_tokens or 0) + (self.output_tokens or 0) or self.num_calls

    def scaled(self, factor: float) -> TokenCounts:
        """Return the counts multiplied by a factor and rounded."""
        scaled: dict[str, Any] = {
            name: None if value is None else round(value * factor)
            for name, value in asdict(self).items()
        }
        return TokenCounts(**scaled)


#: Planned and actual values by name: calls, kinds of tokens, seconds.
Comparison = dict[str, dict[Literal["planned", "actual"], float | None]]


def count_tokens(
    prompts: PromptMaker,
    pairs: pa.Table,
    *,
    decoding: Decoding,
    block_size: int | None,
    max_counted: int = MAX_COUNTED_PAIRS,
) -> TokenCounts:
    """Count calls and tokens of a run over these pairs, in this order.

    The counts are exact if all pairs are counted. The first pair's prompts fill the cache with the
    text that all pairs share, so this text counts once. A sample gives slightly too many computed
    tokens (2 % for 200 of HH's 1,500 pairs), because more pairs share more beginnings. Output
    tokens are those of a usual reply, after as much thinking as is allowed.

    Args:
        prompts: Maker of the run's prompts.
        pairs: All pairs of the run. Prompts that are too long are not counted.
        decoding: Way in which the judge answers.
        block_size: Tokens in a block of the engine's cache; None for an engine without a cache.
        max_counted: Largest number of pairs that are tokenised.
    """
    num_pairs, per_pair = pairs.num_rows, prompts.num_prompts_per_pair
    if prompts.encoder is None:
        return TokenCounts(num_calls=num_pairs * per_pair * prompts.calls_per_prompt)
    if num_pairs > max_counted:
        pairs = pairs.take(_spread_by_length(pairs, max_counted))
    count_P3 = np.zeros((pairs.num_rows, 3))  # calls, prompt tokens, computed tokens of each pair
    cached_blocks: set[int] = set()
    for prompt_index, (prompt, _) in enumerate(prompts.make(prompts.questions(pairs))):
        if prompt is not None:
            ids = np.asarray(prompt, dtype=np.uint32)
            num_computed = _num_computed(ids, block_size, cached_blocks)
            count_P3[prompt_index // per_pair] += (1, len(ids), num_computed)
            if decoding.think_tokens is not None:  # a second step reads prompt and thinking
                thinking_ids = np.zeros(decoding.max_thinking_tokens, dtype=np.uint32)
                ids = np.concatenate([ids, thinking_ids])
                num_computed = _num_computed(ids, block_size, cached_blocks)
                count_P3[prompt_index // per_pair] += (0, len(ids), num_computed)
    # The first pair counts once; the others stand for all pairs but the first.
    factor = (num_pairs - 1) / max(pairs.num_rows - 1, 1)
    totals = np.rint(count_P3[0] + factor * count_P3[1:].sum(axis=0))
    num_calls, prompt_tokens, computed_tokens = map(int, totals.tolist())
    return TokenCounts(
        num_calls=num_calls,
        prompt_tokens=prompt_tokens,
        computed_tokens=computed_tokens,
        output_tokens=round(num_calls * _usual_output(prompts.encoder.tokenizer, decoding)),
    )


def count_prompt_bytes(prompts: PromptMaker, pairs: pa.Table) -> int:
    """Count the bytes of all prompts of a judge that reads texts, from a sample of the pairs."""
    counted = pairs
    if pairs.num_rows > MAX_COUNTED_PAIRS:
        counted = pairs.take(_spread_by_length(pairs, MAX_COUNTED_PAIRS))
    questions = prompts.questions(counted)
    texts = (prompt for prompt, _ in prompts.make(questions) if isinstance(prompt, str))
    num_bytes = sum(len(text.encode()) for text in texts)
    factor: float = pairs.num_rows / counted.num_rows
    return round(factor * num_bytes)


def kv_block_size(judge: JudgeConfig, *, is_on_cpu: bool) -> int | None:
    """Return the tokens in a block of the engine's cache; None if the engine has no prefix cache.

    A server is assumed to be vLLM on GPUs.
    """
    engine_args = judge.engine_args
    if judge.backend == "transformers" or not engine_args.get("enable_prefix_caching", True):
        return None
    is_cpu_engine = is_on_cpu and judge.backend == "vllm"
    block_size = engine_args.get("block_size")
    default = CPU_BLOCK_SIZE if is_cpu_engine else GPU_BLOCK_SIZE
    return block_size if isinstance(block_size, int) else default


def compare_with_plan(rater: ShardRater, pairs: pa.Table, report: RunReport) -> Comparison:
    """Return planned and actual cost of the pairs that a call rated.

    Calls that were saved by ratings of another run or replies of an earlier call are in neither.
    Time is not planned.

    Args:
        rater: Rater of the run.
        pairs: Pairs of the shards that the call rated, in the plan's order.
        report: Report of the call, with the actual cost.
    """
    block_size = kv_block_size(rater.config.judge, is_on_cpu=not visible_gpus())
    counts = count_tokens(rater.prompts, pairs, decoding=rater.decoding, block_size=block_size)
    num_prompts = pairs.num_rows * rater.prompts.num_prompts_per_pair
    num_known = report.computed("num_known") // rater.prompts.rules_per_prompt
    num_copied = num_known + report.computed("num_kept")
    planned, actual = counts.scaled(1 - num_copied / num_prompts), recorded_tokens(report)
    comparison: Comparison = {
        name: {"planned": value, "actual": getattr(actual, name)}
        for name, value in asdict(planned).items()
    }
    return comparison | {"seconds": {"planned": None, "actual": report.seconds}}


def recorded_tokens(report: RunReport, *, of_all_calls: bool = False) -> TokenCounts:
    """Return the calls and tokens of a call, or those of all calls on its shards."""
    count = report.total if of_all_calls else report.computed
    return TokenCounts(**{field.name: count(field.name) for field in fields(TokenCounts)})


def _num_computed(ids: NDArray[np.uint32], block_size: int | None, cached_blocks: set[int]) -> int:
    """Count the tokens of a prompt that are not in the cache; add its full blocks to the cache.

    As in vLLM, the key of a block covers its tokens and all tokens before them, and the last token
    of a prompt is always computed.
    """
    if block_size is None:
        return len(ids)
    key, num_cached = 0, 0
    for end in range(block_size, len(ids) + 1, block_size):
        key = hash((key, ids[end - block_size : end].tobytes()))
        num_cached += key in cached_blocks and end < len(ids)
        cached_blocks.add(key)
    return len(ids) - num_cached * block_size


def _spread_by_length(pairs: pa.Table, count: int) -> NDArray[np.int64]:
    """Choose rows evenly from the shortest text to the longest; return them in table order."""
    length_P = num_bytes_of(pairs)
    rank_N = (np.arange(count) + 0.5) * pairs.num_rows / count
    return np.sort(np.argsort(length_P, kind="stable")[rank_N.astype(int)])


def _usual_output(tokenizer: ChatTokenizer, decoding: Decoding) -> float:
    """Return the mean tokens of a reply with its end token; 1 for decode ``expected``.

    A judge that thinks may write as many as it is allowed.
    """
    if decoding.think_tokens is not None:
        one_step = replace(decoding, think_tokens=None, thinking_marks=None)
        return decoding.think_tokens + _usual_output(tokenizer, one_step)
    if decoding.thinking_marks is not None:
        return float(decoding.max_reply_tokens)
    if decoding.kind == "expected":
        return 1.0
    replies: Sequence[str] = decoding.labels or [_USUAL_REPLY]
    if decoding.num_scores:
        scores = decoding.labels or [float(_USUAL_REPLY)]  # labels are texts
        replies = [json.dumps(dict.fromkeys(decoding.score_keys, score)) for score in scores]
    lengths = [len(ids) + 1 for ids in tokenizer.encode_text(replies)]
    return min(float(np.mean(lengths)), decoding.max_reply_tokens)
