"""Every head's score of a benchmark's pairs: computed once, kept as head scores with their subset.

The folder is one that `encore.scoring.head_scores.read_head_scores` reads: ``score.json`` and
verified shards, of which a second call scores only those that are missing or damaged.

Suffixes: P pairs of the benchmark, N responses (two a pair), R heads.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from encore.benchmarks.benchmark_config import Truncation
from encore.benchmarks.pairs import BenchmarkPairs
from encore.data.records import PreferencePair
from encore.errors import EncoreError, InputError
from encore.model.conversation import (
    ConversationTokenizer,
    EncodedPair,
    EncodedResponse,
    freeze_template,
    plain_template,
)
from encore.model.opening import OpenedModel
from encore.reporting import SILENT, Reporter
from encore.scoring.head_scores import HeadScores, read_head_scores
from encore.scoring.scoring_run import HowToCompute, PairInSubset, score_manifest, score_run

#: Pairs in one file: what a stopped process loses at most.
SHARD_SIZE = 1000
#: Whether pairs that were cut compare with the `rewardbench` tool's results on them.
_COMPARABLE = {
    "encore": "the rewardbench tool cuts otherwise, so these pairs do not compare with its results",
    "rewardbench": "they are cut as the rewardbench tool cuts them",
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScoredBenchmark:
    """One model's head scores of a benchmark.

    Attributes:
        folder: Where they are kept.
        model: The model's name, never a machine's path.
        model_digest: SHA-256 of everything that the scores follow from.
        scores: One row a pair of the benchmark, in its order, with its subset.
        num_cut_rows: Pairs of which a response was too long and lost its oldest tokens.
        num_cut_tokens: Those tokens.
        num_computed: Pairs scored by this call; 0 where all were there already.
        notes: What a reader should know of these scores, a sentence each.
    """

    folder: Path
    model: str
    model_digest: str
    scores: HeadScores
    num_cut_rows: int
    num_cut_tokens: int
    num_computed: int
    notes: tuple[str, ...]


def score_benchmark(
    pairs: BenchmarkPairs,
    *,
    opened: OpenedModel,
    root: Path,
    how: HowToCompute | None = None,
    truncation: Truncation = "encore",
    shard_size: int = SHARD_SIZE,
    shown: str = "",
    reporter: Reporter = SILENT,
) -> ScoredBenchmark:
    """The head scores of a benchmark's pairs, in ``root/<key>``: computed, or found there.

    The same model and pairs always mean the same key. Several processes may score at a time, each
    another shard.

    Args:
        pairs: Of the benchmark.
        opened: The model.
        root: Holds a folder for each model and each version of the pairs.
        how: What changes speed and memory, and scores by rounding alone.
        truncation: How a text that is too long is cut (`encoded_pairs`).
        shard_size: Pairs in each file.
        shown: What the reporter calls this scoring; default: the model's name.
        reporter: Told how far it is, in pairs.

    Raises:
        InputError: A pair that the model's template refuses; the folder holds something else.
        EncoreError: A score that is not finite, a full disk, too little memory on the device.
        KeyboardInterrupt: Finished shards are kept.
    """
    planned = _planned(pairs)
    version = {"name": pairs.benchmark.name, "version": pairs.benchmark.version}
    how_cut = {} if truncation == "encore" else {"truncation": truncation}
    manifest = score_manifest(
        opened,
        data_sha256=pairs.digest,
        num_pairs=pairs.num_pairs,
        shard_size=shard_size,
        further={"benchmark": version, **how_cut},
    )
    folder = root / manifest.score_key
    report = score_run(
        folder,
        manifest,
        lambda shard: planned[shard.start : shard.stop],
        opened=opened,
        how=how,
        encode=partial(encoded_pairs, opened, truncation=truncation),
        title=shown or opened.name,
        reporter=reporter,
    )
    if report.failures:
        index, error = min(report.failures.items())
        raise EncoreError(f"{folder}: shard {index} of the head scores failed: {error}")
    num_cut_rows, num_cut_tokens = report.total("num_cut_pairs"), report.total("num_cut_tokens")
    notes = _notes(
        pairs,
        opened,
        truncation=truncation,
        num_cut_rows=num_cut_rows,
        num_cut_tokens=num_cut_tokens,
    )
    return ScoredBenchmark(
        folder=folder,
        model=opened.name,
        model_digest=opened.digest,
        scores=aligned_scores(read_head_scores(folder), pairs=pairs),
        num_cut_rows=num_cut_rows,
        num_cut_tokens=num_cut_tokens,
        num_computed=sum(one.num_rows // 2 for one in report.outcomes if one.counts),
        notes=tuple(notes),
    )


def encoded_pairs(
    opened: OpenedModel, pairs: Sequence[PreferencePair], *, truncation: str
) -> list[EncodedPair]:
    """The token ids of both responses of every pair, cut to the model's length.

    Args:
        opened: The model.
        pairs: Any pairs.
        truncation: ``encore`` keeps the token that every text of the model begins with.
            ``rewardbench`` cuts plainly from the left, as the `rewardbench` tool does.

    Raises:
        InputError: A pair that the model's template refuses.
    """
    if truncation == "encore":
        return opened.tokenizer.encode_pairs(pairs)
    whole = copy.copy(opened.tokenizer)
    whole.max_length = sys.maxsize
    most = opened.tokenizer.max_length

    def cut(one: EncodedResponse) -> EncodedResponse:
        num_cut = max(0, len(one.token_ids) - most)
        return EncodedResponse(
            token_ids=one.token_ids[num_cut:],
            num_prompt=max(0, one.num_prompt - num_cut),
            num_cut=num_cut,
        )

    return [
        EncodedPair(chosen=cut(pair.chosen), rejected=cut(pair.rejected))
        for pair in whole.encode_pairs(pairs)
    ]


def aligned_scores(scores: HeadScores, *, pairs: BenchmarkPairs) -> HeadScores:
    """Head scores in the order of a benchmark's pairs, a row for each, with its subset.

    Args:
        scores: Of at least these pairs, in any order.
        pairs: Of the benchmark.

    Raises:
        InputError: A pair without scores.
    """
    keys = zip(scores.source_P.tolist(), scores.pair_id_P.tolist(), strict=True)
    row_of = {key: row for row, key in enumerate(keys)}
    wanted = [(pair.source, pair.pair_id) for pair in pairs.pairs]
    missing = [pair_id for source, pair_id in wanted if (source, pair_id) not in row_of]
    if missing:
        raise InputError(
            f"head scores: {len(missing)} of the {len(wanted)} pairs of {pairs.benchmark.name} are "
            f"not among them (the first: {missing[0]}); score this benchmark with this model"
        )
    taken = scores.take(np.array([row_of[key] for key in wanted], dtype=np.int64))
    return replace(taken, subset_P=np.array(pairs.subset_P, dtype=np.object_))


def _planned(pairs: BenchmarkPairs) -> list[PairInSubset]:
    """The pairs with their subsets by content hash: the data's own order changes no shard."""
    found = zip(pairs.pairs, pairs.subset_P, strict=True)
    return sorted(found, key=lambda one: (one[0].pair_id, one[0].source))


def _notes(
    pairs: BenchmarkPairs,
    opened: OpenedModel,
    *,
    truncation: Truncation,
    num_cut_rows: int,
    num_cut_tokens: int,
) -> Iterator[str]:
    name, tokenizer = opened.name, opened.tokenizer
    if num_cut_rows:
        yield (
            f"{name}: {num_cut_rows} of {pairs.num_pairs} pairs are longer than "
            f"{tokenizer.max_length} tokens and lost {num_cut_tokens} tokens of their oldest text; "
            f"{_COMPARABLE[truncation]}"
        )
    is_ours = "objective" in opened.metadata
    if not is_ours and _is_plain(tokenizer):
        yield (
            f"{name}: it reads conversations as plain Human/Assistant turns; right for a model "
            "that was trained on them, not for one that came without its chat template"
        )


def _is_plain(tokenizer: ConversationTokenizer) -> bool:
    """Whether conversations are rendered by our template, for want of the model's own."""
    hf_tokenizer = tokenizer.hf_tokenizer
    end = hf_tokenizer.sep_token or hf_tokenizer.eos_token or ""
    begin = hf_tokenizer.cls_token or hf_tokenizer.bos_token or ""
    return tokenizer.template == freeze_template(plain_template(begin=begin, end=end))
