"""Open a judging and judge its shards: each is one file that is whole or absent."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from encore.benchmarks.judging.asking import JudgingRun, OnReplies, judged_table
from encore.benchmarks.judging.folder import (
    JudgingManifest,
    inspect_verdicts,
    plan_order,
    rows_digest,
)
from encore.benchmarks.judging.prompts import Criterion, Protocol, prompt_digest
from encore.benchmarks.judging.verdicts import VERDICT_PARSER_VERSION
from encore.benchmarks.old_shards import (
    Shard,
    ShardFile,
    put_shard,
    record_failure,
    remove_stale_temporaries,
    run_key_of,
    shard_lock,
)
from encore.errors import EncoreError, InputError
from encore.judges.base import Judge
from encore.runs import meets_every_shard
from encore.versions import package_versions

if TYPE_CHECKING:
    from encore.benchmarks.pairs import BenchmarkPairs

_PARQUET_OPTIONS: dict[str, Any] = {"compression": "zstd", "store_schema": False}


def open_judging(
    pairs: BenchmarkPairs,
    *,
    judge: Judge,
    criteria: Sequence[Criterion],
    protocol: Protocol,
    out: Path,
    shard_size: int,
) -> JudgingRun:
    """The judging that some pairs, a judge and a protocol define; nothing is written yet.

    Args:
        pairs: The benchmark's.
        judge: Who judges.
        criteria: What by, at least one.
        protocol: How the judge is to answer.
        out: The folder that holds judgings, each under its key.
        shard_size: Pairs in each file.

    Raises:
        InputError: No pairs, or a reply could fill the judge's whole context.
    """
    if not pairs.pairs:
        raise InputError(f"benchmark {pairs.benchmark.name}: no pairs to judge")
    context = judge.identity.max_model_len
    if protocol.max_reply_tokens >= context:
        raise InputError(
            f"protocol {protocol.name}: replies of up to {protocol.max_reply_tokens} tokens leave "
            f"no room for a prompt in the judge's context of {context}; give --max-reply-tokens, "
            "or the protocol verdict-only"
        )
    identity = _identity(
        pairs, judge=judge, criteria=criteria, protocol=protocol, shard_size=shard_size
    )
    manifest = JudgingManifest(
        key=run_key_of(identity),
        identity=identity,
        benchmark=pairs.benchmark.name,
        versions=package_versions(),
    )
    return JudgingRun(
        folder=out / manifest.key,
        manifest=manifest,
        pairs=_planned(pairs),
        criteria=tuple(criteria),
        protocol=protocol,
        judge=judge,
    )


def judge_shard(
    run: JudgingRun, shard: Shard, *, on_replies: OnReplies
) -> Literal["judged", "reused", "busy"]:
    """Judge one shard unless its file validates or another process is at it (``busy``).

    Raises:
        EncoreError: What went wrong, recorded for the next one who asks.
        OSError: No space or no permission, which the next shard would meet too; any other trouble
            of this kind, such as a broken connection, is an `EncoreError` of this shard alone.
    """
    if is_done(run, shard):  # also where nothing may be written
        return "reused"
    with shard_lock(run.folder, shard.index) as is_mine:
        if not is_mine:
            return "busy"
        if is_done(run, shard):
            return "reused"
        remove_stale_temporaries(run.folder, shard.index)
        try:
            table = judged_table(run, shard, on_replies)
            footer = {"run_key": run.manifest.key, "versions": package_versions()}
            put_shard(run.folder, shard, table, footer=footer, options=_PARQUET_OPTIONS)
        except Exception as error:  # an engine can fail in any way
            _record(run, shard, error)
            if isinstance(error, EncoreError) or meets_every_shard(error):
                raise
            reason = " ".join(str(error).split())[:300]
            raise EncoreError(
                f"shard {shard.index}: judging failed ({type(error).__name__}: {reason}); finished "
                "shards are kept, run the same command again"
            ) from error
        return "judged"


def is_done(run: JudgingRun, shard: Shard) -> bool:
    """Whether a shard's file validates."""
    return isinstance(inspect_verdicts(run.folder, run.manifest, shard), ShardFile)


def _planned(pairs: BenchmarkPairs) -> BenchmarkPairs:
    order = plan_order(pairs).tolist()
    return dataclasses.replace(
        pairs,
        pairs=tuple(pairs.pairs[place] for place in order),
        subset_P=tuple(pairs.subset_P[place] for place in order),
        row_id_P=tuple(pairs.row_id_P[place] for place in order),
    )


def _record(run: JudgingRun, shard: Shard, error: Exception) -> None:
    with contextlib.suppress(OSError):  # what failed matters more than its record
        record_failure(run.folder, shard, error)


def _identity(
    pairs: BenchmarkPairs,
    *,
    judge: Judge,
    criteria: Sequence[Criterion],
    protocol: Protocol,
    shard_size: int,
) -> dict[str, Any]:
    judge_identity = dataclasses.asdict(judge.identity)
    judge_identity["engine_args"] = dict(judge.identity.engine_args)
    return {
        "format": 1,
        "judge": judge_identity,
        "protocol": protocol.name,
        "prompt_sha256": prompt_digest(protocol, criteria),
        "criterion_ids": [criterion.criterion_id for criterion in criteria],
        "decoding": {
            "temperature": 0.0,
            "max_reply_tokens": protocol.max_reply_tokens,
            "parser": VERDICT_PARSER_VERSION,
        },
        "data_sha256": rows_digest(pairs),
        "plan": {
            "order": "subset, row_id, pair_id",
            "shard_size": shard_size,
            "num_pairs": len(pairs.pairs),
        },
    }
