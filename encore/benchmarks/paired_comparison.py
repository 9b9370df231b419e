"""Comparison of two models on the same benchmark: paired bootstrap and McNemar's test.

Suffixes: P pairs or units, S pairs of one subset, C distinct differences, D draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from encore.analysis.bootstrap import draw_counts, middle_95
from encore.benchmarks.definition import Weighting
from encore.benchmarks.metrics import unit_weights

NUM_DRAWS = 10_000
#: Differences are rounded to steps of 1/60 if they have more distinct values than steps.
_STEPS = 60

_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Difference of two models on the same pairs.

    Attributes:
        difference: Headline of the first minus headline of the second, -1 to 1.
        ci_low: Lower end of the 95 % interval of the difference, from a paired bootstrap.
        ci_high: Upper end of the 95 % interval of the difference.
        mcnemar_p: Exact two-sided p-value of McNemar's test: the probability of so uneven a split
            of the differing pairs if neither model is better. 1 if no pair differs. None if a
            model has credits between 0 and 1 (a judge's half ties, means over draws): the test
            counts pairs that are right or wrong.
        num_only_first: Pairs (or units) on which the first model has more credit.
        num_only_second: Pairs (or units) on which the second model has more credit.
        num_pairs: Number of all pairs (or units).
    """

    difference: float
    ci_low: float
    ci_high: float
    mcnemar_p: float | None
    num_only_first: int
    num_only_second: int
    num_pairs: int


def compare_credits(
    first_P: _Floats,
    second_P: _Floats,
    *,
    subset_P: Sequence[str] | None = None,
    weighting: Weighting = "examples",
    seed: int = 0,
) -> Comparison:
    """Compare the credits of two models, pair by pair.

    Args:
        first_P: Credits of the first model, 0 to 1.
        second_P: Credits of the second model, for the same pairs in the same order.
        subset_P: Subset of each pair. The bootstrap draws within each subset, because the
            benchmark fixes the sizes of subsets. None: one subset.
        weighting: Weighting of the benchmark's headline.
        seed: Seed of the draws.
    """
    delta_P = np.asarray(first_P - second_P, dtype=np.float64)
    name_P = np.array(subset_P or [""] * len(delta_P), dtype=np.object_)
    weight_P = unit_weights(name_P.tolist(), weighting=weighting)
    difference = float(weight_P @ delta_P)
    masks = (np.asarray(name_P == name) for name in dict.fromkeys(name_P))
    rng, drawn_D = np.random.default_rng(seed), np.zeros(NUM_DRAWS)
    for mask_P in masks:
        drawn_D += weight_P[mask_P].sum() * _drawn_means(delta_P[mask_P], rng)
    low, high = middle_95(drawn_D)
    num_first, num_second = int((delta_P > 0).sum()), int((delta_P < 0).sum())
    mcnemar_p = None
    are_whole = bool(np.isin([first_P, second_P], (0, 1)).all())
    if are_whole:  # a fair coin for each pair that differs
        from scipy.stats import binomtest

        num_differing = num_first + num_second
        mcnemar_p = float(binomtest(num_first, num_differing).pvalue) if num_differing else 1.0
    return Comparison(
        difference=difference,
        ci_low=min(low, difference),
        ci_high=max(high, difference),
        mcnemar_p=mcnemar_p,
        num_only_first=num_first,
        num_only_second=num_second,
        num_pairs=len(delta_P),
    )


def _drawn_means(delta_S: _Floats, rng: np.random.Generator) -> _Floats:
    """Return the mean of each bootstrap draw of the differences.

    The mean depends only on how often each distinct difference is drawn. These counts are
    multinomial, so the cost does not grow with the number of pairs. Rounding many distinct
    differences to steps (only for means over draws) keeps their mean and adds at most 1 / 14,400
    to their variance.
    """
    num, step_S = len(delta_S), delta_S
    if len(np.unique(delta_S)) > 2 * _STEPS + 1:
        step_S = np.rint(delta_S * _STEPS) / _STEPS
    value_C, count_C = np.unique(step_S, return_counts=True)
    drawn_DC = draw_counts(count_C, rng=rng, num_draws=NUM_DRAWS)
    return np.asarray(drawn_DC @ value_C / num + (delta_S - step_S).mean())
