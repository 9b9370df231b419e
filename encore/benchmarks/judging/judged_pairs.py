"""LLM-as-a-judge: which of a pair's two answers is better, asked in both orders.

A judging is a sharded run (`encore.runs.run_files`) whose manifest is ``judging.json``.

Suffixes: P pairs, 2 orders (the chosen answer first, the rejected one first).
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pydantic import AliasChoices, Field

from encore.benchmarks.benchmark_config import JudgeBenchmarkConfig
from encore.benchmarks.benchmark_pairs import BenchmarkPairs
from encore.benchmarks.judging import pairwise_protocol
from encore.benchmarks.judging.earlier_versions import earlier_identities
from encore.core.errors import InputError
from encore.core.reporting import SILENT, Reporter
from encore.core.versions import package_versions
from encore.judges.base import Decoding, Judge, ask_judge, encode_prompts
from encore.runs.run_files import (
    JudgedManifest,
    Shard,
    ShardTable,
    finished_shards,
    run_key_of,
    run_status,
)
from encore.runs.shard_runner import Job, ReportRows, raise_for_failed_shards, work_through

ORDERS = ("chosen-first", "rejected-first")

_OF_REPLY = ("verdict", "preferred", "null_reason", "raw_reply")
_COLUMNS = ("row_id", "subset", "pair_id", "order", *_OF_REPLY, "judge", "run_key")
#: Grain: one row per (pair of the benchmark in the plan's order, order), sorted so.
VERDICTS = pa.schema([pa.field(name, pa.string(), nullable=name in _OF_REPLY) for name in _COLUMNS])


class JudgingManifest(JudgedManifest):
    """The manifest of a judging, whose rows are the verdicts in both orders of a pair.

    ``benchmark`` is what the benchmark was called when these pairs were judged first, for people:
    the key covers the pairs themselves.
    """

    FILE: ClassVar[str] = "judging.json"
    KEY_FIELD: ClassVar[str] = "judging_key"
    COMMAND: ClassVar[str] = "encore judge"
    DOING: ClassVar[str] = "judging"
    DONE: ClassVar[str] = "judged"
    UNIT: ClassVar[str] = "replies"

    #: Manifests of earlier versions call it ``key``.
    judging_key: str = Field(  # type: ignore[pydantic-alias]
        validation_alias=AliasChoices("judging_key", "key")
    )
    benchmark: str

    @property
    def rows_per_pair(self) -> int:
        """Return 2: one row for each order of the two answers."""
        return 2


Verdicts = tuple[JudgingManifest, NDArray[np.float64], Mapping[str, int]]


def judge_pairs(
    pairs: BenchmarkPairs,
    config: JudgeBenchmarkConfig,
    *,
    judge: Judge,
    reporter: Reporter = SILENT,
) -> Verdicts:
    """Ask a judge which answer of each pair is better, in both orders; finished shards are reused.

    The protocol is RewardBench's pairwise one (verdicts ``[[A]]`` and ``[[B]]``, half credit where
    there is none) in our own words, with these differences: both orders instead of one drawn
    unseeded, one user message instead of two (any judge reads it), and several turns are judged.

    Args:
        pairs: The benchmark's.
        config: Protocol, length of replies and shards; the judging goes to ``config.out/<key>``.
        judge: Stays open.
        reporter: Told how far it is, in replies.

    Returns:
        The judging's manifest; verdict_P2 in the order of the pairs, 1 where the chosen answer is
        named, 0 where the rejected one, NaN without verdict; replies without a verdict, by reason.

    Raises:
        InputError: Replies longer than the judge's context.
        StudyIncompleteError: Shards failed; the same call judges only these.
    """
    manifest = _stored_manifest(_manifest(pairs, judge, config), pairs, out=config.out)
    # The places of the pairs in an order that no file's order changes.
    plan = sorted(range(pairs.num_pairs), key=pairs.keys.__getitem__)

    def start() -> int:
        reporter.started("starting the judge's engine")
        judge.start()
        return 1

    def compute(shard: Shard, report_rows: ReportRows) -> ShardTable:
        places = plan[shard.start : shard.stop]
        return ShardTable(
            table=_ask(pairs, places, judge=judge, manifest=manifest, report_rows=report_rows)
        )

    folder = config.out / manifest.key
    job = Job(run_dir=folder, manifest=manifest, compute=compute, start=start)
    report = work_through(job, reporter=reporter)
    reporter.finished()
    raise_for_failed_shards(folder, report.failures, num_shards=len(manifest.shards))
    return _read(folder, manifest, plan)


def _manifest(pairs: BenchmarkPairs, judge: Judge, config: JudgeBenchmarkConfig) -> JudgingManifest:
    protocol = config.protocol or "explained"
    most = config.max_reply_tokens or pairwise_protocol.MAX_REPLY_TOKENS[protocol]
    context = judge.identity.max_model_len
    if judge.tokenizer is not None and most >= context:
        raise InputError(
            f"replies of up to {most} tokens leave no room for a prompt in the judge's context of "
            f"{context}; give --max-reply-tokens, or --protocol verdict-only"
        )
    identity = {
        "format": 1,
        "judge": dataclasses.asdict(judge.identity),
        "protocol": protocol,
        "prompt_sha256": pairwise_protocol.prompt_digest(protocol),
        "decoding": {
            "temperature": 0.0,
            "max_reply_tokens": most,
            "parser": pairwise_protocol.VERDICT_PARSER_VERSION,
        },
        "data_sha256": pairs.digest,
        "plan": {
            "order": "subset, row_id, pair_id",
            "shard_size": config.shard_size,
            "num_pairs": pairs.num_pairs,
        },
    }
    return JudgingManifest(
        judging_key=run_key_of(identity),
        identity=identity,
        versions=package_versions(),
        benchmark=pairs.benchmark.name,
    )


def _stored_manifest(
    manifest: JudgingManifest, pairs: BenchmarkPairs, *, out: Path
) -> JudgingManifest:
    """Return the manifest of the folder that has most verdicts of this judging.

    That is this version's folder, or one that an earlier version wrote under another key.
    """
    manifests = [manifest]
    for identity in earlier_identities(manifest.identity, pairs):
        key = run_key_of(identity)
        if (out / key).is_dir():
            changes = {"judging_key": key, "identity": identity}
            manifests.append(manifest.model_copy(update=changes))
    if len(manifests) == 1:
        return manifest
    return max(manifests, key=lambda one: len(finished_shards(out / one.key, one, one.shards)))


def _ask(
    pairs: BenchmarkPairs,
    places: list[int],
    *,
    judge: Judge,
    manifest: JudgingManifest,
    report_rows: ReportRows,
) -> pa.Table:
    """The verdicts on some pairs; a prompt that is too long is not asked: no answer is ever cut."""
    asked = [(place, order) for place in places for order in ORDERS]
    texts = (
        pairwise_protocol.render_comparison(
            pairs.pairs[place],
            is_chosen_first=order == ORDERS[0],
            protocol=manifest.identity["protocol"],
        )
        for place, order in asked
    )
    decoding = Decoding(max_reply_tokens=manifest.identity["decoding"]["max_reply_tokens"])
    prompts = encode_prompts(judge, texts, decoding=decoding)
    sessions = [pairs.pairs[place].pair_id for place, _ in asked]
    replies = ask_judge(
        judge, list(prompts), decoding=decoding, on_progress=report_rows, sessions=sessions
    )
    rows = []
    for (place, order), reply in zip(asked, replies, strict=True):
        verdict, null_reason = pairwise_protocol.parse_verdict(reply)
        is_chosen = (verdict == "A") == (order == ORDERS[0])
        rows.append(
            {
                "row_id": pairs.row_id_P[place],
                "subset": pairs.subset_P[place],
                "pair_id": pairs.pairs[place].pair_id,
                "order": order,
                "verdict": verdict,
                "preferred": verdict and ("chosen" if is_chosen else "rejected"),
                "null_reason": null_reason,
                "raw_reply": reply and reply.text,
                "judge": manifest.judge,
                "run_key": manifest.key,
            }
        )
    return pa.Table.from_pylist(rows, schema=VERDICTS)


def _read(folder: Path, manifest: JudgingManifest, plan: list[int]) -> Verdicts:
    """All verdicts of a complete judging."""
    paths = run_status(folder, JudgingManifest).paths
    columns = ["preferred", "null_reason"]
    table = pa.concat_tables([pq.ParquetFile(path).read(columns=columns) for path in paths])
    is_chosen_N = pc.equal(table["preferred"], "chosen").cast(pa.float64()).to_numpy()
    verdict_P2 = np.empty((len(plan), len(ORDERS)))
    verdict_P2[plan] = is_chosen_N.reshape(verdict_P2.shape)
    reasons = Counter(table["null_reason"].drop_null().to_pylist())
    return manifest, verdict_P2, dict(sorted(reasons.items()))
