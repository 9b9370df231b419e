"""Differential entropy against direct summation over all ratings; Miller and Madow's correction."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import pytest

from encore.analysis.analyze import analyze
from tests.reference import kde_entropy
from tests.worlds.ratings import ratings_table


def entropy_of(ratings: Iterable[float | None]) -> float | None:
    table = ratings_table([(str(i), "s", "chosen", "r", x) for i, x in enumerate(ratings)])
    return analyze(table).rules[0].differential_entropy_nats


@pytest.mark.parametrize("shape", [(0.5, 0.5), (2.0, 5.0), (200.0, 3.0)])
def test_a_density_in_cells_equals_the_sum_over_all_ratings(shape):
    ratings = np.random.default_rng(7).beta(*shape, size=1500)
    assert entropy_of(ratings) == pytest.approx(kde_entropy(ratings), abs=1e-6)


def test_a_rare_level_far_away_adds_a_gaussian():
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
def test_fewer_than_two_levels_have_no_density(ratings):
    assert entropy_of(ratings) is None


def test_the_miller_madow_correction_is_levels_less_1_over_twice_the_ratings():
    # Eight ratings on three levels, four, two and two; two are missing and count for nothing.
    # Entropy: 1/2 ln 2 + 2 · 1/4 ln 4 = 3/2 ln 2. The correction is (3 - 1) / (2 · 8) = 1/8. The
    # constant rule has one level, so nothing is added.
    varied = [0.0] * 4 + [0.5] * 2 + [1.0] * 2 + [None] * 2
    rows = [(str(i), "s", "chosen", "varied", x) for i, x in enumerate(varied)]
    rows += [(str(i), "s", "chosen", "constant", 0.5) for i in range(10)]
    constant_rule, varied_rule = analyze(ratings_table(rows)).rules
    assert varied_rule.entropy_nats == pytest.approx(1.5 * math.log(2))
    assert varied_rule.entropy_miller_madow_nats == pytest.approx(1.5 * math.log(2) + 1 / 8)
    assert constant_rule.entropy_miller_madow_nats == 0.0
