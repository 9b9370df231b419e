"""Correlation between rules' entropy and accuracy, and what it would be if labels meant nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from encore.analysis.pair_counts import PairCounts
from encore.analysis.statistics import (
    ENTROPY_KINDS,
    TIE_POLICIES,
    Z_95,
    EntropyKind,
    SourceStatistics,
    TiePolicy,
    hits_by_policy,
    middle_95,
)

# Suffixes: R rules, D draws from the null distribution.

MIN_RULES = 3
NUM_NULL_DRAWS = 2000
NULL_SEED = 0
#: Values that differ by less than this share of their size are the same up to rounding.
_ROUNDING = 1e-13
#: Entropies and accuracies are of the order of 1: what differs beyond this digit is rounding.
_RANK_DECIMALS = 12

_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Correlation:
    """Correlation of entropy with accuracy over the rules of one source; r is with +H.

    Attributes:
        source: The data set, or all together.
        entropy: Which entropy.
        accuracy: Which tie policy.
        num_rules: Rules that have both an entropy and an accuracy.
        pearson_r: Pearson's r. None, as all below, for fewer than 3 rules or a constant.
        p_value: Two-sided, of the exact null distribution under normality.
        ci_low: Lower end of the 95 % interval by Fisher's transformation.
        ci_high: Upper end.
        spearman_rho: Pearson's r of ranks; ties share their mean rank.
        spearman_p_value: Two-sided, of the distribution that r has under normality.
        null_low: 2.5 % quantile of r when every pair's labels are swapped by a coin toss.
        null_high: 97.5 % quantile.
    """

    source: str
    entropy: EntropyKind
    accuracy: TiePolicy
    num_rules: int
    pearson_r: float | None = None
    p_value: float | None = None
    ci_low: float | None = None
    ci_high: float | None = None
    spearman_rho: float | None = None
    spearman_p_value: float | None = None
    null_low: float | None = None
    null_high: float | None = None


def correlations(statistics: SourceStatistics) -> tuple[Correlation, ...]:
    """Entropy against accuracy over the rules of one source: each entropy with each tie policy.

    A rule without an entropy or without an accuracy (no ratings, no pairs, ties only) is left out.
    """
    swing_DR = null_swings(statistics.counts)
    found = []
    for entropy, accuracy in product(ENTROPY_KINDS, TIE_POLICIES):
        rows = [
            (rule.entropy(entropy), rule.accuracy.for_policy(accuracy)) for rule in statistics.rules
        ]
        places = [place for place, row in enumerate(rows) if None not in row]
        entropy_R, accuracy_R = np.array([rows[p] for p in places], dtype=float).reshape(-1, 2).T
        figures = _figures(entropy_R, accuracy_R)
        if figures:
            counts = statistics.counts.select_rules(places)
            band = null_band(entropy_R, counts, swing_DR[:, places], accuracy=accuracy)
            figures |= {"null_low": band[0], "null_high": band[1]}
        found.append(
            Correlation(
                source=statistics.source,
                entropy=entropy,
                accuracy=accuracy,
                num_rules=len(places),
                **figures,
            )
        )
    return tuple(found)


def pearson_r(x_R: _Floats, y_R: _Floats) -> float | None:
    """Pearson's r; None for fewer than 3 values or a constant (up to rounding)."""
    unit_x_R, unit_y_R = _unit(x_R), _unit(y_R)
    if unit_x_R is None or unit_y_R is None:
        return None
    return float(np.clip(unit_x_R @ unit_y_R, -1.0, 1.0))


def pearson_p_value(r: float, *, num_values: int) -> float:
    """Two-sided p of Pearson's r for independent normal variables, as `scipy.stats.pearsonr`.

    Then (1 + r) / 2 follows a Beta(n/2 - 1, n/2 - 1) distribution.
    """
    # Not scipy.stats: it takes a second to load, and all of `analyze` takes three for 28M ratings.
    from scipy.special import betainc

    shape = num_values / 2 - 1
    return float(2 * betainc(shape, shape, (1 - abs(r)) / 2))


def fisher_interval(r: float, *, num_values: int) -> tuple[float, float]:
    """The 95 % interval of Pearson's r by Fisher's transformation; all of [-1, 1] for 3 values."""
    if num_values == MIN_RULES:
        return -1.0, 1.0
    if abs(r) == 1.0:
        return r, r
    half_width = Z_95 / math.sqrt(num_values - 3)
    return math.tanh(math.atanh(r) - half_width), math.tanh(math.atanh(r) + half_width)


def spearman_rho(x_R: _Floats, y_R: _Floats) -> float | None:
    """Spearman's rho: Pearson's r of the ranks, where equal values share their mean rank."""
    rank_x_R, rank_y_R = _doubled_ranks(x_R), _doubled_ranks(y_R)
    # These sums are of whole numbers, so that equal orders give exactly 1.
    spread = float(rank_x_R @ rank_x_R) * float(rank_y_R @ rank_y_R)
    if len(x_R) < MIN_RULES or not spread:
        return None
    return float(rank_x_R @ rank_y_R) / math.sqrt(spread)


def null_swings(counts: PairCounts) -> _Floats:
    """Draws of wins minus losses of all rules if every pair's labels were swapped by a coin toss.

    One sign per pair, shared by its rules, because rules are correlated: with S = sign(chosen -
    rejected) and a vector e of random signs, S'e is in the limit normal with covariance S'S.

    Args:
        counts: Of the rules.

    Returns:
        Shape [D, R].
    """
    eigenvalue_R, eigenvector_RR = np.linalg.eigh(counts.sign_gram_RR.astype(np.float64))
    # The symmetric root is unique, so the draws do not depend on the eigenvectors' signs.
    root_RR = (eigenvector_RR * np.sqrt(np.maximum(eigenvalue_R, 0.0))) @ eigenvector_RR.T
    shape = (NUM_NULL_DRAWS, len(eigenvalue_R))
    normal_DR = np.random.default_rng(NULL_SEED).standard_normal(shape)
    return np.asarray(normal_DR @ root_RR, dtype=np.float64)


def null_band(
    entropy_R: _Floats, counts: PairCounts, swing_DR: _Floats, *, accuracy: TiePolicy
) -> tuple[float, float] | tuple[None, None]:
    """Where 95 % of Pearson's r lie for the swings that `null_swings` drew; None if r has no value.

    Args:
        entropy_R: Entropy of each rule.
        counts: Of the same rules.
        swing_DR: Of the same rules.
        accuracy: The tie policy.
    """
    untied_R = counts.wins_R + counts.losses_R
    wins_DR, losses_DR = (untied_R + swing_DR) / 2, (untied_R - swing_DR) / 2
    hits_DR, counted_DR = hits_by_policy(wins_DR, counts.ties_R, losses_DR)[accuracy]
    accuracy_DR = hits_DR / counted_DR
    centred_DR = accuracy_DR - accuracy_DR.mean(axis=1, keepdims=True)
    norm_D = np.linalg.norm(centred_DR, axis=1)
    unit_R = _unit(entropy_R)
    varies_D = norm_D > _ROUNDING
    if unit_R is None or not varies_D.any():
        return None, None
    r_D = (centred_DR[varies_D] @ unit_R) / norm_D[varies_D]
    return middle_95(r_D)


def _figures(entropy_R: _Floats, accuracy_R: _Floats) -> dict[str, Any]:
    """Both correlations with their p-values and r's interval; none where there is no r."""
    num_values = len(entropy_R)
    r, rho = pearson_r(entropy_R, accuracy_R), spearman_rho(entropy_R, accuracy_R)
    if r is None:
        return {}
    ci_low, ci_high = fisher_interval(r, num_values=num_values)
    return {
        "pearson_r": r,
        "p_value": pearson_p_value(r, num_values=num_values),
        "ci_low": ci_low,
        "ci_high": ci_high,
        "spearman_rho": rho,
        "spearman_p_value": None if rho is None else pearson_p_value(rho, num_values=num_values),
    }


def _unit(x_R: _Floats) -> _Floats | None:
    """The centred vector of length 1; None for fewer than 3 values or a constant."""
    if len(x_R) < MIN_RULES:
        return None
    centred_R = x_R - x_R.mean()
    norm = float(np.linalg.norm(centred_R))
    if norm <= _ROUNDING * float(np.abs(x_R).max()):
        return None
    return np.asarray(centred_R / norm, dtype=np.float64)


def _doubled_ranks(x_R: _Floats) -> NDArray[np.int64]:
    """Twice the ranks, less their mean; values that are equal up to rounding share a mean rank."""
    _, level_R, count = np.unique(
        np.round(x_R, _RANK_DECIMALS), return_inverse=True, return_counts=True
    )
    return np.asarray((2 * np.cumsum(count) - count - len(x_R))[level_R], dtype=np.int64)
