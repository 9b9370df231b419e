"""How far two runs over the same pairs agree: two judges, two repeats or two layouts.

Compared are the ratings that are a number in both. Intervals come from resampling whole pairs: all
figures of a sample follow from how often each pair is in it and from counts of levels.
(scikit-learn's kappa for each sample would take minutes; a test compares.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from encore.analysis.level_codes import LevelCodes, rule_entropies
from encore.analysis.resampling import Estimate, draw_rows, middle_95
from encore.core.errors import InputError
from encore.warehouse import PairRatings, Ratings, open_ratings, read_pairs_of
from encore.weighting.schemes.encore import entropy_weights

# Suffixes: P pairs, R rules, D draws, N rows taken; 2 before PR: chosen and rejected, and
# before that the two runs.

NUM_DRAWS = 500
_MIN_DRAWS = 50
#: Ratings that all draws together may go through: seconds, tens at the worst.
_WORK = 1_000_000_000
#: Resampling fewer pairs than these gives intervals that are too narrow.
_FEW_PAIRS = 30
#: A variance below this is rounding.
_ROUNDING = 1e-15

_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleComparison:
    """One rule in two runs, over the responses that both rated; differences are second - first.

    Attributes:
        rule_id: The rule.
        num_ratings: Responses that both rated.
        num_pairs: Pairs whose two responses both rated.
        agreement: Share of equal ratings.
        correlation: Pearson's r of the ratings.
        kappa: Cohen's kappa with squared differences, the usual one for ordered levels: 1 is
            perfect, 0 what chance gives. It is equal to Lin's concordance coefficient.
        mean_difference: Of the ratings: which run is stricter.
        tie_rate: Of the first: pairs whose responses it rates alike, over ``num_pairs``.
        tie_difference: Of the tie rates.
        entropy_difference: Of the entropies, in nats.
        accuracy_difference: Of the half-credit accuracies, over ``num_pairs``.
        weight_difference: Of ENCORE's weights at the paper's temperature.
        flip_rate: Pairs whose two responses change order, over ``num_pairs``; a tie has none.
    """

    rule_id: str
    num_ratings: int
    num_pairs: int
    agreement: Estimate
    correlation: Estimate
    kappa: Estimate
    mean_difference: Estimate
    tie_rate: Estimate
    tie_difference: Estimate
    entropy_difference: Estimate
    accuracy_difference: Estimate
    weight_difference: Estimate
    flip_rate: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class RunComparison:
    """Two runs over the same pairs.

    Attributes:
        rules: One row for each rule that is in both.
        num_pairs: Pairs that are in both: what the intervals resample.
        seed: Of the resampling.
        num_draws: How many resamples.
        sentence: The result in words.
        notes: Plain sentences on what limits these figures.
    """

    rules: tuple[RuleComparison, ...]
    num_pairs: int
    seed: int
    num_draws: int
    sentence: str
    notes: tuple[str, ...]


def compare_runs(
    ratings: str | Path | Ratings | Any,
    other: str | Path | Ratings | Any,
    *,
    seed: int = 0,
    num_draws: int = NUM_DRAWS,
) -> RunComparison:
    """Compare the ratings of two runs, rule by rule, over the pairs that are in both.

    Pairs are matched by source and pair_id. Holds both inputs in memory: 16 bytes a pair and rule
    for each.

    Args:
        ratings: As for `encore.analysis.analyze.analyze`.
        other: The other run, likewise; it may hold fewer pairs, or others besides.
        seed: Of the resampling.
        num_draws: Resamples; fewer where the two share millions of ratings.

    Raises:
        InputError: No ratings table, no rule or no pair in common.
    """
    opened = [open_ratings(one) for one in (ratings, other)]
    both = [read_pairs_of(one) for one in opened]
    rule_ids, rating_22PR = _in_common(both, labels=[one.label for one in opened])
    num_pairs = int(rating_22PR.shape[2])
    num_draws = min(num_draws, max(_MIN_DRAWS, _WORK // rating_22PR.size))
    rules = compare_ratings(rule_ids, rating_22PR, seed=seed, num_draws=num_draws)
    return RunComparison(
        rules=rules,
        num_pairs=num_pairs,
        seed=seed,
        num_draws=num_draws,
        sentence=_sentence(rules, num_pairs),
        notes=tuple(_notes(both, num_pairs)),
    )


def _in_common(both: Sequence[PairRatings], *, labels: Sequence[str]) -> tuple[list[str], _Floats]:
    """The rules in both, and each run's ratings of the pairs in both, shape [2, 2, P, R]."""
    rule_ids = [rule_id for rule_id in both[0].rule_ids if rule_id in both[1].rule_ids]
    first, second = (one.source_P + "\0" + one.pair_id_P for one in both)
    _, *rows = np.intersect1d(first, second, return_indices=True)
    if not rule_ids or not len(rows[0]):
        raise InputError(
            f"{labels[0]} and {labels[1]}: no {'pair' if rule_ids else 'rule'} in common, so "
            "nothing to compare; rate the same pairs under the same rules (pairs are matched by "
            "source and pair_id)"
        )
    rating_22PR = np.stack(
        [
            one.take(row_P).rating_2PR[:, :, [one.rule_ids.index(rule) for rule in rule_ids]]
            for one, row_P in zip(both, rows, strict=True)
        ]
    )
    return rule_ids, rating_22PR


def compare_ratings(
    rule_ids: Sequence[str], rating_22PR: _Floats, *, seed: int = 0, num_draws: int = NUM_DRAWS
) -> tuple[RuleComparison, ...]:
    """Two ratings of each response, compared rule by rule over the responses that have both.

    Args:
        rule_ids: The R rules.
        rating_22PR: The first and the second rating of chosen and rejected responses; NaN where
            one is missing, shape [2, 2, P, R].
        seed: Of the resampling.
        num_draws: Resamples of the pairs.
    """
    rating_22PR = np.where(np.isnan(rating_22PR).any(axis=0), np.nan, rating_22PR)
    codes = [LevelCodes.from_ratings(rating_2PR) for rating_2PR in rating_22PR]
    num_pairs = int(rating_22PR.shape[2])
    is_there_2PR = ~np.isnan(rating_22PR[0])

    def figures(row_N: NDArray[np.intp]) -> dict[str, _Floats]:
        entropy_2R = np.stack([rule_entropies(one.histogram(row_N)) for one in codes])
        # A rule without ratings has no weight.
        weight_2R = entropy_weights(np.nan_to_num(entropy_2R, nan=1e300))
        weight_2R[np.isnan(entropy_2R)] = np.nan
        times_P = np.bincount(row_N, minlength=num_pairs).astype(np.float64)
        return _figures(rating_22PR[0], rating_22PR[1], times_P) | {
            "entropy_difference": entropy_2R[1] - entropy_2R[0],
            "weight_difference": weight_2R[1] - weight_2R[0],
        }

    found = figures(np.arange(num_pairs))
    rng = np.random.default_rng(seed)
    draws = [figures(row_N) for row_N in draw_rows(num_pairs, rng=rng, num_draws=num_draws)]
    return tuple(
        RuleComparison(
            rule_id=rule_id,
            num_ratings=int(is_there_2PR[:, :, place].sum()),
            num_pairs=int(is_there_2PR[:, :, place].all(axis=0).sum()),
            **{
                name: _estimate(value_R[place], np.array([draw[name][place] for draw in draws]))
                for name, value_R in found.items()
            },
        )
        for place, rule_id in enumerate(rule_ids)
    )


def _figures(x_2PR: _Floats, y_2PR: _Floats, times_P: _Floats) -> dict[str, _Floats]:
    """The figures of each rule, shape [R], over pairs that count so often; NaN if not defined."""

    def mean(value_PR: _Floats) -> _Floats:
        """Of what is known of [.., P, R]."""
        total_R = (times_P @ np.nan_to_num(value_PR)).reshape(-1, value_PR.shape[-1]).sum(axis=0)
        known_R = (times_P @ ~np.isnan(value_PR)).reshape(-1, value_PR.shape[-1]).sum(axis=0)
        return np.asarray(total_R / known_R, dtype=np.float64)

    with np.errstate(divide="ignore", invalid="ignore"):
        mean_x, mean_y = mean(x_2PR), mean(y_2PR)
        x, y = x_2PR - mean_x, y_2PR - mean_y
        var_x, var_y, cov = mean(x * x), mean(y * y), mean(x * y)
        by_chance = var_x + var_y + (mean_x - mean_y) ** 2
        wins = [np.sign(one[0] - one[1]) / 2 for one in (x_2PR, y_2PR)]
        ties = [1 - 2 * np.abs(won) for won in wins]
        return {
            "agreement": mean(np.where(np.isnan(x), np.nan, x_2PR == y_2PR)),
            "correlation": np.clip(cov / np.sqrt(_above_0(var_x) * _above_0(var_y)), -1, 1),
            "kappa": 2 * cov / _above_0(by_chance),
            "mean_difference": mean_y - mean_x,
            "tie_rate": mean(ties[0]),
            "tie_difference": mean(ties[1] - ties[0]),
            "accuracy_difference": mean(wins[1] - wins[0]),
            "flip_rate": mean(np.where(np.isnan(wins[0]), np.nan, wins[0] * wins[1] < 0)),
        }


def _above_0(value_R: _Floats) -> _Floats:
    """NaN for what is 0 up to rounding."""
    return np.where(value_R > _ROUNDING, value_R, np.nan)


def _estimate(value: float, drawn_D: _Floats) -> Estimate:
    """A figure with the 2.5 and 97.5 % quantiles of the draws in which it is defined."""
    known_D = drawn_D[np.isfinite(drawn_D)]
    if not np.isfinite(value) or not len(known_D):
        return Estimate()
    low, high = middle_95(known_D)
    return Estimate(value=float(value), low=low, high=high)


def _sentence(rules: Sequence[RuleComparison], num_pairs: int) -> str:
    total = sum(row.num_ratings for row in rules)
    if not total:
        return f"{num_pairs:,} pairs are in both, but no response is rated in both"
    equal = sum(row.num_ratings * (row.agreement.value or 0.0) for row in rules) / total
    change, rule_id = max((abs(row.weight_difference.value or 0.0), row.rule_id) for row in rules)
    return (
        f"{num_pairs:,} pairs in both: {equal:.1%} of {total:,} ratings are equal; ENCORE's "
        f"weights differ by at most {change:.4f} (rule {rule_id})"
    )


def _notes(both: Sequence[PairRatings], num_pairs: int) -> Iterator[str]:
    if left_out := sorted(set(both[0].rule_ids) ^ set(both[1].rule_ids)):
        yield f"rules in one of the two only, and not compared: {', '.join(left_out)}"
    first, second = (one.num_pairs - num_pairs for one in both)
    if first or second:
        yield f"pairs in one of the two only, and not compared: {first:,} and {second:,}"
    if num_pairs < _FEW_PAIRS:
        yield f"{num_pairs} pairs are few: intervals from so small a sample are too narrow"
