"""Agreement of raters: the mean of numpy's r over pairs, and an interval that covers the truth."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest

from encore.analysis.resampling import Estimate
from encore.rules.importance_agreement import rater_agreement

RATER_RHO = 0.71  # the paper's mean correlation of people and judges
NUM_RULES = 87  # the paper's distinct rules


def raters(num: int, *, rho: float, truth_R, rng) -> np.ndarray:
    """Ratings that correlate by rho between any two raters: one truth, and noise of their own."""
    noise = rng.standard_normal((num, len(truth_R)))
    return 0.5 + 0.1 * (np.sqrt(rho) * truth_R + np.sqrt(1 - rho) * noise)


def test_the_mean_is_that_of_numpys_r_over_all_pairs_of_raters():
    rng = np.random.default_rng(1)
    truth_R = rng.standard_normal(30)
    people = raters(5, rho=0.6, truth_R=truth_R, rng=rng)
    judges = raters(4, rho=0.6, truth_R=truth_R, rng=rng)
    across = [np.corrcoef(one, other)[0, 1] for one, other in product(people, judges)]
    within = [np.corrcoef(one, other)[0, 1] for one, other in combinations(people, 2)]
    for (r, num_pairs), expected in (
        (rater_agreement(people, judges), across),
        (rater_agreement(people), within),
    ):
        assert r.value == pytest.approx(np.mean(expected), abs=1e-12)
        assert num_pairs == len(expected)
        assert r.low < r.value < r.high


def test_rules_that_one_of_two_did_not_rate_do_not_count_for_the_two():
    first = np.array([0.1, 0.4, 0.8, np.nan, 0.9])
    second = np.array([0.2, 0.3, 0.9, 0.5, np.nan])
    both = [0, 1, 2]
    expected = np.corrcoef(first[both], second[both])[0, 1]
    r, _ = rater_agreement(np.stack([first, second]))
    assert r.value == pytest.approx(expected, abs=1e-12)


def test_a_rater_with_one_answer_or_two_rules_in_common_has_no_r():
    rows = np.array([[0.1, 0.2, 0.4, 0.7], [0.5] * 4, [0.2, 0.9, np.nan, np.nan]])
    nobody = np.empty((0, 4))
    for found in (rater_agreement(rows), rater_agreement(rows[:1]), rater_agreement(rows, nobody)):
        assert found == (Estimate(), 0)


def test_equal_raters_agree_fully_and_the_same_call_gives_the_same_interval():
    rating_AR = np.random.default_rng(0).random((3, 20))
    assert rater_agreement(rating_AR) == rater_agreement(rating_AR)
    same, _ = rater_agreement(rating_AR[[0, 0]])
    assert (same.value, same.low, same.high) == pytest.approx((1, 1, 1))


@pytest.mark.parametrize("num_studies", [60, pytest.param(500, marks=pytest.mark.full)])
def test_the_interval_covers_the_true_correlation_in_95_percent_of_studies(num_studies):
    """Five people and four judges rate 87 rules, as in the paper; the truth is known."""
    rng = np.random.default_rng(20)
    num_covered = 0
    for _ in range(num_studies):
        truth_R = rng.standard_normal(NUM_RULES)
        people, judges = (raters(n, rho=RATER_RHO, truth_R=truth_R, rng=rng) for n in (5, 4))
        r, _ = rater_agreement(people, judges)
        num_covered += r.low <= RATER_RHO <= r.high
    # Of 60 studies, 95 % is 57; three standard errors of a share of 0.95 are 0.084.
    lowest, highest = (0.93, 0.97) if num_studies >= 500 else (0.866, 1.0)
    assert lowest <= num_covered / num_studies <= highest
