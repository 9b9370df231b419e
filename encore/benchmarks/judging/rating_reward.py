"""The rule judge: a judge's own ratings, weighted, as a reward without any reward model.

The benchmark's answers are rated under every rule exactly as training data are; the reward of an
answer is the weighted sum of its ratings, with weights from a training study. Nothing is trained,
and no label of the benchmark enters.

Suffixes: P pairs, R rules.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from encore.benchmarks.judging.rated import RatedBenchmark
from encore.benchmarks.judging.rule_weights import checked_weights
from encore.errors import InputError
from encore.warehouse import PairRatings, Warehouse, open_ratings, read_pair_ratings
from encore.weighting.composed import credits_of

if TYPE_CHECKING:
    from encore.benchmarks.pairs import BenchmarkPairs

_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RatingReward:
    """Weighted ratings as rewards of a benchmark's pairs.

    Attributes:
        judge: Who rated.
        weights: By rule, in the rules' order.
        reward_P2: Of the chosen and of the rejected answer, over the rules that rated both, their
            weights scaled to sum 1; NaN where no rule did. Shape [P, 2].
        credit_P: 1, 1/2 for a tie or where nothing is rated, 0; shape [P].
        num_ties: Pairs whose two rewards are equal.
        num_partly_rated: Pairs that some rule with a weight, but not every one, rated on both
            sides.
        num_unrated: Pairs that no rule with a weight rated on both sides.
        notes: What a reader should know, a sentence each.
    """

    judge: str
    weights: Mapping[str, float]
    reward_P2: _Floats
    credit_P: _Floats
    num_ties: int
    num_partly_rated: int
    num_unrated: int
    notes: tuple[str, ...]

    @property
    def accuracy(self) -> float:
        """Mean credit over pairs."""
        return float(self.credit_P.mean())

    @property
    def strict_credit_P(self) -> _Floats:
        """The same with ties and what is not rated as losses, as ties of reward models are."""
        return np.asarray(self.credit_P == 1, dtype=np.float64)


def rating_reward(
    pairs: BenchmarkPairs, rated: RatedBenchmark, *, weights: Mapping[str, float]
) -> RatingReward:
    """The weighted ratings of a rated benchmark as rewards.

    Args:
        pairs: The benchmark's.
        rated: From `encore.benchmarks.judging.rated.rate_benchmark`.
        weights: By rule; those of a training study (`encore.weighting.weigh.weights`).

    Raises:
        InputError: Weights of other rules than the ratings, pairs that are not in the study.
    """
    source = open_ratings(rated.study, run=rated.run_key)
    assert source.manifest is not None  # the ratings are a study's run
    by_rule = checked_weights(weights, rule_ids=source.manifest.rule_ids)
    with Warehouse(source) as warehouse:
        ratings = read_pair_ratings(warehouse, rule_ids=source.manifest.rule_ids)
    rated_pairs = ratings.take(_rows_of(pairs, ratings))
    weight_R = np.array(list(by_rule.values()), dtype=np.float64)
    reward_P2 = weighted_rewards(rated_pairs, weight_R=weight_R)
    is_unrated_P = np.isnan(reward_P2[:, 0])
    margin_P = np.nan_to_num(reward_P2[:, 0] - reward_P2[:, 1])
    credit_P = credits_of(margin_P)  # no margin: one half, as for a tie
    lacks_P = np.isnan(rated_pairs.margin_PR[:, weight_R > 0]).any(axis=1)
    num_partly, num_unrated = int((lacks_P & ~is_unrated_P).sum()), int(is_unrated_P.sum())
    return RatingReward(
        judge=rated.judge,
        weights=by_rule,
        reward_P2=reward_P2,
        credit_P=credit_P,
        num_ties=int(((credit_P == 1 / 2) & ~is_unrated_P).sum()),
        num_partly_rated=num_partly,
        num_unrated=num_unrated,
        notes=tuple(_notes(rated, num_partly=num_partly, num_unrated=num_unrated)),
    )


def weighted_rewards(ratings: PairRatings, *, weight_R: _Floats) -> _Floats:
    """The weighted mean rating of both answers, over the rules that rated both; shape [P, 2].

    A missing rating is no rating of 0: both answers are measured by the same rules. NaN where no
    rule with a weight rated both.

    Args:
        ratings: Of P pairs under R rules.
        weight_R: None negative.
    """
    is_rated_PR = ~np.isnan(ratings.margin_PR)
    total_P = is_rated_PR @ weight_R
    unrated_P = np.full(len(total_P), np.nan)
    columns = [
        np.divide(
            np.where(is_rated_PR, rating_PR, 0.0) @ weight_R,
            total_P,
            out=unrated_P.copy(),
            where=total_P > 0,
        )
        for rating_PR in (ratings.chosen_PR, ratings.rejected_PR)
    ]
    return np.stack(columns, axis=1)


def _rows_of(pairs: BenchmarkPairs, ratings: PairRatings) -> NDArray[np.intp]:
    """Where each pair of the benchmark stands among the rated ones."""
    row_of = {pair_id: row for row, pair_id in enumerate(ratings.pair_id_P.tolist())}
    missing = [pair.pair_id for pair in pairs.pairs if pair.pair_id not in row_of]
    if missing:
        raise InputError(
            f"{len(missing)} of {len(pairs.pairs)} pairs have no ratings, first {missing[0]}; rate "
            "these pairs"
        )
    return np.array([row_of[pair.pair_id] for pair in pairs.pairs], dtype=np.intp)


def _notes(rated: RatedBenchmark, *, num_partly: int, num_unrated: int) -> Iterator[str]:
    judge = rated.judge
    for reason, count in rated.null_reasons.items():
        yield f"judge {judge}: {count} ratings are missing: {reason.replace('_', ' ')}"
    if num_partly:
        yield (
            f"judge {judge}: {num_partly} pairs lack ratings under some rules and are ranked by "
            "the others"
        )
    if num_unrated:
        yield (
            f"judge {judge}: {num_unrated} pairs have no rule that rated both answers and count "
            "one half; because of them no rewards are kept beside the credits"
        )
