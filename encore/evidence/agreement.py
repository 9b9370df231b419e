"""How well two ratings of the same responses agree."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Suffix: N responses that were rated twice.

_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """Agreement of two ratings of the same responses under one rule.

    Attributes:
        agreement: Share of responses with two equal ratings.
        mean_absolute_difference: In units of rating.
        mean_difference: Second minus first: a drift of the judge.
        kappa: Cohen's kappa of equal ratings: (agreement - chance) / (1 - chance), where chance is
            what two independent ratings with these two distributions would give. 1 is perfect, 0
            is chance; None where both are always the same level.
        weighted_kappa: Kappa with squared differences (1 - observed / expected by chance), the
            usual one for ordered levels; equal to Lin's concordance coefficient. None as above.
    """

    agreement: float
    mean_absolute_difference: float
    mean_difference: float
    kappa: float | None
    weighted_kappa: float | None


def agreement(first_N: _Floats, second_N: _Floats) -> Agreement | None:
    """The agreement of two ratings of each response; None for no response.

    Args:
        first_N: Ratings, none missing, shape [N].
        second_N: Of the same responses, shape [N].
    """
    if not len(first_N):
        return None
    difference_N = second_N - first_N
    equal = float(np.mean(first_N == second_N))
    return Agreement(
        agreement=equal,
        mean_absolute_difference=float(np.abs(difference_N).mean()),
        mean_difference=float(difference_N.mean()),
        kappa=_beyond_chance(equal, _chance_of_equal(first_N, second_N)),
        weighted_kappa=_weighted_kappa(first_N, second_N),
    )


def _chance_of_equal(first_N: _Floats, second_N: _Floats) -> float:
    level_N, code_N = np.unique(np.concatenate([first_N, second_N]), return_inverse=True)
    num = len(first_N)
    first_L = np.bincount(code_N[:num], minlength=len(level_N))
    second_L = np.bincount(code_N[num:], minlength=len(level_N))
    return float(first_L @ second_L) / num**2


def _beyond_chance(equal: float, chance: float) -> float | None:
    return None if chance == 1.0 else (equal - chance) / (1.0 - chance)


def _weighted_kappa(first_N: _Floats, second_N: _Floats) -> float | None:
    """Of independent ratings the mean squared difference is var + var + (mean - mean)^2."""
    gap = float(second_N.mean() - first_N.mean())
    by_chance = float(first_N.var() + second_N.var()) + gap**2
    is_one_level = np.ptp(np.concatenate([first_N, second_N])) == 0
    if is_one_level:
        return None
    return 1.0 - float(np.mean((second_N - first_N) ** 2)) / by_chance
