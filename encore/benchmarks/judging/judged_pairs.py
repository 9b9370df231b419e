"""Verdicts of an LLM judge: it names the better answer of each pair, in both orders.

A judging is a sharded run (`encore.runs.shard_files`) whose manifest is ``judging.json``.

Suffixes: P pairs, 2 orders (the chosen answer first, the rejected one first).
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from encore.benchmarks.benchmark_options import JudgeBenchmarkConfig, VerdictConfig
from encore.benchmarks.benchmark_pairs import BenchmarkPairs
from encore.benchmarks.judging import pairwise_protocol
from encore.core.errors import InputError
from encore.core.reporting import SILENT, Reporter
from encore.core.versions import package_versions
from encore.judges.base import Decoding, Judge, ask_judge, encode_prompts
from encore.runs.identity import run_identity, run_key_of
from encore.runs.manifest import JudgedManifest, Shard
from encore.runs.shard_files import ShardTable, run_status
from encore.runs.worker import Job, ReportRows, raise_for_failed_shards, work_through

ORDERS = ("chosen-first", "rejected-first")

_NULLABLE_COLUMNS = ("verdict", "preferred", "null_reason", "raw_reply")
_COLUMNS = ("row_id", "subset", "pair_id", "order", *_NULLABLE_COLUMNS, "judge", "run_key")
#: Grain: one row per (pair, order), sorted by the plan's order of pairs and then by order.
VERDICTS = pa.schema(
    [pa.field(name, pa.string(), nullable=name in _NULLABLE_COLUMNS) for name in _COLUMNS]
)


class JudgingManifest(JudgedManifest):
    """The manifest of a judging, whose rows are the verdicts in both orders of a pair.

    ``benchmark`` is the benchmark's name at the first judging of these pairs. The key covers the
    pairs themselves, not the name.
    """

    FILE: ClassVar[str] = "judging.json"
    KEY_FIELD: ClassVar[str] = "judging_key"
    COMMAND: ClassVar[str] = "encore judge"
    DOING: ClassVar[str] = "judging"
    DONE: ClassVar[str] = "judged"
    UNIT: ClassVar[str] = "replies"

    judging_key: str
    benchmark: str

    @property
    def rows_per_pair(self) -> int:
        """Return 2: one row for each order of the two answers."""
        return 2


class Verdicts(NamedTuple):
    """Verdicts of a judge on all pairs of a benchmark.

    Attributes:
        manifest: Manifest of the judging.
        verdict_P2: In the order of the pairs: 1 if the chosen answer is named, 0 if the rejected
            one is, NaN without verdict.
        null_reasons: Number of replies without verdict, by reason.
    """

    manifest: JudgingManifest
    verdict_P2: NDArray[np.float64]
    null_reasons: Mapping[str, int]


def judge_pairs(
    pairs: BenchmarkPairs,
    config: JudgeBenchmarkConfig,
    *,
    judge: Judge,
    reporter: Reporter = SILENT,
) -> Verdicts:
    """Ask a judge for the better answer of each pair, in both orders. Finished shards are reused.

    The protocol is RewardBench's pairwise one (verdicts ``[[A]]`` and ``[[B]]``, half credit
    without a verdict) in our own words. The differences: both orders instead of one unseeded draw,
    one user message instead of two (any judge accepts it), and conversations of several turns.

    Args:
        pairs: Pairs of the benchmark.
        config: Protocol, length of replies and shards. Verdicts go to ``config.out/<key>``.
        judge: Opened judge. It stays open.
        reporter: Receives the progress, in replies.

    Raises:
        InputError: Replies may be longer than the judge's context.
        StudyIncompleteError: Shards failed. The same call judges only these.
    """
    manifest = _manifest(pairs, judge, config)
    # Indices of the pairs in an order that does not depend on the order of files.
    plan = sorted(range(pairs.num_pairs), key=pairs.keys.__getitem__)

    def start() -> int:
        reporter.started("opening the judge")
        judge.start()
        return 1

    def compute(shard: Shard, report_rows: ReportRows) -> ShardTable:
        indices = plan[shard.start : shard.stop]
        return ShardTable(
            table=_ask(pairs, indices, judge=judge, manifest=manifest, report_rows=report_rows)
        )

    folder = config.out / manifest.key
    job = Job(run_dir=folder, manifest=manifest, compute=compute, start=start)
    report = work_through(job, reporter=reporter)
    reporter.finished()
    raise_for_failed_shards(folder, report.failures, num_shards=len(manifest.shards))
    return _read(folder, manifest, plan)


def _way_of_asking(config: VerdictConfig) -> tuple[str, int]:
    """Return the protocol, and the largest number of tokens of a reply."""
    protocol = config.protocol or "explained"
    return protocol, config.max_reply_tokens or pairwise_protocol.MAX_REPLY_TOKENS[protocol]


def _manifest(pairs: BenchmarkPairs, judge: Judge, config: JudgeBenchmarkConfig) -> JudgingManifest:
    protocol, max_reply_tokens = _way_of_asking(config)
    context = judge.identity.max_model_len
    if judge.tokenizer is not None and max_reply_tokens >= context:
        raise InputError(
            f"replies of up to {max_reply_tokens} tokens leave no room for a prompt in the judge's "
            f"context of {context}; give --max-reply-tokens, or --protocol verdict-only"
        )
    identity = run_identity(
        config,
        kind=VerdictConfig,
        order="subset, row_id, pair_id",
        num_pairs=pairs.num_pairs,
        shard_size=config.shard_size,
        judge=dataclasses.asdict(judge.identity),
        prompt_sha256=pairwise_protocol.prompt_digest(protocol),
        parser=pairwise_protocol.VERDICT_PARSER_VERSION,
        data_sha256=pairs.digest,
    )
    return JudgingManifest(
        judging_key=run_key_of(identity),
        identity=identity,
        versions=package_versions(),
        benchmark=pairs.benchmark.name,
    )


def _ask(
    pairs: BenchmarkPairs,
    indices: list[int],
    *,
    judge: Judge,
    manifest: JudgingManifest,
    report_rows: ReportRows,
) -> pa.Table:
    """Return the verdicts on pairs. A prompt that is too long is not sent: answers are not cut."""
    protocol, max_reply_tokens = _way_of_asking(VerdictConfig(**manifest.settings))
    questions = [(index, order) for index in indices for order in ORDERS]
    texts = (
        pairwise_protocol.render_comparison(
            pairs.pairs[index], is_chosen_first=order == ORDERS[0], protocol=protocol
        )
        for index, order in questions
    )
    decoding = Decoding(max_reply_tokens=max_reply_tokens)
    prompts = encode_prompts(judge, texts, decoding=decoding)
    sessions = [pairs.pairs[index].pair_id for index, _ in questions]
    replies = ask_judge(
        judge, list(prompts), decoding=decoding, on_progress=report_rows, sessions=sessions
    )
    rows = []
    for (index, order), reply in zip(questions, replies, strict=True):
        verdict, null_reason = pairwise_protocol.parse_verdict(reply)
        is_chosen = (verdict == "A") == (order == ORDERS[0])
        rows.append(
            {
                "row_id": pairs.row_id_P[index],
                "subset": pairs.subset_P[index],
                "pair_id": pairs.pairs[index].pair_id,
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
    """Read all verdicts of a complete judging."""
    paths = run_status(folder, JudgingManifest).paths
    columns = ["preferred", "null_reason"]
    table = pa.concat_tables([pq.ParquetFile(path).read(columns=columns) for path in paths])
    is_chosen_N = pc.equal(table["preferred"], "chosen").cast(pa.float64()).to_numpy()
    verdict_P2 = np.empty((len(plan), len(ORDERS)))
    verdict_P2[plan] = is_chosen_N.reshape(verdict_P2.shape)
    reasons = Counter(table["null_reason"].drop_null().to_pylist())
    return Verdicts(manifest, verdict_P2, dict(sorted(reasons.items())))
