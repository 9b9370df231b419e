"""The curve through errors of samples of finite data."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from encore.evidence.error_curve import ErrorCurve, fit_error_curve

SIZES = [25, 50, 100, 200, 400, 500]
POSITIVE = st.floats(1e-3, 10)


def measured(noise: float, bias: float, *, num_pairs: int) -> list[float]:
    """What samples of N pairs show where the truth is noise/sqrt(n) + bias/n."""
    x = [math.sqrt(1 / size - 1 / num_pairs) for size in SIZES]
    return [noise * value + bias * value**2 for value in x]


@given(POSITIVE, POSITIVE)
def test_errors_of_such_a_curve_give_it_back(noise: float, bias: float):
    found = fit_error_curve(SIZES, measured(noise, bias, num_pairs=1000), num_pairs=1000)
    assert found is not None
    # Coefficients of very different size are told apart less well than the errors they make.
    for size in (25, 1000, 50_000):
        expected = noise / math.sqrt(size) + bias / size
        assert found.error(size) == pytest.approx(expected, rel=1e-3)
    assert found.misfit < 1e-6


def test_half_of_the_data_looks_better_than_it_is_by_the_root_of_two():
    # Samples of 500 out of 1000 with error 0.1: noise sqrt(1/500 - 1/1000) = noise / sqrt(1000)
    # = 0.1, so noise = sqrt(10), and against the truth 500 pairs err by sqrt(10/500) = 0.1414.
    found = fit_error_curve([500], [0.1], num_pairs=1000)
    assert found is not None
    assert found.error(500) == pytest.approx(0.1 * math.sqrt(2), rel=1e-9)
    assert found.error(1000) == pytest.approx(0.1, rel=1e-9)


@given(POSITIVE, st.floats(0, 10), st.floats(1e-4, 0.5))
def test_the_number_of_pairs_for_an_error_gives_that_error(noise: float, bias: float, error: float):
    curve = ErrorCurve(noise=noise, bias=bias, misfit=0.0, smallest_size=25)
    assert curve.error(curve.num_pairs(error)) == pytest.approx(error, rel=1e-9)


def test_without_bias_four_times_the_pairs_halve_the_error():
    curve = ErrorCurve(noise=1.0, bias=0.0, misfit=0.0, smallest_size=25)
    assert curve.num_pairs(0.01) == pytest.approx(10_000)
    assert curve.num_pairs(0.005) == pytest.approx(40_000)


def test_no_error_at_all_fits_and_some_errors_of_zero_do_not():
    never = fit_error_curve([25, 50], [0.0, 0.0], num_pairs=100)
    assert never == ErrorCurve(noise=0.0, bias=0.0, misfit=0.0, smallest_size=25)
    sometimes = fit_error_curve([25, 50], [0.1, 0.0], num_pairs=100)
    assert sometimes is not None
    assert sometimes.misfit == 1.0


def test_errors_that_do_not_fall_fit_badly():
    found = fit_error_curve(SIZES, [0.3] * len(SIZES), num_pairs=10_000)
    assert found is not None
    assert found.misfit > 0.25


def test_samples_too_small_for_the_law_are_left_out_and_the_curve_begins_above_them():
    # From 100 pairs on the law holds exactly; below, errors are a tenth of it, as where a rare
    # level has not come up yet.
    errors = [
        e / 10 if n < 100 else e for n, e in zip(SIZES, measured(1, 0, num_pairs=1000), strict=True)
    ]
    found = fit_error_curve(SIZES, errors, num_pairs=1000)
    assert found is not None
    assert found.smallest_size == 100
    assert found.noise == pytest.approx(1, rel=1e-6)


def test_no_sizes_no_curve():
    assert fit_error_curve([], [], num_pairs=10) is None


def test_neither_coefficient_is_ever_negative():
    rng = np.random.default_rng(0)
    for _ in range(50):
        found = fit_error_curve(SIZES, rng.uniform(0.01, 1, len(SIZES)).tolist(), num_pairs=1000)
        assert found is not None
        assert min(found.noise, found.bias) >= 0
