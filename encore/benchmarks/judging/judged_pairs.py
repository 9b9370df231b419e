"""LLM-as-a-judge: which of a pair's two answers is better, asked in both orders.

A judging is a sharded run (`encore.runs`) whose manifest is ``judging.json``.

Suffixes: P pairs, 2 orders (the chosen answer first, the rejected one first).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from array import array
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
    PROTOCOLS,
    Protocol,
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
from encore.judges.base import Judge, Reply
from encore.reporting import SILENT, Reporter
from encore.runs import Job, RunManifest, Shard, Slice, Tell, run_key_of, run_status, work_through
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
#: A Python list takes some 40 bytes a token, an array 4: prompts are tokenised a few at a time.
_PROMPTS_PER_CHUNK = 500


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
        key: Of the judging.
        judge: The judge's name.
        verdict_P2: 1 where the chosen answer is named, -1 where the rejected one, 0 without
            verdict; in the order of the pairs.
        plan_P: The places of the pairs in the plan's order, which no file's order changes.
        null_reasons: Replies without a verdict, by reason.
    """

    folder: Path
    key: str
    judge: str
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
    chosen = _protocol(pairs, judge, name=protocol, max_reply_tokens=max_reply_tokens)
    identity = _identity(pairs, judge=judge, protocol=chosen, shard_size=shard_size)
    manifest = JudgingManifest(
        judging_key=run_key_of(identity),
        identity=identity,
        versions=package_versions(),
        benchmark=pairs.benchmark.name,
    )
    plan = sorted(range(pairs.num_pairs), key=pairs.keys.__getitem__)

    def start() -> int:
        reporter.started("starting the judge's engine")
        judge.start()
        return 1

    def compute(shard: Shard, tell: Tell) -> Slice:
        asking = _Asking(pairs=pairs, judge=judge, protocol=chosen, manifest=manifest, tell=tell)
        return Slice(table=asking.table(plan[shard.start : shard.stop]))

    folder = out / manifest.judging_key
    job = Job(run_dir=folder, manifest=manifest, compute=compute, start=start)
    report = work_through(job, reporter=reporter)
    reporter.finished()
    if report.failures:
        index, error = next(iter(report.failures.items()))
        raise StudyIncompleteError(
            f"{folder}: {len(report.failures)} of {len(manifest.shards)} shards failed "
            f"(shard {index}: {error}); run the same command again to judge only these"
        )
    return _read(folder, manifest, plan)


def _protocol(
    pairs: BenchmarkPairs, judge: Judge, *, name: str, max_reply_tokens: int | None
) -> Protocol:
    """The protocol of a judging that is possible.

    Raises:
        InputError: No pairs, or replies that leave no room for a prompt.
    """
    if not pairs.pairs:
        raise InputError(f"benchmark {pairs.benchmark.name}: no pairs to judge")
    chosen = PROTOCOLS[name]
    if max_reply_tokens is not None:
        chosen = dataclasses.replace(chosen, max_reply_tokens=max_reply_tokens)
    context = judge.identity.max_model_len
    if chosen.max_reply_tokens >= context:
        raise InputError(
            f"protocol {chosen.name}: replies of up to {chosen.max_reply_tokens} tokens leave "
            f"no room for a prompt in the judge's context of {context}; give --max-reply-tokens, "
            "or the protocol verdict-only"
        )
    return chosen


def _read(folder: Path, manifest: JudgingManifest, plan: list[int]) -> JudgedPairs:
    """All verdicts of a complete judging."""
    columns = ["preferred", "null_reason"]
    paths = run_status(folder, JudgingManifest).paths
    table = pa.concat_tables([pq.ParquetFile(path).read(columns=columns) for path in paths])
    number_N = np.array([_NUMBER_OF[one] for one in table["preferred"].to_pylist()], dtype=np.int8)
    verdict_P2 = np.empty((len(plan), len(ORDERS)), dtype=np.int8)
    verdict_P2[plan] = number_N.reshape(verdict_P2.shape)
    reasons = table["null_reason"].drop_null().value_counts().to_pylist()
    return JudgedPairs(
        folder=folder,
        key=manifest.judging_key,
        judge=manifest.judge,
        verdict_P2=verdict_P2,
        plan_P=np.array(plan, dtype=np.intp),
        null_reasons=dict(sorted((one["values"], one["counts"]) for one in reasons)),
    )


def _identity(
    pairs: BenchmarkPairs, *, judge: Judge, protocol: Protocol, shard_size: int
) -> dict[str, Any]:
    judge_identity = dataclasses.asdict(judge.identity)
    judge_identity["engine_args"] = dict(judge.identity.engine_args)
    return {
        "format": 1,
        "judge": judge_identity,
        "protocol": protocol.name,
        "prompt_sha256": prompt_digest(protocol),
        "criterion_ids": [CRITERION_ID],
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asking:
    """What it takes to make the rows of one shard."""

    pairs: BenchmarkPairs
    judge: Judge
    protocol: Protocol
    manifest: JudgingManifest
    tell: Tell

    def table(self, places: Sequence[int]) -> pa.Table:
        """The rows (`VERDICTS`) of some pairs, asked for now; a pair's prompts are neighbours."""
        items = [(place, order) for place in places for order in ORDERS]
        prompts = self._prompts(items)
        asked = [index for index, token_ids in enumerate(prompts) if token_ids is not None]
        replies: list[Reply] = []
        if asked:  # else all prompts of the shard are too long
            replies = self.judge.reply(
                [prompts[index] or () for index in asked],
                max_reply_tokens=self.protocol.max_reply_tokens,
                on_progress=self.tell,
            )
        reply_of = dict(zip(asked, replies, strict=True))
        rows = [self._row(*item, reply_of.get(index)) for index, item in enumerate(items)]
        return pa.Table.from_pylist(rows, schema=VERDICTS)

    def _prompts(self, items: Sequence[tuple[int, str]]) -> list[Sequence[int] | None]:
        """Token ids of each prompt, None where it does not fit: an answer is never cut."""
        limit = self.judge.identity.max_model_len - self.protocol.max_reply_tokens
        prompts: list[Sequence[int] | None] = []
        for start in range(0, len(items), _PROMPTS_PER_CHUNK):
            texts = [
                render_comparison(
                    self.pairs.pairs[place],
                    is_chosen_first=order == ORDERS[0],
                    protocol=self.protocol,
                )
                for place, order in items[start : start + _PROMPTS_PER_CHUNK]
            ]
            prompts += [
                array("I", token_ids) if len(token_ids) <= limit else None
                for token_ids in self.judge.tokenizer.encode(texts)
            ]
        return prompts

    def _row(self, place: int, order: str, reply: Reply | None) -> dict[str, str | None]:
        verdict, null_reason = parse_verdict(reply)
        preferred = None
        if verdict is not None:
            preferred = "chosen" if (verdict == "A") == (order == ORDERS[0]) else "rejected"
        return {
            "row_id": self.pairs.row_id_P[place],
            "subset": self.pairs.subset_P[place],
            "pair_id": self.pairs.pairs[place].pair_id,
            "order": order,
            "criterion": CRITERION_ID,
            "verdict": verdict,
            "preferred": preferred,
            "null_reason": null_reason,
            "raw_reply": None if reply is None else reply.text,
            "judge": self.manifest.judge,
            "run_key": self.manifest.judging_key,
        }
