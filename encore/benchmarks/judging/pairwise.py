"""LLM-as-a-judge: which of a pair's two answers is better, asked in both orders.

Suffixes: P pairs, C criteria, 2 orders (the chosen answer first, the rejected one first).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from encore.benchmarks.judging.asking import JudgingRun
from encore.benchmarks.judging.bounds import headline_bounds
from encore.benchmarks.judging.driver import OnProgress, judge_run
from encore.benchmarks.judging.folder import (
    JudgingManifest,
    Verdicts,
    plan_order,
    read_manifest,
    read_verdicts,
    rows_digest,
)
from encore.benchmarks.judging.prompts import OVERALL, Criterion, find_protocol
from encore.benchmarks.judging.run import open_judging
from encore.benchmarks.judging.summary import (
    VerdictSummary,
    bounds_remark,
    missing_remarks,
    pair_credits,
    reliability_remark,
    remarks,
    single_order_credits,
    summarize,
)
from encore.benchmarks.judging.synthetic import synthetic_in_judging
from encore.benchmarks.judging.verdicts import VerdictNullReason
from encore.config import JudgeConfig
from encore.errors import InputError
from encore.judges import open_judge
from encore.judges.base import Judge

if TYPE_CHECKING:
    from encore.benchmarks.pairs import BenchmarkPairs

SHARD_SIZE = 100


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JudgedPairs:
    """A judge's verdicts on a benchmark, and what they amount to.

    Attributes:
        folder: Where the verdicts and the judge's words lie.
        key: Of the judging.
        judge: The judge's name.
        protocol: The protocol's name.
        credit_P: Of each pair the mean credit of its two orders, one without a verdict counting
            one half; float64, shape [P].
        single_order_credit_P: The credit of one order a pair, drawn with the seed: what
            RewardBench's own unseeded draw would have reported; float64, shape [P].
        summary: Accuracy, consistency, the pull of the first place, missing verdicts.
        bounds: The benchmark's headline if all missing verdicts were wrong, and if all were right.
        null_reasons: Replies without a verdict, by reason.
        reliability: How many verdicts there are and how consistent they are, in a sentence.
        notes: What a reader must know beside that, a sentence each.
        synthetic: What of benchmark and judge is synthetic, in words.
    """

    folder: Path
    key: str
    judge: str
    protocol: str
    credit_P: NDArray[np.float64]
    single_order_credit_P: NDArray[np.float64]
    summary: VerdictSummary
    bounds: tuple[float, float]
    null_reasons: Mapping[VerdictNullReason, int]
    reliability: str
    notes: tuple[str, ...]
    synthetic: tuple[str, ...]

    @property
    def accuracy(self) -> float:
        """Mean credit."""
        return self.summary.accuracy

    @property
    def consistency(self) -> float | None:
        """Of the pairs with two verdicts, the share where both name the same answer."""
        return self.summary.consistency

    @property
    def share_first(self) -> float | None:
        """Share of the verdicts that name the answer shown first."""
        return self.summary.share_first

    @property
    def num_unparsed(self) -> int:
        """Replies, of two a pair, without a verdict."""
        return self.summary.num_unparsed


def judge_pairs(
    pairs: BenchmarkPairs,
    *,
    judge: JudgeConfig | Judge,
    out: Path,
    protocol: str = "explained",
    max_reply_tokens: int | None = None,
    seed: int = 0,
    shard_size: int = SHARD_SIZE,
    on_progress: OnProgress | None = None,
) -> JudgedPairs:
    """Ask a judge which answer of each pair is better, in both orders; finished shards are reused.

    The protocol is RewardBench's pairwise one (verdicts ``[[A]]`` and ``[[B]]``, half credit where
    there is none) in our own words, with these differences: both orders instead of one drawn
    unseeded, one user message instead of a system and a user one (any judge can read it), and a
    conversation of several turns is judged, not skipped.

    Args:
        pairs: The benchmark's.
        judge: Which judge; or one that is open, which stays open.
        out: The folder that holds judgings; this one goes to ``out/<key>``.
        protocol: ``explained`` or ``verdict-only``.
        max_reply_tokens: Of a reply; default: the protocol's.
        seed: Of the draw of `JudgedPairs.single_order_credit_P`; changes no verdict.
        shard_size: Pairs in each file.
        on_progress: Told how far it is.

    Raises:
        InputError: No pairs, an unknown protocol, replies longer than the judge's context.
        StudyIncompleteError: Shards failed; the same call judges only these.
        EncoreError: The judge does not load.
    """
    run, verdicts = run_judging(
        pairs,
        judge=judge,
        out=out,
        criteria=(OVERALL,),
        protocol=protocol,
        max_reply_tokens=max_reply_tokens,
        shard_size=shard_size,
        on_progress=on_progress,
    )
    return _judged(run.folder, run.manifest, verdicts, pairs=pairs, seed=seed)


def read_judged_pairs(folder: Path, *, pairs: BenchmarkPairs, seed: int = 0) -> JudgedPairs:
    """What `judge_pairs` left in a folder, read without a judge.

    Args:
        folder: The judging's.
        pairs: The pairs it must be a judging of.
        seed: As of `judge_pairs`.

    Raises:
        InputError: No judging, one of other pairs, or one by rule.
        StudyIncompleteError: Shards are missing or damaged.
    """
    manifest, verdicts = read_judging(folder, pairs=pairs)
    if manifest.criterion_ids != (OVERALL.criterion_id,):
        raise InputError(
            f"{folder}: a judging by {len(manifest.criterion_ids)} rules, not of the pairs as a "
            "whole; read it with read_judged_by_rule"
        )
    return _judged(folder, manifest, verdicts, pairs=pairs, seed=seed)


def run_judging(
    pairs: BenchmarkPairs,
    *,
    judge: JudgeConfig | Judge,
    out: Path,
    criteria: Sequence[Criterion],
    protocol: str,
    max_reply_tokens: int | None,
    shard_size: int,
    on_progress: OnProgress | None,
) -> tuple[JudgingRun, Verdicts]:
    """Open a judging, judge what is not done and close the judge if it was opened here.

    The verdicts come in the order of the pairs.
    """
    chosen = find_protocol(protocol)
    if max_reply_tokens is not None:
        chosen = dataclasses.replace(chosen, max_reply_tokens=max_reply_tokens)
    opened = open_judge(judge) if isinstance(judge, JudgeConfig) else judge
    try:
        run = open_judging(
            pairs,
            judge=opened,
            criteria=criteria,
            protocol=chosen,
            out=out,
            shard_size=shard_size,
        )
        return run, judge_run(run, on_progress=on_progress).in_order_of(pairs)
    finally:
        if isinstance(judge, JudgeConfig):
            opened.close()


def read_judging(folder: Path, *, pairs: BenchmarkPairs) -> tuple[JudgingManifest, Verdicts]:
    """The manifest of a complete judging of some pairs, and all verdicts in their order."""
    manifest = read_manifest(folder)
    if manifest.identity["data_sha256"] != rows_digest(pairs):
        raise InputError(
            f"{folder}: a judging of other pairs ({manifest.num_pairs} of {manifest.benchmark}) "
            f"than these {len(pairs.pairs)} of {pairs.benchmark.name}; judge these"
        )
    return manifest, read_verdicts(folder, manifest).in_order_of(pairs)


def _judged(
    folder: Path,
    manifest: JudgingManifest,
    verdicts: Verdicts,
    *,
    pairs: BenchmarkPairs,
    seed: int,
) -> JudgedPairs:
    verdict_P2 = verdicts.verdict_PC2[:, 0]
    summary = summarize(verdict_P2, criterion_id=OVERALL.criterion_id)
    bounds = headline_bounds(verdict_P2, pair_credits, pairs=pairs)
    notes = missing_remarks(
        verdicts.null_reasons, judge=manifest.judge, num_replies=manifest.num_replies
    )
    if notes:
        figure = pairs.benchmark.headline
        notes.append(bounds_remark(bounds, figure=figure, judge=manifest.judge))
    reliability = reliability_remark([summary], judge=manifest.judge)
    if not summary.num_verdicts:
        notes.append(reliability)
    return JudgedPairs(
        folder=folder,
        key=manifest.key,
        judge=manifest.judge,
        protocol=manifest.protocol,
        credit_P=pair_credits(verdict_P2),
        single_order_credit_P=_single_orders(verdict_P2, pairs=pairs, seed=seed),
        summary=summary,
        bounds=bounds,
        null_reasons=verdicts.null_reasons,
        reliability=reliability,
        notes=(*notes, *remarks(summary, judge=manifest.judge)),
        synthetic=synthetic_in_judging(
            benchmark=pairs.benchmark.name,
            judge=manifest.judge,
            revision=manifest.judge_revision,
        ),
    )


def _single_orders(
    verdict_P2: NDArray[np.int8], *, pairs: BenchmarkPairs, seed: int
) -> NDArray[np.float64]:
    """The credit of one order a pair, drawn in the plan's order: that of the file is nothing."""
    order = plan_order(pairs)
    credit_P = np.empty(len(order))
    credit_P[order] = single_order_credits(verdict_P2[order], seed=seed)
    return credit_P
