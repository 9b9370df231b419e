"""Correlate rules' entropy with their accuracy, and compare with randomly swapped labels."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from encore.analysis.bootstrap import middle_95
from encore.analysis.pair_counts import PairCounts
from encore.analysis.share_intervals import Z_95
from encore.analysis.statistics import (
    ENTROPY_KINDS,
    TIE_POLICIES,
    EntropyKind,
    SourceStatistics,
    TiePolicy,
    hits_by_policy,
)

# Suffixes: R rules, D draws from the null distribution, L levels of ranks.

MIN_RULES = 3
NUM_NULL_DRAWS = 2000
NULL_SEED = 0
#: Values that differ by less than this share of their size are the same up to rounding.
_ROUNDING = 1e-13
#: Entropies and accuracies are of the order of 1: differences beyond this digit are rounding.
_RANK_DECIMALS = 12

_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Correlation:
    """Correlation of entropy with accuracy over the rules of one source; r is with +H.

    Attributes:
        source: The data set, or `POOLED` for all together.
        entropy: Kind of entropy, discrete or differential.
        accuracy: Tie policy of the accuracy.
        num_rules: Rules that have both an entropy and an accuracy.
        pearson_r: Pearson's r. This and all fields below are None for fewer than 3 rules or a
            constant.
        p_value: Two-sided p of r, by the exact null distribution under normality.
        ci_low: Lower end of the 95 % interval by Fisher's transformation.
        ci_high: Upper end of that interval.
        spearman_rho: Pearson's r of ranks; ties share their mean rank.
        spearman_p_value: Two-sided p of rho, by the distribution that r has under normality.
        null_low: 2.5 % quantile of r when every pair's labels are swapped by a coin toss.
        null_high: 97.5 % quantile of the same r.
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
    """Correlate each kind of entropy with the accuracy under each tie policy, over the rules.

    A rule without an entropy or without an accuracy (no ratings, no pairs, ties only) is left out.
    """
    rules, swing_DR = statistics.rules, null_swings(statistics.counts)
    rows = []
    for kind, policy in product(ENTROPY_KINDS, TIE_POLICIES):
        points = [(rule.entropy(kind), rule.accuracy.for_policy(policy)) for rule in rules]
        rule_indices = [index for index, point in enumerate(points) if None not in point]
        num_rules = len(rule_indices)
        point_R2 = np.array([points[index] for index in rule_indices], dtype=float).reshape(-1, 2)
        entropy_R, accuracy_R = point_R2.T
        r, rho = pearson_r(entropy_R, accuracy_R), spearman_rho(entropy_R, accuracy_R)
        figures: dict[str, float | None] = {}
        if r is not None:
            ci_low, ci_high = fisher_interval(r, num_values=num_rules)
            counts = statistics.counts.select_rules(rule_indices)
            null_low, null_high = null_band(
                entropy_R, counts, swing_DR[:, rule_indices], policy=policy
            )
            figures = {
                "pearson_r": r,
                "p_value": pearson_p_value(r, num_values=num_rules),
                "ci_low": ci_low,
                "ci_high": ci_high,
                "spearman_rho": rho,
                "null_low": null_low,
                "null_high": null_high,
            }
            if rho is not None:
                figures["spearman_p_value"] = pearson_p_value(rho, num_values=num_rules)
        rows.append(
            Correlation(
                source=statistics.source,
                entropy=kind,
                accuracy=policy,
                num_rules=num_rules,
                **figures,
            )
        )
    return tuple(rows)


def pearson_r(x_R: _Floats, y_R: _Floats) -> float | None:
    """Return Pearson's r; None for fewer than 3 values or a constant (up to rounding)."""
    unit_x_R, unit_y_R = _unit(x_R), _unit(y_R)
    if unit_x_R is None or unit_y_R is None:
        return None
    return float(np.clip(unit_x_R @ unit_y_R, -1.0, 1.0))


def pearson_p_value(r: float, *, num_values: int) -> float:
    """Return the two-sided p of Pearson's r for independent normal variables.

    (1 + r) / 2 then follows a Beta(n/2 - 1, n/2 - 1) distribution, as in `scipy.stats.pearsonr`.
    """
    # Not scipy.stats: it takes a second to load, and all of `analyze` takes three for 28M ratings.
    from scipy.special import betainc

    shape = num_values / 2 - 1
    return float(2 * betainc(shape, shape, (1 - abs(r)) / 2))


def fisher_interval(r: float, *, num_values: int) -> tuple[float, float]:
    """Return the 95 % interval of Pearson's r by Fisher's z; all of [-1, 1] for 3 values."""
    if num_values == MIN_RULES:
        return -1.0, 1.0
    if abs(r) == 1.0:
        return r, r
    half_width = Z_95 / math.sqrt(num_values - 3)
    return math.tanh(math.atanh(r) - half_width), math.tanh(math.atanh(r) + half_width)


def spearman_rho(x_R: _Floats, y_R: _Floats) -> float | None:
    """Return Spearman's rho: Pearson's r of ranks, where equal values share their mean rank."""
    rank_x_R, rank_y_R = _doubled_ranks(x_R), _doubled_ranks(y_R)
    # Ranks are whole numbers, so that equal orders give exactly 1.
    spread = float(rank_x_R @ rank_x_R) * float(rank_y_R @ rank_y_R)
    if len(x_R) < MIN_RULES or not spread:
        return None
    return float(rank_x_R @ rank_y_R) / math.sqrt(spread)


def null_swings(counts: PairCounts) -> _Floats:
    """Draw the wins minus losses of all rules with every pair's labels swapped by a coin toss.

    All rules share the sign of a pair, because rules are correlated. With S = sign(chosen -
    rejected) and a vector e of random signs, S'e is in the limit normal with covariance S'S.

    Args:
        counts: Counts of the R rules.

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
    entropy_R: _Floats, counts: PairCounts, swing_DR: _Floats, *, policy: TiePolicy
) -> tuple[float, float] | tuple[None, None]:
    """Return the 95 % band of Pearson's r under randomly swapped labels; two None without an r.

    Args:
        entropy_R: Entropy of each rule, in nats.
        counts: Counts of the same R rules.
        swing_DR: Draws of `null_swings` for the same rules.
        policy: Tie policy of the accuracy.
    """
    untied_R = counts.wins_R + counts.losses_R
    wins_DR, losses_DR = (untied_R + swing_DR) / 2, (untied_R - swing_DR) / 2
    hits_DR, counted_DR = hits_by_policy(wins_DR, counts.ties_R, losses_DR)[policy]
    accuracy_DR = hits_DR / counted_DR
    centred_DR = accuracy_DR - accuracy_DR.mean(axis=1, keepdims=True)
    norm_D = np.linalg.norm(centred_DR, axis=1)
    unit_R = _unit(entropy_R)
    varies_D = norm_D > _ROUNDING
    if unit_R is None or not varies_D.any():
        return None, None
    r_D = (centred_DR[varies_D] @ unit_R) / norm_D[varies_D]
    return middle_95(r_D)


def _unit(x_R: _Floats) -> _Floats | None:
    """Return the values centred and of length 1; None for fewer than 3 values or a constant."""
    if len(x_R) < MIN_RULES:
        return None
    centred_R = x_R - x_R.mean()
    norm = float(np.linalg.norm(centred_R))
    if norm <= _ROUNDING * float(np.abs(x_R).max()):
        return None
    return np.asarray(centred_R / norm, dtype=np.float64)


def _doubled_ranks(x_R: _Floats) -> NDArray[np.int64]:
    """Return twice the ranks, less their mean; values equal up to rounding share a mean rank."""
    _, level_R, count_L = np.unique(
        np.round(x_R, _RANK_DECIMALS), return_inverse=True, return_counts=True
    )
    return np.asarray((2 * np.cumsum(count_L) - count_L - len(x_R))[level_R], dtype=np.int64)
