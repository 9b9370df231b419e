"""Differential entropy of a kernel density, against direct summation over all ratings."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import pytest

from encore.analysis.analyze import analyze
from tests.ratings_files import ratings_table
from tests.reference import kde_entropy


def entropy_of(ratings: Iterable[float | None]) -> float | None:
    table = ratings_table([(str(i), "s", "chosen", "r", x) for i, x in enumerate(ratings)])
    return analyze(table).rules[0].differential_entropy_nats


@pytest.mark.parametrize("shape", [(0.5, 0.5), (2.0, 5.0), (200.0, 3.0)])
def test_distinct_ratings_are_gathered_in_cells(shape: tuple[float, float]) -> None:
    ratings = np.random.default_rng(7).beta(*shape, size=1500)
    assert entropy_of(ratings) == pytest.approx(kde_entropy(ratings), abs=1e-6)


def test_one_rare_level_far_away() -> None:
    # sd = 0.01 and h = 0.0016: the two levels are 600 bandwidths apart, so each is a Gaussian of
    # its own: H = p ln(1/p) + q ln(1/q) + ln(h sqrt(2 pi e)).
    ratings = np.array([0.0] * 9999 + [1.0])
    h = np.std(ratings, ddof=1) * 10_000**-0.2
    p = 1e-4
    expected = (
        -p * math.log(p) - (1 - p) * math.log(1 - p) + math.log(h * math.sqrt(2 * math.pi * math.e))
    )
    assert entropy_of(ratings) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("ratings", [[0.4], [0.4, 0.4, 0.4], [None, None], [0.4, None]])
def test_fewer_than_two_levels_have_no_density(ratings: list[float | None]) -> None:
    assert entropy_of(ratings) is None
