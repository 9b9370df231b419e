"""Do two models differ on the same benchmark: paired bootstrap and McNemar's test.

Suffixes: P pairs or units, S those of one subset, C distinct differences, D draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from encore.analysis.resampling import draw_counts, middle_95
from encore.benchmarks.definition import Weighting
from encore.benchmarks.metrics import unit_weights

NUM_DRAWS = 10_000
#: More distinct differences than steps from −1 to 1 are drawn in steps of 1/60.
_STEPS = 60

_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The first model against the second, on the same pairs.

    Attributes:
        difference: Headline of the first minus headline of the second, -1 to 1.
        ci_low: Lower end of its 95 % interval, from a paired bootstrap.
        ci_high: Upper end.
        mcnemar_p: Exact, two-sided: how likely so uneven a split of the pairs on which they differ
            is if neither is better. 1 where they differ on none. None where either model has a
            credit between 0 and 1, as for a judge's half ties and for means over draws: the test
            counts pairs that are right or wrong, and half a pair is no such thing.
        num_only_first: Pairs (or units) for which the first has more credit.
        num_only_second: Those for which the second has.
        num_pairs: All of them.
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
        first_P: Credit of the first model, 0 to 1.
        second_P: Of the second, for the same pairs in the same order.
        subset_P: Draw within each subset, whose sizes are the benchmark's choice and no chance.
        weighting: As the benchmark's.
        seed: Of the draws.
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
    are_whole = bool(np.isin([first_P, second_P], (0, 1)).all())
    return Comparison(
        difference=difference,
        ci_low=min(low, difference),
        ci_high=max(high, difference),
        mcnemar_p=_mcnemar_p(num_first, num_second) if are_whole else None,
        num_only_first=num_first,
        num_only_second=num_second,
        num_pairs=len(delta_P),
    )


def _mcnemar_p(num_only_first: int, num_only_second: int) -> float:
    """The exact two-sided p-value of McNemar's test: a fair coin for each pair that differs."""
    from scipy.stats import binomtest

    num = num_only_first + num_only_second
    return float(binomtest(num_only_first, num).pvalue) if num else 1.0


def _drawn_means(delta_S: _Floats, rng: np.random.Generator) -> _Floats:
    """The mean of each draw of so many differences, with replacement.

    It depends only on how often each distinct difference was taken, which is multinomial: the draws
    cost the same for any number of pairs. Rounding many differences to steps, which only means over
    draws need, keeps their mean and adds at most 1 / 14,400 to their variance.
    """
    num, step_S = len(delta_S), delta_S
    if len(np.unique(delta_S)) > 2 * _STEPS + 1:
        step_S = np.rint(delta_S * _STEPS) / _STEPS
    value_C, count_C = np.unique(step_S, return_counts=True)
    drawn_DC = draw_counts(count_C, rng=rng, num_draws=NUM_DRAWS)
    return np.asarray(drawn_DC @ value_C / num + (delta_S - step_S).mean())
