"""Compare two runs over the same pairs: two judges, two repeats or two layouts.

Only ratings that are a number in both runs are compared. Intervals come from resampling whole
pairs. All figures of a resample follow from how often each pair is in it and from counts of levels.
(scikit-learn's kappa for each resample would take minutes; a test compares the two.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from encore.analysis.bootstrap import Estimate, draw_rows, middle_95
from encore.analysis.entropy import entropy_weights
from encore.analysis.level_codes import LevelCodes, rule_entropies
from encore.analysis.paired_difference import mean_difference_interval
from encore.analysis.share_intervals import share_interval
from encore.core.errors import InputError
from encore.core.record_table import RecordTable
from encore.core.shown_record import ShownRecord
from encore.warehouse import PairRatings, Ratings, open_ratings, read_pairs_of

# Suffixes: P pairs, R rules, D draws, N rows taken; 2 before PR: chosen and rejected, and
# before that the two runs.

NUM_DRAWS = 500
_MIN_DRAWS = 50
#: Ratings that all draws together may read. That takes seconds, at the worst tens of seconds.
_MAX_DRAWN_RATINGS = 1_000_000_000
#: Intervals from resampling fewer pairs are too narrow.
_FEW_PAIRS = 30
#: A variance below this is rounding.
_ROUNDING = 1e-15

_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleComparison:
    """One rule in two runs, over the responses that both rated; differences are second - first.

    Attributes:
        rule_id: The rule, as in the rule set.
        num_ratings: Responses that both runs rated.
        num_pairs: Pairs whose two responses both runs rated.
        agreement: Share of equal ratings.
        correlation: Pearson's r of the ratings.
        kappa: Cohen's kappa with squared differences, the usual one for ordered levels: 1 is
            perfect, 0 is chance. It is equal to Lin's concordance coefficient.
        mean_difference: Difference of the mean ratings: below 0 the second run is stricter.
        tie_rate: Share of ``num_pairs`` whose two responses the first run rates alike.
        tie_difference: Difference of the two runs' tie rates.
        entropy_difference: Difference of the entropies, in nats.
        accuracy_difference: Difference of the half-credit accuracies, over ``num_pairs``.
        weight_difference: Difference of ENCORE's weights at the paper's temperature.
        flip_rate: Share of ``num_pairs`` whose two responses change order; a tie has no order.
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


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RunComparison(ShownRecord):
    """Result of `compare_runs`.

    Attributes:
        rules: One row for each rule that is in both runs.
        num_pairs: Pairs that are in both runs; the intervals resample them.
        seed: Seed of the resampling.
        num_draws: Number of resamples of the pairs.
        sentence: The result in one sentence.
        notes: Sentences on what limits these figures.
    """

    rules: RecordTable[RuleComparison]
    num_pairs: int
    seed: int
    num_draws: int
    sentence: str
    notes: tuple[str, ...]


def compare_runs(
    ratings: str | Path | Ratings | Any,
    second_ratings: str | Path | Ratings | Any,
    *,
    seed: int = 0,
    num_draws: int = NUM_DRAWS,
) -> RunComparison:
    """Compare the ratings of two runs, rule by rule, over the pairs that are in both.

    >>> compare_runs("ratings.csv", "study").rules[0].agreement.value
    1.0

    Pairs are matched by source and pair_id. Both runs are held in memory: 16 bytes per pair and
    rule for each.

    Args:
        ratings: The first run, in any form that `encore.analysis.analyze.analyze` takes.
        second_ratings: The second run. Its pairs need not be the same.
        seed: Seed of the resampling.
        num_draws: Number of resamples; fewer are drawn if the runs share millions of ratings.

    Raises:
        InputError: Not a ratings table, or no rule or no pair in common.
    """
    opened_runs = [open_ratings(run) for run in (ratings, second_ratings)]
    runs = [read_pairs_of(opened) for opened in opened_runs]
    rule_ids, rating_22PR, group_P = common_ratings(
        runs, labels=[opened.label for opened in opened_runs]
    )
    num_pairs = int(rating_22PR.shape[2])
    num_draws = min(num_draws, max(_MIN_DRAWS, _MAX_DRAWN_RATINGS // rating_22PR.size))
    rules = compare_ratings(rule_ids, rating_22PR, group_P=group_P, seed=seed, num_draws=num_draws)
    return RunComparison(
        rules=RecordTable(rules),
        num_pairs=num_pairs,
        seed=seed,
        num_draws=num_draws,
        sentence=_sentence(rules, num_pairs),
        notes=tuple(_notes(runs, num_pairs)),
    )


def common_ratings(
    runs: Sequence[PairRatings], *, labels: Sequence[str]
) -> tuple[list[str], _Floats, NDArray[np.intp]]:
    """Return the rules in both runs, the ratings of the pairs in both, and the pairs' prompts.

    Ratings have the shape [2, 2, P, R], prompts [P].
    """
    rule_ids = [rule_id for rule_id in runs[0].rule_ids if rule_id in runs[1].rule_ids]
    first, second = (run.source_P + "\0" + run.pair_id_P for run in runs)
    _, *pair_indices = np.intersect1d(first, second, return_indices=True)
    if not rule_ids or not len(pair_indices[0]):
        raise InputError(
            f"{labels[0]} and {labels[1]}: no {'pair' if rule_ids else 'rule'} in common, so "
            "nothing to compare; rate the same pairs under the same rules (pairs are matched by "
            "source and pair_id)"
        )
    rating_22PR = np.stack(
        [
            run.take(index_P).rating_2PR[:, :, [run.rule_ids.index(rule) for rule in rule_ids]]
            for run, index_P in zip(runs, pair_indices, strict=True)
        ]
    )
    with_prompts = next((run for run in range(2) if runs[run].grouped_by == "prompt"), 0)
    return rule_ids, rating_22PR, runs[with_prompts].take(pair_indices[with_prompts]).group_P


def compare_ratings(
    rule_ids: Sequence[str],
    rating_22PR: _Floats,
    *,
    group_P: NDArray[np.intp] | None = None,
    seed: int = 0,
    num_draws: int = NUM_DRAWS,
) -> tuple[RuleComparison, ...]:
    """Compare two ratings of each response, rule by rule, over the responses that have both.

    Args:
        rule_ids: The R rules, in the order of the ratings.
        rating_22PR: Ratings by run, response (chosen, rejected), pair and rule, shape [2, 2, P, R];
            NaN where one is missing.
        group_P: Prompt of each pair, from 0; None if pairs are independent.
        seed: Seed of the resampling.
        num_draws: Number of resamples of the pairs.
    """
    rating_22PR = np.where(np.isnan(rating_22PR).any(axis=0), np.nan, rating_22PR)
    codes = [LevelCodes.from_ratings(rating_2PR) for rating_2PR in rating_22PR]
    num_pairs = int(rating_22PR.shape[2])
    has_rating_2PR = ~np.isnan(rating_22PR[0])

    def figures(row_N: NDArray[np.intp]) -> dict[str, _Floats]:
        entropy_2R = np.stack([rule_entropies(code.histogram(row_N)) for code in codes])
        # A rule without ratings has no weight.
        weight_2R = entropy_weights(np.nan_to_num(entropy_2R, nan=1e300))
        weight_2R[np.isnan(entropy_2R)] = np.nan
        times_P = np.bincount(row_N, minlength=num_pairs).astype(np.float64)
        return _figures(rating_22PR[0], rating_22PR[1], times_P) | {
            "entropy_difference": entropy_2R[1] - entropy_2R[0],
            "weight_difference": weight_2R[1] - weight_2R[0],
        }

    figures_of_all = figures(np.arange(num_pairs))
    rng = np.random.default_rng(seed)
    group_P = np.arange(num_pairs) if group_P is None else group_P
    draws = [figures(row_N) for row_N in draw_rows(group_P, rng=rng, num_draws=num_draws)]
    shares = [_shares(rating_22PR[:, :, :, index], group_P) for index in range(len(rule_ids))]
    return tuple(
        RuleComparison(
            rule_id=rule_id,
            num_ratings=int(has_rating_2PR[:, :, index].sum()),
            num_pairs=int(has_rating_2PR[:, :, index].all(axis=0).sum()),
            **{
                name: _estimate(value_R[index], np.array([draw[name][index] for draw in draws]))
                for name, value_R in figures_of_all.items()
            }
            | shares[index],
        )
        for index, rule_id in enumerate(rule_ids)
    )


def _shares(rating_22P: _Floats, group_P: NDArray[np.intp]) -> dict[str, Estimate]:
    """Return a rule's shares and differences of shares with their intervals over prompts.

    They also have a width where no pair differs. A share or difference without a pair is empty.

    Args:
        rating_22P: Ratings by run, response and pair; NaN where one of the two runs has none.
        group_P: Prompt of each pair, from 0.
    """
    is_rated_2P = ~np.isnan(rating_22P[0])
    is_compared_P = is_rated_2P.all(axis=0)
    win_2P = np.sign(rating_22P[:, 0] - rating_22P[:, 1])[:, is_compared_P]
    tie_2P, compared_P = (win_2P == 0).astype(np.float64), group_P[is_compared_P]
    response_groups = np.stack([group_P, group_P])[is_rated_2P]

    def share(is_hit_N: NDArray[np.bool_], group_N: NDArray[np.intp]) -> Estimate:
        hits_G = np.bincount(group_N, weights=is_hit_N, minlength=1)
        return share_interval(hits_G, np.bincount(group_N, minlength=1))

    def difference(delta_P: _Floats) -> Estimate:
        return mean_difference_interval(delta_P, group_N=compared_P)

    return {
        "agreement": share((rating_22P[0] == rating_22P[1])[is_rated_2P], response_groups),
        "tie_rate": share(tie_2P[0] == 1, compared_P),
        "flip_rate": share(win_2P[0] * win_2P[1] < 0, compared_P),
        "tie_difference": difference(tie_2P[1] - tie_2P[0]),
        "accuracy_difference": difference((win_2P[1] - win_2P[0]) / 2),
    }


def _figures(x_2PR: _Floats, y_2PR: _Floats, times_P: _Floats) -> dict[str, _Floats]:
    """Return the figures of each rule, shape [R]; NaN where one is not defined.

    Args:
        x_2PR: Ratings of the first run.
        y_2PR: Ratings of the second run.
        times_P: Number of times that each pair counts.
    """

    def mean(value_PR: _Floats) -> _Floats:
        """Return the mean over values [.., P, R] that are not NaN."""
        total_R = (times_P @ np.nan_to_num(value_PR)).reshape(-1, value_PR.shape[-1]).sum(axis=0)
        count_R = (times_P @ ~np.isnan(value_PR)).reshape(-1, value_PR.shape[-1]).sum(axis=0)
        return np.asarray(total_R / count_R, dtype=np.float64)

    with np.errstate(divide="ignore", invalid="ignore"):
        mean_x, mean_y = mean(x_2PR), mean(y_2PR)
        x, y = x_2PR - mean_x, y_2PR - mean_y
        var_x, var_y, cov = mean(x * x), mean(y * y), mean(x * y)
        by_chance = var_x + var_y + (mean_x - mean_y) ** 2
        return {
            "correlation": np.clip(cov / np.sqrt(_above_0(var_x) * _above_0(var_y)), -1, 1),
            "kappa": 2 * cov / _above_0(by_chance),
            "mean_difference": mean_y - mean_x,
        }


def _above_0(value_R: _Floats) -> _Floats:
    """Return the values, with NaN for those that are 0 up to rounding."""
    return np.where(value_R > _ROUNDING, value_R, np.nan)


def _estimate(value: float, drawn_D: _Floats) -> Estimate:
    """Return a figure with the 95 % interval of the draws in which it is defined."""
    defined_D = drawn_D[np.isfinite(drawn_D)]
    if not np.isfinite(value) or not len(defined_D):
        return Estimate()
    low, high = middle_95(defined_D)
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


def _notes(runs: Sequence[PairRatings], num_pairs: int) -> Iterator[str]:
    if left_out := sorted(set(runs[0].rule_ids) ^ set(runs[1].rule_ids)):
        yield f"rules in one of the two only, and not compared: {', '.join(left_out)}"
    first, second = (run.num_pairs - num_pairs for run in runs)
    if first or second:
        yield f"pairs in one of the two only, and not compared: {first:,} and {second:,}"
    if num_pairs < _FEW_PAIRS:
        yield f"{num_pairs} pairs are few: intervals from so small a sample are too narrow"
