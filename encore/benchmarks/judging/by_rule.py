"""Per-rule preference judging: one verdict a rule by its preference rule, then a vote of the rules.

Suffixes: P pairs, C criteria (the rules), 2 orders (the chosen answer first, the rejected first).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from encore.benchmarks.judging.bounds import headline_bounds
from encore.benchmarks.judging.driver import OnProgress
from encore.benchmarks.judging.folder import JudgingManifest, Verdicts
from encore.benchmarks.judging.pairwise import SHARD_SIZE, read_judging, run_judging
from encore.benchmarks.judging.prompts import OVERALL, rule_criteria
from encore.benchmarks.judging.rule_weights import checked_weights
from encore.benchmarks.judging.summary import (
    VerdictSummary,
    bounds_remark,
    missing_remarks,
    reliability_remark,
    remarks,
    summarize,
    vote_credits,
)
from encore.benchmarks.judging.synthetic import synthetic_in_judging
from encore.benchmarks.judging.verdicts import VerdictNullReason
from encore.config import JudgeConfig
from encore.data.records import RuleSet
from encore.errors import InputError
from encore.judges.base import Judge

if TYPE_CHECKING:
    from encore.benchmarks.pairs import BenchmarkPairs


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JudgedByRule:
    """A judge's verdicts on a benchmark under every rule, and the vote of the rules.

    Attributes:
        pairs: The benchmark's.
        folder: Where the verdicts and the judge's words lie.
        key: Of the judging.
        judge: The judge's name.
        protocol: The protocol's name.
        verdict_PC2: 1 where the chosen answer is named, -1 where the rejected one, 0 without
            verdict; int8, shape [P, C, 2].
        rules: Accuracy, consistency, pull of the first place and missing verdicts of each rule, in
            the rules' order.
        weights: Of the vote, by rule, as given; equal ones make it a majority vote.
        credit_P: 1 where the vote goes to the chosen answer, 1/2 for a draw, else 0; shape [P].
        null_reasons: Replies without a verdict, by reason.
        synthetic: What of benchmark and judge is synthetic, in words.
    """

    pairs: BenchmarkPairs
    folder: Path
    key: str
    judge: str
    protocol: str
    verdict_PC2: NDArray[np.int8]
    rules: tuple[VerdictSummary, ...]
    weights: Mapping[str, float]
    credit_P: NDArray[np.float64]
    null_reasons: Mapping[VerdictNullReason, int]
    synthetic: tuple[str, ...]

    @property
    def rule_ids(self) -> tuple[str, ...]:
        """The rules."""
        return tuple(rule.criterion_id for rule in self.rules)

    @property
    def accuracy(self) -> float:
        """Mean credit of the vote over pairs."""
        return float(self.credit_P.mean())

    @property
    def bounds(self) -> tuple[float, float]:
        """The benchmark's headline if all missing verdicts were wrong, and if all were right."""
        vote = partial(vote_credits, weight_C=_vector(self.weights))
        return headline_bounds(self.verdict_PC2, vote, pairs=self.pairs)

    @property
    def num_unparsed(self) -> int:
        """Replies, of two a pair and rule, without a verdict."""
        return sum(rule.num_unparsed for rule in self.rules)

    @property
    def reliability(self) -> str:
        """How many verdicts there are and how consistent they are, in a sentence."""
        return reliability_remark(self.rules, judge=self.judge)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader must know beside that, a sentence each."""
        found = missing_remarks(
            self.null_reasons, judge=self.judge, num_replies=self.verdict_PC2.size
        )
        if found:
            figure = self.pairs.benchmark.headline
            found.append(bounds_remark(self.bounds, figure=figure, judge=self.judge))
        if not any(rule.num_verdicts for rule in self.rules):
            found.append(self.reliability)
        for rule in self.rules:
            found += remarks(rule, judge=self.judge)
        return tuple(found)

    def revote(self, weights: Mapping[str, float] | None) -> JudgedByRule:
        """The same verdicts under another vote; None: a majority vote."""
        vote_weights = _vote_weights(weights, rule_ids=self.rule_ids)
        credit_P = vote_credits(self.verdict_PC2, weight_C=_vector(vote_weights))
        return dataclasses.replace(self, weights=vote_weights, credit_P=credit_P)


def judge_by_rule(
    pairs: BenchmarkPairs,
    *,
    judge: JudgeConfig | Judge,
    rules: RuleSet,
    out: Path,
    weights: Mapping[str, float] | None = None,
    protocol: str = "verdict-only",
    max_reply_tokens: int | None = None,
    shard_size: int = SHARD_SIZE,
    on_progress: OnProgress | None = None,
) -> JudgedByRule:
    """Ask a judge for every rule which answer the rule prefers, in both orders; let the rules vote.

    A rule's vote is the mean of its two orders: one that contradicts itself abstains. The weights
    change no verdict, so another vote costs nothing (`JudgedByRule.revote`).

    Args:
        pairs: The benchmark's.
        judge: Which judge; or one that is open, which stays open.
        rules: Whose preference rules are judged by.
        out: The folder that holds judgings; this one goes to ``out/<key>``.
        weights: Of the vote, one a rule, for instance ENCORE's of a training study; None: each
            rule has one vote.
        protocol: As of `encore.benchmarks.judging.pairwise.judge_pairs`; an explanation a rule and
            order costs a hundred times as much.
        max_reply_tokens: Of a reply; default: the protocol's.
        shard_size: Pairs in each file.
        on_progress: Told how far it is.

    Raises:
        InputError: Weights of other rules, or as `judge_pairs`.
        StudyIncompleteError: Shards failed; the same call judges only these.
        EncoreError: The judge does not load.
    """
    vote_weights = _vote_weights(weights, rule_ids=rules.rule_ids)
    run, verdicts = run_judging(
        pairs,
        judge=judge,
        out=out,
        criteria=rule_criteria(rules),
        protocol=protocol,
        max_reply_tokens=max_reply_tokens,
        shard_size=shard_size,
        on_progress=on_progress,
    )
    return _judged(run.folder, run.manifest, verdicts, pairs=pairs, weights=vote_weights)


def read_judged_by_rule(
    folder: Path, *, pairs: BenchmarkPairs, weights: Mapping[str, float] | None = None
) -> JudgedByRule:
    """What `judge_by_rule` left in a folder, read without a judge.

    Raises:
        InputError: No judging, one of other pairs, or not one by rule; weights of other rules.
        StudyIncompleteError: Shards are missing or damaged.
    """
    manifest, verdicts = read_judging(folder, pairs=pairs)
    if manifest.criterion_ids == (OVERALL.criterion_id,):
        raise InputError(
            f"{folder}: a judging of the pairs as a whole, not by rule; read it with "
            "read_judged_pairs"
        )
    vote_weights = _vote_weights(weights, rule_ids=manifest.criterion_ids)
    return _judged(folder, manifest, verdicts, pairs=pairs, weights=vote_weights)


def _judged(
    folder: Path,
    manifest: JudgingManifest,
    verdicts: Verdicts,
    *,
    pairs: BenchmarkPairs,
    weights: Mapping[str, float],
) -> JudgedByRule:
    rules = tuple(
        summarize(verdicts.verdict_PC2[:, place], criterion_id=rule_id)
        for place, rule_id in enumerate(manifest.criterion_ids)
    )
    return JudgedByRule(
        pairs=pairs,
        folder=folder,
        key=manifest.key,
        judge=manifest.judge,
        protocol=manifest.protocol,
        verdict_PC2=verdicts.verdict_PC2,
        rules=rules,
        weights=weights,
        credit_P=vote_credits(verdicts.verdict_PC2, weight_C=_vector(weights)),
        null_reasons=verdicts.null_reasons,
        synthetic=synthetic_in_judging(
            benchmark=pairs.benchmark.name,
            judge=manifest.judge,
            revision=manifest.judge_revision,
        ),
    )


def _vote_weights(
    weights: Mapping[str, float] | None, *, rule_ids: Sequence[str]
) -> dict[str, float]:
    """A weight for every rule, in the rules' order."""
    if weights is None:
        return dict.fromkeys(rule_ids, 1 / len(rule_ids))
    return checked_weights(weights, rule_ids=rule_ids)


def _vector(weights: Mapping[str, float]) -> NDArray[np.float64]:
    return np.array(list(weights.values()), dtype=np.float64)
