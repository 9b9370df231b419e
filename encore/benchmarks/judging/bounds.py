"""What a benchmark's headline would be if no verdict were missing."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from encore.benchmarks.judging.summary import CHOSEN, REJECTED, filled
from encore.benchmarks.metrics import benchmark_score

if TYPE_CHECKING:
    from encore.benchmarks.pairs import BenchmarkPairs

# Suffix: P pairs.


def headline_bounds(
    verdict: NDArray[np.int8],
    credits_of: Callable[[NDArray[np.int8]], NDArray[np.float64]],
    *,
    pairs: BenchmarkPairs,
) -> tuple[float, float]:
    """The headline with all missing verdicts wrong, and with all of them right.

    Counted as the headline is: over rows of several rejected answers, and over subsets where these
    weigh alike. No verdict of a pair lowers the credit of another, so nothing lies outside.

    Args:
        verdict: Of the pairs, whatever the shape.
        credits_of: Credits of such verdicts, shape [P]; more of a right verdict is never less.
        pairs: The benchmark's, in the order of the verdicts.
    """
    low, high = (
        benchmark_score(credits_of(filled(verdict, by=answer)), pairs=pairs, ties="half")
        for answer in (REJECTED, CHOSEN)
    )
    return low.headline.score, high.headline.score
