"""Every head's score of a benchmark's pairs: computed once, kept as head scores with their subset.

The folder is one that `encore.scores.head_scores.read_head_scores` reads: ``score.json`` and
verified shards, of which a second call scores only those that are missing or damaged.

Suffixes: P pairs of the benchmark, N responses (two a pair), R heads.
"""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from encore.benchmarks.benchmark_config import Truncation
from encore.benchmarks.pairs import BenchmarkPairs
from encore.data.records import RESPONSES, PreferencePair
from encore.errors import InputError
from encore.model.conversation import ConversationTokenizer, EncodedPair, EncodedResponse
from encore.model.opening import OpenedModel
from encore.model.templates import freeze_template, plain_template
from encore.reporting import SILENT, Reporter
from encore.scores.folder import ScoreManifest, claim_folder, identity_of, inspect_scores
from encore.scores.head_scores import HeadScores, read_head_scores
from encore.scores.run import (
    HowToCompute,
    OutOfDeviceMemoryError,
    refuse_not_finite,
    score_encoded,
)
from encore.scores.schema import head_scores_schema
from encore.shards import Shard, ShardFile, put_shard, remove_stale_temporaries, run_key_of
from encore.shards import shard_lock as lock_of
from encore.training.disk import named_when_full
from encore.versions import package_versions

#: Pairs in one file: what a stopped process loses at most.
SHARD_SIZE = 1000
_BUSY_POLL_SECONDS = 1.0
#: Whether pairs that were cut compare with the `rewardbench` tool's results on them.
_COMPARABLE = {
    "encore": "the rewardbench tool cuts otherwise, so these pairs do not compare with its results",
    "rewardbench": "they are cut as the rewardbench tool cuts them",
}
#: Scores are random digits: statistics would serve nobody.
_PARQUET_OPTIONS: dict[str, Any] = {
    "compression": "zstd",
    "store_schema": False,
    "write_statistics": False,
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
    manifest = _manifest(pairs, opened, truncation=truncation, shard_size=shard_size)
    job = _Job(
        folder=root / manifest.score_key,
        manifest=manifest,
        pairs=tuple(pair for pair, _ in planned),
        subsets=tuple(subset for _, subset in planned),
        opened=opened,
        how=how or HowToCompute(),
        truncation=truncation,
        reporter=reporter,
    )
    kept = "finished shards are kept"
    with named_when_full(job.folder, purpose="a benchmark's head scores", kept=kept):
        claim_folder(job.folder, manifest)
        reporter.started(shown or opened.name, total=len(planned))
        num_computed = sum(_finished(job, shard) for shard in manifest.shards)
    num_cut_rows, num_cut_tokens = _cut_of(job)
    return ScoredBenchmark(
        folder=job.folder,
        model=opened.name,
        model_digest=opened.digest,
        scores=aligned_scores(read_head_scores(job.folder), pairs=pairs),
        num_cut_rows=num_cut_rows,
        num_cut_tokens=num_cut_tokens,
        num_computed=num_computed,
        notes=tuple(_notes(job, num_cut_rows=num_cut_rows, num_cut_tokens=num_cut_tokens)),
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """One scoring: its folder, its plan, the pairs in plan order, the model."""

    folder: Path
    manifest: ScoreManifest
    pairs: tuple[PreferencePair, ...]
    subsets: tuple[str, ...]
    opened: OpenedModel
    how: HowToCompute
    truncation: Truncation
    reporter: Reporter


def _planned(pairs: BenchmarkPairs) -> list[tuple[PreferencePair, str]]:
    """The pairs with their subsets by content hash: the data's own order changes no shard."""
    found = zip(pairs.pairs, pairs.subset_P, strict=True)
    return sorted(found, key=lambda one: (one[0].pair_id, one[0].source))


def _manifest(
    pairs: BenchmarkPairs, opened: OpenedModel, *, truncation: Truncation, shard_size: int
) -> ScoreManifest:
    head_scores_schema(opened.model.head_ids)  # refuses names that cannot be columns
    identity = identity_of(
        model_digest=opened.digest,
        head_ids=opened.model.head_ids,
        mean=opened.model.mean_R.tolist(),
        data_sha256=pairs.digest,
        num_pairs=pairs.num_pairs,
        shard_size=shard_size,
    )
    identity["benchmark"] = {"name": pairs.benchmark.name, "version": pairs.benchmark.version}
    if truncation != "encore":
        identity["truncation"] = truncation
    return ScoreManifest(
        score_key=run_key_of(identity),
        identity=identity,
        model=opened.name,
        synthetic=[f"model: {part}" for part in opened.metadata.get("synthetic", ())],
        versions=package_versions(),
    )


def _finished(job: _Job, shard: Shard) -> int:
    """How many pairs of a shard were scored now: 0 for one that was whole; waits for others."""
    while True:
        if _is_whole(job, shard):
            job.reporter.advanced(shard.num_pairs)
            return 0
        with lock_of(job.folder, shard.index) as is_mine:
            if is_mine:
                if _is_whole(job, shard):
                    continue
                return _score(job, shard)
        time.sleep(_BUSY_POLL_SECONDS)


def _is_whole(job: _Job, shard: Shard) -> bool:
    return isinstance(inspect_scores(job.folder, job.manifest, shard), ShardFile)


def _score(job: _Job, shard: Shard) -> int:
    remove_stale_temporaries(job.folder, shard.index)
    rows = slice(shard.start, shard.start + shard.num_pairs)
    pairs, subsets = job.pairs[rows], job.subsets[rows]
    head_ids = job.manifest.head_ids

    num_told = 0

    def scored(num_responses: int, _num_tokens: int) -> None:
        nonlocal num_told
        job.reporter.advanced(num_responses // 2 - num_told)
        num_told = num_responses // 2

    encoded = encoded_pairs(job.opened, pairs, truncation=job.truncation)
    try:
        score_NR, _ = score_encoded(job.opened, encoded, how=job.how, on_scored=scored)
    except torch.OutOfMemoryError as error:
        raise OutOfDeviceMemoryError(
            f"scoring with {job.manifest.model}: the device has not enough memory for "
            f"{job.how.tokens_per_microbatch or 'so many'} tokens at a time; give fewer with "
            "--tokens-per-microbatch: finished shards are kept"
        ) from error
    refuse_not_finite(score_NR, pairs, head_ids=head_ids)
    table = _table(pairs, subsets, score_NR, head_ids=head_ids)
    footer = {"run_key": job.manifest.score_key, **_cut(encoded), "versions": package_versions()}
    put_shard(job.folder, shard, table, footer=footer, options=_PARQUET_OPTIONS)
    return shard.num_pairs


def _cut(encoded: Sequence[EncodedPair]) -> dict[str, int]:
    """How many pairs lost text to the maximum length, and how many tokens."""
    num_cut = [pair.chosen.num_cut + pair.rejected.num_cut for pair in encoded]
    return {"num_cut_pairs": sum(num > 0 for num in num_cut), "num_cut_tokens": sum(num_cut)}


def _table(
    pairs: Sequence[PreferencePair],
    subsets: Sequence[str],
    score_NR: Any,
    *,
    head_ids: Sequence[str],
) -> pa.Table:
    """Two rows a pair, the chosen response first."""
    twice = range(len(RESPONSES))
    keys = {
        "pair_id": [pair.pair_id for pair in pairs for _ in twice],
        "source": [pair.source for pair in pairs for _ in twice],
        "subset": [subset for subset in subsets for _ in twice],
        "response": [response for _ in pairs for response in RESPONSES],
    }
    heads = {head_id: score_NR[:, place] for place, head_id in enumerate(head_ids)}
    return pa.table({**keys, **heads}, schema=head_scores_schema(head_ids))


def _cut_of(job: _Job) -> tuple[int, int]:
    """Over-long pairs and their lost tokens, as the shards say."""
    found = [inspect_scores(job.folder, job.manifest, shard) for shard in job.manifest.shards]
    footers = [one.footer for one in found if isinstance(one, ShardFile)]
    return (
        sum(footer["num_cut_pairs"] for footer in footers),
        sum(footer["num_cut_tokens"] for footer in footers),
    )


def _notes(job: _Job, *, num_cut_rows: int, num_cut_tokens: int) -> Iterator[str]:
    name, tokenizer = job.manifest.model, job.opened.tokenizer
    if num_cut_rows:
        yield (
            f"{name}: {num_cut_rows} of {len(job.pairs)} pairs are longer than "
            f"{tokenizer.max_length} tokens and lost {num_cut_tokens} tokens of their oldest text; "
            f"{_COMPARABLE[job.truncation]}"
        )
    is_ours = "objective" in job.opened.metadata
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
