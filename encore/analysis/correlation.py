"""Correlation between rules' entropy and accuracy, and what it would be if labels meant nothing."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from encore.analysis.pair_counts import PairOutcomes
from encore.analysis.statistics import (
    ENTROPY_KINDS,
    TIE_POLICIES,
    EntropyKind,
    SourceStatistics,
    TiePolicy,
)

# Suffixes: R rules, D draws from the null distribution.

MIN_RULES = 3
NUM_NULL_DRAWS = 2000
NULL_SEED = 0
_CONFIDENCE = 0.95
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
    swing_DR = null_swings(statistics.outcomes)
    return tuple(
        _correlation(statistics, swing_DR, entropy, accuracy)
        for entropy in ENTROPY_KINDS
        for accuracy in TIE_POLICIES
    )


def pearson_r(x_R: _Floats, y_R: _Floats) -> float | None:
    """Pearson's r; None for fewer than 3 values or a constant (up to rounding)."""
    if len(x_R) < MIN_RULES:
        return None
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
    from scipy.special import ndtri

    half_width = float(ndtri((1 + _CONFIDENCE) / 2)) / math.sqrt(num_values - 3)
    return math.tanh(math.atanh(r) - half_width), math.tanh(math.atanh(r) + half_width)


def spearman_rho(x_R: _Floats, y_R: _Floats) -> float | None:
    """Spearman's rho: Pearson's r of the ranks, where equal values share their mean rank."""
    if len(x_R) < MIN_RULES:
        return None
    # Twice a rank is a whole number, and so are these sums: equal orders give exactly 1.
    rank_x_R, rank_y_R = 2 * _ranks(x_R), 2 * _ranks(y_R)
    excess_x_R, excess_y_R = rank_x_R - rank_x_R.mean(), rank_y_R - rank_y_R.mean()
    spread = float(excess_x_R @ excess_x_R) * float(excess_y_R @ excess_y_R)
    return float(excess_x_R @ excess_y_R) / math.sqrt(spread) if spread else None


def null_swings(
    outcomes: PairOutcomes, *, num_draws: int = NUM_NULL_DRAWS, seed: int = NULL_SEED
) -> _Floats:
    """Draws of wins minus losses of all rules if every pair's labels were swapped by a coin toss.

    One sign per pair, shared by its rules, because rules are correlated: with S = sign(chosen -
    rejected) and a vector e of random signs, S'e is in the limit normal with covariance S'S.

    Args:
        outcomes: Of the rules.
        num_draws: Number of draws, D.
        seed: Of the generator.

    Returns:
        Shape [D, R].
    """
    eigenvalue_R, eigenvector_RR = np.linalg.eigh(outcomes.sign_gram_RR.astype(np.float64))
    # The symmetric root is unique, so the draws do not depend on the eigenvectors' signs.
    root_RR = (eigenvector_RR * np.sqrt(np.maximum(eigenvalue_R, 0.0))) @ eigenvector_RR.T
    normal_DR = np.random.default_rng(seed).standard_normal((num_draws, len(eigenvalue_R)))
    return np.asarray(normal_DR @ root_RR, dtype=np.float64)


def null_band(
    entropy_R: _Floats, outcomes: PairOutcomes, swing_DR: _Floats, *, accuracy: TiePolicy
) -> tuple[float, float] | tuple[None, None]:
    """Where 95 % of Pearson's r lie for the swings that `null_swings` drew; None if r has no value.

    Args:
        entropy_R: Entropy of each rule.
        outcomes: Of the same rules.
        swing_DR: Of the same rules.
        accuracy: The tie policy.
    """
    untied_R = (outcomes.wins_R + outcomes.losses_R).astype(np.float64)
    counted_R = untied_R if accuracy == "untied" else untied_R + outcomes.ties_R
    tie_credit = {"half": 0.5, "strict": 0.0, "untied": 0.0, "inclusive": 1.0}[accuracy]
    accuracy_DR = ((untied_R + swing_DR) / 2 + tie_credit * outcomes.ties_R) / counted_R
    centred_DR = accuracy_DR - accuracy_DR.mean(axis=1, keepdims=True)
    norm_D = np.linalg.norm(centred_DR, axis=1)
    unit_R = _unit(entropy_R)
    varies_D = norm_D > _ROUNDING
    if unit_R is None or not varies_D.any():
        return None, None
    r_D = (centred_DR[varies_D] @ unit_R) / norm_D[varies_D]
    low, high = np.quantile(r_D, [(1 - _CONFIDENCE) / 2, (1 + _CONFIDENCE) / 2])
    return float(low), float(high)


def _correlation(
    statistics: SourceStatistics, swing_DR: _Floats, entropy: EntropyKind, accuracy: TiePolicy
) -> Correlation:
    rows = [(rule.entropy(entropy), rule.accuracy.under(accuracy)) for rule in statistics.rules]
    places = [place for place, row in enumerate(rows) if None not in row]
    entropy_R, accuracy_R = np.array([rows[place] for place in places], float).reshape(-1, 2).T
    found = Correlation(
        source=statistics.source, entropy=entropy, accuracy=accuracy, num_rules=len(places)
    )
    r, rho = pearson_r(entropy_R, accuracy_R), spearman_rho(entropy_R, accuracy_R)
    if r is None:
        return found
    ci_low, ci_high = fisher_interval(r, num_values=len(places))
    outcomes, swing_DR = statistics.outcomes.of_rules(places), swing_DR[:, places]
    null_low, null_high = null_band(entropy_R, outcomes, swing_DR, accuracy=accuracy)
    return dataclasses.replace(
        found,
        pearson_r=r,
        p_value=pearson_p_value(r, num_values=len(places)),
        ci_low=ci_low,
        ci_high=ci_high,
        spearman_rho=rho,
        spearman_p_value=None if rho is None else pearson_p_value(rho, num_values=len(places)),
        null_low=null_low,
        null_high=null_high,
    )


def _unit(x_R: _Floats) -> _Floats | None:
    """The centred vector of length 1; None for a constant."""
    centred_R = x_R - x_R.mean()
    norm = float(np.linalg.norm(centred_R))
    if norm <= _ROUNDING * float(np.abs(x_R).max()):
        return None
    return np.asarray(centred_R / norm, dtype=np.float64)


def _ranks(x_R: _Floats) -> _Floats:
    """Ranks from 1; values that are equal up to rounding share their mean rank."""
    _, level_R, count = np.unique(
        np.round(x_R, _RANK_DECIMALS), return_inverse=True, return_counts=True
    )
    return np.asarray((np.cumsum(count) - (count - 1) / 2)[level_R], dtype=np.float64)
