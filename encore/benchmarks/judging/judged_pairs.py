"""LLM-as-a-judge: which of a pair's two answers is better, asked in both orders.

A judging is a sharded run (`encore.runs`) whose manifest is ``judging.json``.

Suffixes: P pairs, 2 orders (the chosen answer first, the rejected one first).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pydantic import model_validator

from encore.benchmarks.judging.comparison_prompt import (
    CRITERION_ID,
    MAX_REPLY_TOKENS,
    prompt_digest,
    render_comparison,
)
from encore.benchmarks.judging.verdicts import (
    CHOSEN,
    NEITHER,
    REJECTED,
    VERDICT_PARSER_VERSION,
    parse_verdict,
)
from encore.benchmarks.pairs import BenchmarkPairs
from encore.errors import InputError, StudyIncompleteError
from encore.judges.base import Judge, Reply, ask
from encore.reporting import SILENT, Reporter
from encore.run_work import Job, RunReport, Tell, work_through
from encore.runs import RunManifest, Shard, Slice, run_key_of, run_status
from encore.versions import package_versions

ORDERS = ("chosen-first", "rejected-first")

#: Grain: one row per (pair of the benchmark in the plan's order, order), sorted so.
VERDICTS = pa.schema(
    [
        *(
            pa.field(name, pa.string(), nullable=False)
            for name in ("row_id", "subset", "pair_id", "order", "criterion")
        ),
        *(pa.field(name, pa.string()) for name in ("verdict", "preferred")),
        *(pa.field(name, pa.string()) for name in ("null_reason", "raw_reply")),
        *(pa.field(name, pa.string(), nullable=False) for name in ("judge", "run_key")),
    ]
)
_NUMBER_OF = {"chosen": CHOSEN, "rejected": REJECTED, None: NEITHER}


class JudgingManifest(RunManifest):
    """The manifest of a judging.

    ``benchmark`` is what the benchmark was called when these pairs were judged first, for people:
    the key covers the pairs themselves.
    """

    FILE: ClassVar[str] = "judging.json"
    KEY_FIELD: ClassVar[str] = "judging_key"
    COMMAND: ClassVar[str] = "encore judge"
    DOING: ClassVar[str] = "judging"
    DONE: ClassVar[str] = "judged"
    UNIT: ClassVar[str] = "replies"

    judging_key: str
    benchmark: str

    @model_validator(mode="before")
    @classmethod
    def _of_earlier_versions(cls, content: Any) -> Any:
        """Their manifests call the key otherwise."""
        if isinstance(content, dict) and "key" in content:
            content = {**content, "judging_key": content["key"]}
            del content["key"]
        return content

    @property
    def title(self) -> str:
        """The judge."""
        return f"judge {self.judge}"

    @property
    def judge(self) -> str:
        """The judge's name."""
        return str(self.identity["judge"]["name"])

    @property
    def rows_per_pair(self) -> int:
        """Both orders."""
        return len(ORDERS)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JudgedPairs:
    """A judge's verdicts on a benchmark.

    Attributes:
        folder: Where the verdicts and the judge's words lie.
        manifest: Of the judging.
        verdict_P2: 1 where the chosen answer is named, -1 where the rejected one, 0 without
            verdict; in the order of the pairs.
        plan_P: The places of the pairs in the plan's order, which no file's order changes.
        null_reasons: Replies without a verdict, by reason.
    """

    folder: Path
    manifest: JudgingManifest
    verdict_P2: NDArray[np.int8]
    plan_P: NDArray[np.intp]
    null_reasons: Mapping[str, int]


def rows_digest(pairs: BenchmarkPairs) -> str:
    """SHA-256 over subset, row id and content of every pair, the same for every order."""
    rows = json.dumps(sorted(pairs.keys), ensure_ascii=False)
    return hashlib.sha256(rows.encode()).hexdigest()


def judge_pairs(
    pairs: BenchmarkPairs,
    *,
    judge: Judge,
    out: Path,
    protocol: str = "explained",
    max_reply_tokens: int | None = None,
    shard_size: int = 100,
    reporter: Reporter = SILENT,
) -> JudgedPairs:
    """Ask a judge which answer of each pair is better, in both orders; finished shards are reused.

    The protocol is RewardBench's pairwise one (verdicts ``[[A]]`` and ``[[B]]``, half credit where
    there is none) in our own words, with these differences: both orders instead of one drawn
    unseeded, one user message instead of a system and a user one (any judge can read it), and a
    conversation of several turns is judged, not skipped.

    Args:
        pairs: The benchmark's.
        judge: Stays open.
        out: The folder that holds judgings; this one goes to ``out/<key>``.
        protocol: ``explained`` or ``verdict-only``.
        max_reply_tokens: Of a reply; default: the protocol's.
        shard_size: Pairs in each file.
        reporter: Told how far it is, in replies.

    Raises:
        InputError: No pairs, replies longer than the judge's context.
        StudyIncompleteError: Shards failed; the same call judges only these.
        EncoreError: The judge does not load.
    """
    most, context = max_reply_tokens or MAX_REPLY_TOKENS[protocol], judge.identity.max_model_len
    if not pairs.pairs:
        raise InputError(f"benchmark {pairs.benchmark.name}: no pairs to judge")
    if most >= context:
        raise InputError(
            f"protocol {protocol}: replies of up to {most} tokens leave no room for a prompt in "
            f"the judge's context of {context}; give --max-reply-tokens, or the protocol "
            "verdict-only"
        )
    manifest = _manifest(
        pairs, judge, protocol=protocol, max_reply_tokens=most, shard_size=shard_size
    )
    plan = sorted(range(pairs.num_pairs), key=pairs.keys.__getitem__)

    def start() -> int:
        reporter.started("starting the judge's engine")
        judge.start()
        return 1

    def compute(shard: Shard, tell: Tell) -> Slice:
        asked = [(place, order) for place in plan[shard.start : shard.stop] for order in ORDERS]
        texts = (
            render_comparison(
                pairs.pairs[place], is_chosen_first=order == ORDERS[0], protocol=protocol
            )
            for place, order in asked
        )
        prompts = [  # an answer is never cut
            token_ids if len(token_ids) <= context - most else None
            for token_ids in judge.tokenizer.encode_each(texts)
        ]
        replies = ask(judge, prompts, max_reply_tokens=most, on_progress=tell)
        return Slice(table=_table(pairs, asked, replies, manifest))

    folder = out / manifest.judging_key
    job = Job(run_dir=folder, manifest=manifest, compute=compute, start=start)
    report = work_through(job, reporter=reporter)
    reporter.finished()
    refuse_failures(folder, report, manifest)
    return _read(folder, manifest, plan)


def _manifest(
    pairs: BenchmarkPairs,
    judge: Judge,
    *,
    protocol: str,
    max_reply_tokens: int,
    shard_size: int,
) -> JudgingManifest:
    identity = {
        "format": 1,
        "judge": dataclasses.asdict(judge.identity),
        "protocol": protocol,
        "prompt_sha256": prompt_digest(protocol),
        "criterion_ids": [CRITERION_ID],
        "decoding": {
            "temperature": 0.0,
            "max_reply_tokens": max_reply_tokens,
            "parser": VERDICT_PARSER_VERSION,
        },
        "data_sha256": rows_digest(pairs),
        "plan": {
            "order": "subset, row_id, pair_id",
            "shard_size": shard_size,
            "num_pairs": pairs.num_pairs,
        },
    }
    return JudgingManifest(
        judging_key=run_key_of(identity),
        identity=identity,
        versions=package_versions(),
        benchmark=pairs.benchmark.name,
    )


def _read(folder: Path, manifest: JudgingManifest, plan: list[int]) -> JudgedPairs:
    """All verdicts of a complete judging."""
    columns = ["preferred", "null_reason"]
    paths = run_status(folder, JudgingManifest).paths
    table = pa.concat_tables([pq.ParquetFile(path).read(columns=columns) for path in paths])
    number_N = np.array([_NUMBER_OF[one] for one in table["preferred"].to_pylist()], dtype=np.int8)
    verdict_P2 = np.empty((len(plan), len(ORDERS)), dtype=np.int8)
    verdict_P2[plan] = number_N.reshape(verdict_P2.shape)
    reasons = Counter(table["null_reason"].drop_null().to_pylist())
    return JudgedPairs(
        folder=folder,
        manifest=manifest,
        verdict_P2=verdict_P2,
        plan_P=np.array(plan, dtype=np.intp),
        null_reasons=dict(sorted(reasons.items())),
    )


def refuse_failures(folder: Path, report: RunReport, manifest: RunManifest) -> None:
    """Stop where shards failed.

    Raises:
        StudyIncompleteError: How many, and why the first of them.
    """
    if report.failures:
        index, error = next(iter(report.failures.items()))
        raise StudyIncompleteError(
            f"{folder}: {len(report.failures)} of {len(manifest.shards)} shards failed "
            f"(shard {index}: {error}); run the same command again: only these are "
            f"{manifest.DONE}"
        )


def _table(
    pairs: BenchmarkPairs,
    asked: Sequence[tuple[int, str]],
    replies: Sequence[Reply | None],
    manifest: JudgingManifest,
) -> pa.Table:
    rows = []
    for (place, order), reply in zip(asked, replies, strict=True):
        verdict, null_reason = parse_verdict(reply)
        preferred = None
        if verdict is not None:
            preferred = "chosen" if (verdict == "A") == (order == ORDERS[0]) else "rejected"
        rows.append(
            {
                "row_id": pairs.row_id_P[place],
                "subset": pairs.subset_P[place],
                "pair_id": pairs.pairs[place].pair_id,
                "order": order,
                "criterion": CRITERION_ID,
                "verdict": verdict,
                "preferred": preferred,
                "null_reason": null_reason,
                "raw_reply": None if reply is None else reply.text,
                "judge": manifest.judge,
                "run_key": manifest.judging_key,
            }
        )
    return pa.Table.from_pylist(rows, schema=VERDICTS)
