"""Comparison of two models on the same benchmark: interval of the difference, and McNemar's test.

Suffixes: P pairs or units.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from encore.analysis.paired_difference import mean_difference_interval, sign_test_p
from encore.benchmarks.definition import Weighting
from encore.benchmarks.metrics import unit_weights

_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Difference of two models on the same pairs.

    Attributes:
        difference: Headline of the first minus headline of the second, -1 to 1.
        ci_low: Lower end of the 95 % interval of the difference (`mean_difference_interval`).
        ci_high: Upper end of the 95 % interval of the difference.
        mcnemar_p: Exact two-sided p-value of McNemar's test: the probability of so uneven a split
            of the differing pairs if neither model is better; of differing prompts where these
            have several pairs. 1 if no pair differs. None if a model has credits between 0 and 1 (a
            judge's half ties, means over draws): the test counts pairs that are right or wrong.
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
    group_P: NDArray[np.intp] | None = None,
    seed: int = 0,
) -> Comparison:
    """Compare the credits of two models, pair by pair.

    Args:
        first_P: Credits of the first model, 0 to 1.
        second_P: Credits of the second model, for the same pairs in the same order.
        subset_P: Subset of each pair; the benchmark fixes the sizes of subsets. None: one subset.
        weighting: Weighting of the benchmark's headline.
        group_P: Prompt of each pair, from 0; None if no prompt has several pairs.
        seed: Seed of the test's draws, where prompts have several pairs that differ.
    """
    delta_P = np.asarray(first_P - second_P, dtype=np.float64)
    names = list(subset_P or [""] * len(delta_P))
    interval = mean_difference_interval(
        delta_P, weight_N=unit_weights(names, weighting=weighting), subset_N=names, group_N=group_P
    )
    difference = interval.value or 0.0
    are_whole = bool(np.isin([first_P, second_P], (0, 1)).all())
    return Comparison(
        difference=difference,
        ci_low=-1.0 if interval.low is None else interval.low,
        ci_high=1.0 if interval.high is None else interval.high,
        mcnemar_p=sign_test_p(delta_P, group_P, seed=seed) if are_whole else None,
        num_only_first=int((delta_P > 0).sum()),
        num_only_second=int((delta_P < 0).sum()),
        num_pairs=len(delta_P),
    )
