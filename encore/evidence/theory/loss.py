"""The Bradley–Terry loss over rule weights and its gradient, as in the paper's Theorem 1.

The paper sums over pairs; here it is the mean over pairs, 1/N of the paper's, so that figures of
data sets of different size can be compared.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# Suffixes: P pairs, R rules. Labels are +1 where response A is the better one, -1 where B is; with
# A = chosen every label is +1. Margins are rating(A) - rating(B).

_Floats = NDArray[np.float64]


def pair_loss(label_P: _Floats | float, margin_P: _Floats) -> _Floats:
    """log(1 + exp(-z g)) of each pair, for a label z and a composed margin g."""
    return np.asarray(np.logaddexp(0.0, -label_P * margin_P), dtype=np.float64)


def loss_slope(label_P: _Floats | float, margin_P: _Floats) -> _Floats:
    """D of the paper's proof: the derivative of `pair_loss` by the margin, -z / (1 + exp(z g)).

    The proof bounds |D| by 1; at a margin of 0 it is 1/2.
    """
    from scipy.special import expit

    return np.asarray(-label_P * expit(-label_P * margin_P), dtype=np.float64)


def mean_loss(weight_R: _Floats, margin_PR: _Floats, *, label_P: _Floats | float = 1.0) -> float:
    """Mean loss of pairs whose composed margin is the weighted sum of the rules' margins.

    Args:
        weight_R: Any real weights, shape [R].
        margin_PR: Margin of each pair under each rule, shape [P, R].
        label_P: Labels, shape [P] or one for all.
    """
    return float(pair_loss(label_P, margin_PR @ weight_R).mean())


def loss_gradient(
    weight_R: _Floats, margin_PR: _Floats, *, label_P: _Floats | float = 1.0
) -> _Floats:
    """Gradient of `mean_loss` by the weights: the mean of D times the rule's margin, shape [R]."""
    slope_P = loss_slope(label_P, margin_PR @ weight_R)
    return np.asarray(slope_P @ margin_PR / len(margin_PR), dtype=np.float64)
