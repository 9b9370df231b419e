"""Judge a benchmark in one of three ways: by pair, by rule, by rating.

Suffixes: P pairs, 2 answers (chosen, rejected).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from encore.benchmarks.definition import Ties
from encore.benchmarks.judging.by_rule import judge_by_rule
from encore.benchmarks.judging.driver import JudgingProgress, OnProgress
from encore.benchmarks.judging.pairwise import judge_pairs
from encore.benchmarks.judging.prompts import EXPLAINED, VERDICT_ONLY
from encore.benchmarks.judging.rated import own_data_digests, rate_benchmark
from encore.benchmarks.judging.rating_reward import RatingReward, rating_reward
from encore.benchmarks.judging.report import (
    JudgeReport,
    JudgingRequest,
    NullReasons,
    check_way,
)
from encore.benchmarks.judging.results import write_judge_results
from encore.benchmarks.judging.rule_weights import (
    check_origin,
    checked_weights,
    origin_notes,
    weights_by_rule,
)
from encore.benchmarks.judging.summary import VerdictSummary
from encore.benchmarks.judging.synthetic import synthetic_in_judging
from encore.benchmarks.metrics import BenchmarkScore, benchmark_score
from encore.benchmarks.pairs import BenchmarkPairs
from encore.benchmarks.results import PairResults, RowAbout
from encore.data.records import RuleSet
from encore.data.rules import load_rule_set
from encore.reporting import SILENT, SilentReporter
from encore.weighting.vector import WeightVector

#: Parameters of schemes that tell two weight vectors apart in a table.
_TELLING_PARAMS = ("tau", "k", "seed", "rule")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Judged:
    """What one way of judging gave; as in `JudgeReport`, and what is kept of every pair.

    Attributes:
        key: Of the judging or of the rating run.
        name: The row's, unless another one is asked for.
        credit_P: 0 to 1, a tie one half.
        reward_P2: Where every answer has a reward: chosen first, shape [P, 2].
        row_notes: What a table must say of the row and a terminal shows elsewhere.
    """

    folder: Path
    key: str
    judge: str
    name: str
    credit_P: NDArray[np.float64]
    reward_P2: NDArray[np.float64] | None = None
    single_order_score: BenchmarkScore | None = None
    strict_score: BenchmarkScore | None = None
    bounds: tuple[float, float] | None = None
    criteria: tuple[VerdictSummary, ...] = ()
    weights: Mapping[str, float] | None = None
    num_ties: int
    num_unrated: int = 0
    null_reasons: NullReasons
    row_notes: tuple[str, ...]
    notes: tuple[str, ...]
    synthetic: tuple[str, ...]


def judge_benchmark(
    pairs: BenchmarkPairs, request: JudgingRequest, *, on_progress: OnProgress | None = None
) -> JudgeReport:
    """Judge what is not judged yet, write the per-pair results, report.

    Raises:
        InputError: Weights or a protocol that the way of judging has no use for, or none where it
            needs them; weights of other rules, or of the benchmark's own ratings.
        StudyIncompleteError: Shards failed; the same call judges only these.
        EncoreError: The judge does not load.
    """
    check_way(
        request.by,
        has_weights=request.weights is not None,
        protocol=request.protocol,
        max_reply_tokens=request.max_reply_tokens,
    )
    judges = {"pair": _by_pair, "rule": _by_rule, "rating": _by_rating}
    return _report(judges[request.by](pairs, request, on_progress), pairs, request)


def _by_pair(
    pairs: BenchmarkPairs, request: JudgingRequest, on_progress: OnProgress | None
) -> _Judged:
    judged = judge_pairs(
        pairs,
        judge=request.config.judge,
        out=request.out,
        protocol=request.protocol or EXPLAINED.name,
        max_reply_tokens=request.max_reply_tokens,
        seed=request.seed,
        shard_size=request.config.shard_size,
        on_progress=on_progress,
    )
    return _Judged(
        folder=judged.folder,
        key=judged.key,
        judge=judged.judge,
        name=f"judge {judged.judge} ({judged.protocol})",
        credit_P=judged.credit_P,
        single_order_score=benchmark_score(judged.single_order_credit_P, pairs=pairs, ties="half"),
        bounds=judged.bounds,
        criteria=(judged.summary,),
        num_ties=_num_halves(judged.credit_P),
        null_reasons=judged.null_reasons,
        row_notes=(judged.reliability,),
        notes=judged.notes,
        synthetic=judged.synthetic,
    )


def _by_rule(
    pairs: BenchmarkPairs, request: JudgingRequest, on_progress: OnProgress | None
) -> _Judged:
    rules, weights = load_rule_set(request.config.rules), request.weights
    by_rule = None if weights is None else _checked(weights, rules, pairs, request)
    judged = judge_by_rule(
        pairs,
        judge=request.config.judge,
        rules=rules,
        out=request.out,
        weights=by_rule,
        protocol=request.protocol or VERDICT_ONLY.name,
        max_reply_tokens=request.max_reply_tokens,
        shard_size=request.config.shard_size,
        on_progress=on_progress,
    )
    vote = "majority" if weights is None else _weights_name(weights)
    return _Judged(
        folder=judged.folder,
        key=judged.key,
        judge=judged.judge,
        name=f"judge {judged.judge} by rule ({judged.protocol}), {vote}",
        credit_P=judged.credit_P,
        bounds=judged.bounds,
        criteria=judged.rules,
        weights=judged.weights,
        num_ties=_num_halves(judged.credit_P),
        null_reasons=judged.null_reasons,
        row_notes=(judged.reliability,),
        notes=judged.notes,
        synthetic=judged.synthetic,
    )


def _by_rating(
    pairs: BenchmarkPairs, request: JudgingRequest, on_progress: OnProgress | None
) -> _Judged:
    rules, weights = load_rule_set(request.config.rules), request.weights
    assert weights is not None, "check_way asks for them"
    by_rule = _checked(weights, rules, pairs, request)  # before any rating
    rated = rate_benchmark(
        pairs,
        config=request.config,
        out=request.out,
        reporter=_RatingsDone(on_progress) if on_progress else SILENT,
    )
    reward = rating_reward(pairs, rated, weights=by_rule)
    strict = benchmark_score(
        reward.strict_credit_P, pairs=pairs, ties="loss", is_tie_P=reward.credit_P == 1 / 2
    )
    return _Judged(
        folder=rated.study,
        key=rated.run_key,
        judge=rated.judge,
        name=f"judge {rated.judge} by rating, {_weights_name(weights)}",
        credit_P=reward.credit_P,
        reward_P2=None if np.isnan(reward.reward_P2).any() else reward.reward_P2,
        strict_score=strict,
        weights=reward.weights,
        num_ties=reward.num_ties,
        num_unrated=reward.num_unrated,
        null_reasons=rated.null_reasons,
        row_notes=tuple(_tie_notes(reward, strict, ties=pairs.benchmark.ties)),
        notes=reward.notes,
        synthetic=synthetic_in_judging(
            benchmark=pairs.benchmark.name, judge=rated.judge, revision=rated.judge_revision
        ),
    )


def _checked(
    weights: WeightVector, rules: RuleSet, pairs: BenchmarkPairs, request: JudgingRequest
) -> dict[str, float]:
    """The weights by rule, after a look at where they come from."""
    by_rule = checked_weights(weights_by_rule(weights), rule_ids=rules.rule_ids)
    check_origin(
        weights,
        rules=rules,
        benchmark=pairs.benchmark.name,
        own_data=own_data_digests(pairs, out=request.out),
    )
    return by_rule


def _report(judged: _Judged, pairs: BenchmarkPairs, request: JudgingRequest) -> JudgeReport:
    """Write the results, with all that a table must say of them, and report."""
    weights, name = request.weights, request.name or judged.name
    origin = () if weights is None else tuple(origin_notes(weights, judge=judged.judge))
    uses_labels = bool(weights and weights.provenance and weights.provenance.uses_labels)
    notes = (*judged.notes, *origin)
    synthetic = (*judged.synthetic, *request.synthetic)
    about = RowAbout(
        kind="judge",
        params={} if weights is None else dict(weights.params),
        uses_labels=uses_labels,
        synthetic=synthetic,
        notes=tuple(dict.fromkeys((*judged.row_notes, *notes))),
        judge=judged.judge,
        scheme=None if weights is None else weights.scheme,
    )
    results = PairResults(
        name=name,
        ties="half",
        credit_P=judged.credit_P,
        reward_P2=judged.reward_P2,
        about=about,
    )
    return JudgeReport(
        name=name,
        by=request.by,
        judge=judged.judge,
        folder=judged.folder,
        results=write_judge_results(
            judged.folder, results, key=judged.key, weights=weights, pairs=pairs
        ),
        score=benchmark_score(judged.credit_P, pairs=pairs, ties="half"),
        single_order_score=judged.single_order_score,
        strict_score=judged.strict_score,
        bounds=judged.bounds,
        criteria=judged.criteria,
        weights=judged.weights,
        num_pairs=len(pairs.pairs),
        num_ties=judged.num_ties,
        num_unrated=judged.num_unrated,
        null_reasons=judged.null_reasons,
        uses_labels=uses_labels,
        notes=(*pairs.notes, *notes),
        synthetic=synthetic,
    )


def _tie_notes(reward: RatingReward, strict: BenchmarkScore, *, ties: Ties) -> Iterator[str]:
    """What ties are worth to a reward that is not one of a reward model."""
    num_ties, num_unrated = reward.num_ties, reward.num_unrated
    if num_ties or num_unrated:
        as_models = ", as a reward model's ties are," if ties == "loss" else ""
        yield (
            f"judge {reward.judge}: {num_ties} pairs tie and {num_unrated} have no reward, of "
            f"{len(reward.credit_P)}; each counts one half; counted as losses{as_models} they make "
            f"{strict.headline.name} {strict.headline.score:.1%}"
        )


def _num_halves(credit_P: NDArray[np.float64]) -> int:
    return int((credit_P == 1 / 2).sum())


class _RatingsDone(SilentReporter):
    """Tells a callable how many ratings are done, those of shards that were finished before too."""

    def __init__(self, on_progress: OnProgress) -> None:
        self._on_progress = on_progress
        self._num_done = self._num_all = 0

    def started(self, _title: str, *, total: int | None = None, done: int = 0) -> None:
        """The plan."""
        if total is not None:  # else the engine's start
            self._num_all, self._num_done = total, done
            self.advanced(0)

    def advanced(self, count: int = 1, *, note: str = "") -> None:  # noqa: ARG002
        """More ratings are done."""
        self._num_done += count
        self._on_progress(JudgingProgress(num_done=self._num_done, num_replies=self._num_all))


def _weights_name(weights: WeightVector) -> str:
    """The scheme with its parameters: ``encore tau 2.0``."""
    params = [
        f"{name} {weights.params[name]}" for name in _TELLING_PARAMS if name in weights.params
    ]
    return " ".join([weights.scheme, *params])
