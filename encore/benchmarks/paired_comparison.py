"""Do two models differ on the same benchmark: paired bootstrap and McNemar's test.

Suffixes: P pairs or units, S those of one subset, C distinct differences, D draws.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from encore.benchmarks.definition import Weighting
from encore.benchmarks.metrics import unit_weights
from encore.errors import InputError
from encore.weighting.composed import Z_95

NUM_DRAWS = 10_000
#: Cells drawn at a time: 32 MB.
_BLOCK_CELLS = 4_000_000
#: More distinct differences than that are drawn on a grid of so many points.
_MAX_VALUES = 129

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
        adjusted_low: A second lower end, from counts of pairs that differ: with one more win and
            one more loss among two more pairs (Bonett and Price, 2012). A bootstrap cannot draw a
            difference that it has not seen. Where every subset weighs alike, so of each subset,
            their variances added up with squared weights.
    """

    difference: float
    ci_low: float
    ci_high: float
    mcnemar_p: float | None
    num_only_first: int
    num_only_second: int
    num_pairs: int
    adjusted_low: float


def compare_credits(
    first_P: _Floats,
    second_P: _Floats,
    *,
    subset_P: Sequence[str] | None = None,
    weighting: Weighting = "examples",
    seed: int = 0,
    num_draws: int = NUM_DRAWS,
) -> Comparison:
    """Compare the credits of two models, pair by pair.

    The mean of a draw depends only on how often each distinct difference was taken, which is
    multinomial: 10,000 draws cost the same for any number of pairs (`distinct_shares`).

    Args:
        first_P: Credit of the first model, 0 to 1.
        second_P: Of the second, for the same pairs in the same order.
        subset_P: Draw within each subset, whose sizes are the benchmark's choice and no chance.
        weighting: As the benchmark's.
        seed: Of the draws.
        num_draws: How many.

    Raises:
        InputError: Credits of different or no pairs, or that are no numbers.
    """
    delta_P = _differences(first_P, second_P)
    name_P = np.array(subset_P or [""] * len(delta_P), dtype=np.object_)
    weight_P = unit_weights(name_P.tolist(), weighting=weighting)
    difference = float(weight_P @ delta_P)
    masks = (np.asarray(name_P == name) for name in dict.fromkeys(name_P))
    strata = [(delta_P[mask_P], float(weight_P[mask_P].sum())) for mask_P in masks]
    rng, drawn_D = np.random.default_rng(seed), np.zeros(num_draws)
    for delta_S, weight in strata:
        drawn_D += weight * _drawn_means(delta_S, rng, num_draws=num_draws)
    low, high = np.quantile(drawn_D, [0.025, 0.975]).tolist()
    num_first, num_second = int((delta_P > 0).sum()), int((delta_P < 0).sum())
    are_whole = bool(np.isin([first_P, second_P], (0, 1)).all())
    # Where all pairs weigh alike they are one sample: else each subset would add a win and a loss.
    samples = [(delta_P, 1.0)] if weighting == "examples" else strata
    variance = sum(weight**2 * _adjusted_variance(delta_S) for delta_S, weight in samples)
    return Comparison(
        difference=difference,
        ci_low=min(low, difference),
        ci_high=max(high, difference),
        mcnemar_p=mcnemar_p(num_first, num_second) if are_whole else None,
        num_only_first=num_first,
        num_only_second=num_second,
        num_pairs=len(delta_P),
        adjusted_low=difference - Z_95 * math.sqrt(variance),
    )


def mcnemar_p(num_only_first: int, num_only_second: int) -> float:
    """The exact two-sided p-value of McNemar's test: a fair coin for each pair that differs."""
    from scipy.stats import binomtest

    num = num_only_first + num_only_second
    return float(binomtest(num_only_first, num).pvalue) if num else 1.0


def _adjusted_variance(delta_S: _Floats) -> float:
    """Of the mean difference, as if one more pair were won and one more lost."""
    num_first, num_second = int((delta_S > 0).sum()), int((delta_S < 0).sum())
    num = len(delta_S) + 2
    return (num_first + num_second + 2 - (num_first - num_second) ** 2 / num) / num**2


def _differences(first_P: _Floats, second_P: _Floats) -> _Floats:
    is_same_shape = first_P.shape == second_P.shape and first_P.ndim == 1 and len(first_P) > 0
    if not is_same_shape or not np.isfinite(first_P - second_P).all():
        shapes = f"{first_P.shape} and {second_P.shape}"
        raise InputError(f"credits of shapes {shapes}; expected one of each model for each pair")
    return np.asarray(first_P - second_P, dtype=np.float64)


def _drawn_means(delta_S: _Floats, rng: np.random.Generator, *, num_draws: int) -> _Floats:
    value_C, share_C = distinct_shares(delta_S)
    num, block = len(delta_S), max(_BLOCK_CELLS // len(value_C), 1)
    means = [
        rng.multinomial(num, share_C, size=min(block, num_draws - start)) @ value_C / num
        for start in range(0, num_draws, block)
    ]
    return np.concatenate(means)


def distinct_shares(delta_S: _Floats) -> tuple[_Floats, _Floats]:
    """The distinct differences and their shares; very many are shared out to a grid.

    Means over draws can have thousands. Each goes to the two points beside it, the more to the
    nearer: the mean stays what it is, and the variance grows by at most 1 / 65,536 of the squared
    range.
    """
    value_C, count_C = np.unique(delta_S, return_counts=True)
    share_C = count_C / len(delta_S)
    if len(value_C) <= _MAX_VALUES:
        return value_C, share_C
    grid_C = np.linspace(value_C[0], value_C[-1], _MAX_VALUES)
    place_C = (value_C - grid_C[0]) / (grid_C[1] - grid_C[0])
    below_C = np.minimum(place_C.astype(np.int64), _MAX_VALUES - 2)
    above_C = np.clip(place_C - below_C, 0, 1)
    shares = np.bincount(below_C, share_C * (1 - above_C), minlength=_MAX_VALUES)
    shares += np.bincount(below_C + 1, share_C * above_C, minlength=_MAX_VALUES)
    return grid_C, shares / shares.sum()
