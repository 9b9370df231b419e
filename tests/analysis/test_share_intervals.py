"""The exact interval of a share is that of its definition, at both ends."""

from __future__ import annotations

import pytest
from scipy.stats import binom

from encore.analysis.share_intervals import exact_interval


def test_the_ends_are_those_that_few_items_give_by_hand():
    # One of two: under the lower end one hit or more has 2.5 %, 1 - (1 - p)² = 0.025; under the
    # upper end one or fewer, 1 - p² = 0.025. None of n: (1 - p)^n = 0.025. All of n: p^n = 0.025.
    interval = exact_interval(1, 2)
    assert (interval.low, interval.high) == pytest.approx((1 - 0.975**0.5, 0.975**0.5))
    for total in (1, 2, 10, 300):
        none, every = exact_interval(0, total), exact_interval(total, total)
        assert (none.low, none.high) == (0.0, pytest.approx(1 - 0.025 ** (1 / total)))
        assert (every.low, every.high) == (pytest.approx(0.025 ** (1 / total)), 1.0)


@pytest.mark.parametrize("confidence", [0.95, 0.995])
@pytest.mark.parametrize(("hits", "total"), [(1, 10), (5, 10), (9, 10), (37, 212), (202, 212)])
def test_each_end_leaves_half_of_the_rest_beyond_the_hits(hits, total, confidence):
    interval = exact_interval(hits, total, confidence=confidence)
    beyond = (1 - confidence) / 2
    assert binom.cdf(hits, total, interval.high) == pytest.approx(beyond)
    assert binom.sf(hits - 1, total, interval.low) == pytest.approx(beyond)
    assert interval.value == hits / total
