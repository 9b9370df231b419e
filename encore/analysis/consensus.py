"""Measure how far each rule agrees with the other rules, without any label.

The figure orders rules; it is no accuracy. Rules agree because they measure the same thing, which
may be the length or the tone of a response as well as what people prefer.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from encore.analysis.bootstrap import Estimate
from encore.analysis.statistics import SourceStatistics, margin_correlations

# Suffixes: R rules, B blocks of pairs, or of prompts that have several pairs; "..." may be B.

_Floats = NDArray[np.float64]


def mean_correlations(correlation_RR: _Floats, same_RR: NDArray[np.bool_]) -> _Floats:
    """Return the mean correlation of each rule with the other rules, shape [..., R].

    Rules that say the same, or the opposite, of each other count together as one: each of n such
    rules has 1 / n of a voice in the means of the others, and none in their own. So a copy of a
    rule changes no mean, and none has to be chosen to be dropped. NaN for a rule with ties only,
    and for one without other rules.

    Args:
        correlation_RR: Correlation of the rules' margins, NaN where a rule has ties only, shape
            [..., R, R].
        same_RR: True where two rules say the same or the opposite, as `same_rules` returns it.
    """
    has_value_RR = ~np.isnan(correlation_RR)
    voice_RR = np.where(same_RR | ~has_value_RR, 0.0, 1 / same_RR.sum(axis=0))
    with np.errstate(invalid="ignore"):
        mean_R = (voice_RR * np.nan_to_num(correlation_RR)).sum(axis=-1) / voice_RR.sum(axis=-1)
    return np.asarray(mean_R, dtype=np.float64)


def same_rules(correlation_RR: _Floats, *, threshold: float) -> NDArray[np.bool_]:
    """Return True where the size of two rules' correlation reaches the threshold, shape [R, R]."""
    same_RR = np.abs(np.nan_to_num(correlation_RR)) >= threshold
    np.fill_diagonal(same_RR, val=True)
    return same_RR


def agreement_with_others(
    statistics: SourceStatistics, *, threshold: float
) -> tuple[Estimate, ...]:
    """Return each rule's mean correlation with the other rules, with its 95 % interval.

    The error is that of leaving out one block of prompts after another (jackknife), and the width
    that of Student's t.

    Args:
        statistics: Counts of a source.
        threshold: Correlation from which on two rules count as one.
    """
    from scipy.special import stdtrit

    correlation_RR = statistics.correlation_RR
    same_RR = same_rules(correlation_RR, threshold=threshold)
    mean_R = mean_correlations(correlation_RR, same_RR)
    block_B2RR = statistics.counts.margin_sums_B2RR
    block_B2RR = block_B2RR[block_B2RR.any(axis=(1, 2, 3))]
    num_blocks = len(block_B2RR)
    if num_blocks < 2:
        return tuple(Estimate(value=_value(mean)) for mean in mean_R.tolist())
    left_out_BRR = margin_correlations(block_B2RR.sum(axis=0) - block_B2RR)
    left_out_BR = mean_correlations(left_out_BRR, same_RR)
    error_R = np.sqrt((num_blocks - 1) * left_out_BR.var(axis=0))
    reach_R = float(stdtrit(num_blocks - 1, 0.975)) * error_R
    return tuple(
        Estimate(
            value=_value(mean), low=_value(max(mean - reach, -1)), high=_value(min(mean + reach, 1))
        )
        for mean, reach in zip(mean_R.tolist(), reach_R.tolist(), strict=True)
    )


def consensus_weights(correlation_RR: _Floats, *, tau: float, threshold: float) -> _Floats:
    """Return weights that rise with the agreement with the other rules, shape [R].

    They are the softmax of the mean correlations, standardised over the rules, divided by ``tau``;
    of n rules that say the same, each has 1 / n of its share, so that copies weigh as much as one.
    A rule with ties only ranks nothing and gets 0. Without two rules to compare they are uniform.

    Args:
        correlation_RR: Correlation of the rules' margins; NaN where a rule has ties only.
        tau: Temperature: large approaches uniform, small the rule that agrees most.
        threshold: Correlation from which on two rules count as one.
    """
    mean_R = mean_correlations(correlation_RR, same_rules(correlation_RR, threshold=threshold))
    has_value_R = ~np.isnan(mean_R)
    if not has_value_R.any():
        return np.full(len(mean_R), 1 / len(mean_R))
    logit_R = mean_R - mean_R[has_value_R].mean()
    spread = float(np.nanstd(mean_R))
    if spread > _ROUNDING:
        logit_R /= spread
    logit_R /= tau
    # Rules that say the opposite of each other are two: they do not rank pairs alike.
    num_same_R = (np.nan_to_num(correlation_RR) >= threshold).sum(axis=0)
    mass_R = np.zeros(len(mean_R))
    mass_R[has_value_R] = (
        np.exp(logit_R - np.nanmax(logit_R))[has_value_R] / num_same_R[has_value_R]
    )
    return np.asarray(mass_R / mass_R.sum(), dtype=np.float64)


#: Mean correlations that differ by less are equal.
_ROUNDING = 1e-9


def _value(mean: float) -> float | None:
    """Return a figure without its last digits, which depend on the order of rows; None for NaN."""
    return None if np.isnan(mean) else round(mean, 10)
