"""How an error falls with the number of pairs: a curve through errors of samples of finite data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Suffix: S sample sizes.

#: A curve that misses no error by more than this share fits: the 95 % quantile of some hundred
#: draws is itself no surer.
_GOOD_FIT = 0.15
_MIN_SIZES = 4
#: Errors below this are none.
_ROUNDING = 1e-12

_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorCurve:
    """Error against the truth with n pairs: ``noise / sqrt(n) + bias / n``.

    Attributes:
        noise: What chance contributes.
        bias: What entropy being too low in few ratings contributes; that falls as 1/n.
        misfit: Largest deviation from a measured error, as a share of the latter.
        smallest_size: The smallest sample, in pairs, that the curve was fitted to.
    """

    noise: float
    bias: float
    misfit: float
    smallest_size: int

    def error(self, num_pairs: float) -> float:
        """With so many pairs."""
        return self.noise / math.sqrt(num_pairs) + self.bias / num_pairs

    def num_pairs(self, error: float) -> float:
        """Pairs that bring the error down to this (the root of a quadratic in 1/sqrt(n))."""
        root = self.noise + math.sqrt(self.noise**2 + 4 * self.bias * error)
        return (root / (2 * error)) ** 2


def fit_error_curve(
    sizes: Sequence[int], errors: Sequence[float], *, num_pairs: int
) -> ErrorCurve | None:
    """The curve through errors of samples, measured against all the data; None without any.

    A sample of n out of N pairs, drawn without replacement, differs from the N by a variance
    proportional to 1/n - 1/N, where from the truth it differs by 1/n; the two biases differ by
    1/n - 1/N as well. So with x = sqrt(1/n - 1/N) the measured error is noise * x + bias * x^2.
    Least squares of the deviations as shares of the error; neither coefficient is negative.

    That holds for samples that are not too small (a rare level must have come up): the smallest
    ones are left out until the curve fits, as long as four sizes remain.

    Args:
        sizes: Pairs in the samples, ascending, each below ``num_pairs``.
        errors: Of samples of these sizes.
        num_pairs: All pairs that the samples were drawn from, N.
    """
    size_S = np.array(sizes, dtype=np.float64)
    error_S = np.array(errors, dtype=np.float64)
    best: ErrorCurve | None = None
    for start in range(max(len(sizes) - _MIN_SIZES + 1, min(len(sizes), 1))):
        found = _fit(size_S[start:], error_S[start:], num_pairs=num_pairs)
        if best is None or found.misfit < best.misfit:
            best = found
        if best.misfit <= _GOOD_FIT:
            break
    return best


def _fit(size_S: _Floats, error_S: _Floats, *, num_pairs: int) -> ErrorCurve:
    is_zero_S = error_S < _ROUNDING
    if is_zero_S.any():  # what never changes has no error at all; some zeros fit no curve
        misfit = 0.0 if is_zero_S.all() else 1.0
        return ErrorCurve(noise=0.0, bias=0.0, misfit=misfit, smallest_size=int(size_S[0]))
    from scipy.optimize import nnls

    x_S = np.sqrt(1 / size_S - 1 / num_pairs)
    share_S2 = np.stack([x_S, x_S**2], axis=1) / error_S[:, None]
    coefficients, _ = nnls(share_S2, np.ones_like(x_S))
    return ErrorCurve(
        noise=float(coefficients[0]),
        bias=float(coefficients[1]),
        misfit=float(np.abs(share_S2 @ coefficients - 1).max()),
        smallest_size=int(size_S[0]),
    )
