"""Compute the entropy of a kernel density over ratings, and weights that follow from entropies."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from encore.analysis.answer_options import DEFAULT_TAU

# Suffixes: C cells of ratings, U points of integration. Positions are in bandwidths.

#: In bandwidths. Beyond it a Gaussian kernel is below 1e-21 of its peak.
_KERNEL_RADIUS = 10.0
#: The trapezoid rule converges faster than any power for sums of Gaussians; at 32 points per
#: bandwidth its error is at rounding level.
_POINTS_PER_BANDWIDTH = 32
_BLOCK_POINTS = 256


def miller_madow_nats(entropy_nats: float, *, num_levels: int, num_ratings: int) -> float:
    """Return entropy corrected for the bias of a sample, to first order (Miller 1955).

    Args:
        entropy_nats: Entropy of the ratings.
        num_levels: Number of different ratings.
        num_ratings: Number of ratings, at least 1.
    """
    return entropy_nats + (num_levels - 1) / (2 * num_ratings)


def differential_entropy_nats(
    position_C: NDArray[np.float64],
    variance_C: NDArray[np.float64],
    num_ratings_C: NDArray[np.float64],
    *,
    bandwidth: float,
) -> float:
    """Return the differential entropy in nats of a Gaussian kernel density over the whole line.

    The kernel of a cell is widened by the variance within it, so that cells of 1/64 bandwidth
    change the result by less than 1e-7. A cell that holds one level is exact.

    Args:
        position_C: Mean position of each cell's ratings in bandwidths, ascending, shape [C].
        variance_C: Variance within each cell in squared bandwidths, shape [C].
        num_ratings_C: Number of ratings in each cell, shape [C].
        bandwidth: Standard deviation of the kernel in units of rating.
    """
    sd_C = np.sqrt(1.0 + variance_C)
    height_C = num_ratings_C / num_ratings_C.sum() / (sd_C * math.sqrt(2.0 * math.pi))
    entropy = 0.0
    for point_U in _points(position_C):
        near = slice(
            int(np.searchsorted(position_C, point_U[0] - 2 * _KERNEL_RADIUS)),
            int(np.searchsorted(position_C, point_U[-1] + 2 * _KERNEL_RADIUS)),
        )
        distance_UC = (point_U[:, None] - position_C[near]) / sd_C[near]
        density_U = np.exp(-0.5 * distance_UC**2) @ height_C[near]
        positive_U = density_U[density_U > 0.0]
        entropy -= float(np.sum(positive_U * np.log(positive_U)))
    return math.log(bandwidth) + entropy / _POINTS_PER_BANDWIDTH


def entropy_weights(
    entropy_R: NDArray[np.float64], *, tau: float = DEFAULT_TAU
) -> NDArray[np.float64]:
    """Return the softmax of negative rating entropy (the paper's "entropy-penalized weights").

    Args:
        entropy_R: Rating entropy of each rule in nats, shape [..., R].
        tau: Temperature, above 0. A large one approaches uniform weights, a small one the rule of
            lowest entropy.
    """
    # Shifted before the division, so that neither it nor exp can overflow for a tiny tau.
    with np.errstate(over="ignore"):
        mass_R = np.exp(-(entropy_R - entropy_R.min(axis=-1, keepdims=True)) / tau)
    return np.asarray(mass_R / mass_R.sum(axis=-1, keepdims=True), dtype=np.float64)


def _points(position_C: NDArray[np.float64]) -> Iterator[NDArray[np.float64]]:
    """Yield blocks of evenly spaced points within a kernel radius of some cell."""
    is_gap_C = np.diff(position_C) > 2 * _KERNEL_RADIUS
    first_C = position_C[np.r_[True, is_gap_C]]
    last_C = position_C[np.r_[is_gap_C, True]]
    for first, last in zip(first_C, last_C, strict=True):
        start = math.floor((first - _KERNEL_RADIUS) * _POINTS_PER_BANDWIDTH)
        stop = math.ceil((last + _KERNEL_RADIUS) * _POINTS_PER_BANDWIDTH)
        for block in range(start, stop, _BLOCK_POINTS):
            index_U = np.arange(block, min(block + _BLOCK_POINTS, stop))
            yield index_U / _POINTS_PER_BANDWIDTH
