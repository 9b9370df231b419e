"""Agreement of raters: the mean of numpy's r over pairs, and an interval that covers the truth."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest

from encore.analysis.bootstrap import Estimate
from encore.rules.importance_agreement import RaterAgreement, rater_agreement

RATER_RHO = 0.71  # the paper's mean correlation of people and judges
NUM_RULES = 87  # the paper's distinct rules


def raters(*nums: int, num_rules: int, rho: float, rng: np.random.Generator) -> list[np.ndarray]:
    """Return ratings of groups of raters, any two of which correlate by rho, shape [A, R]."""
    truth_R = np.sqrt(rho) * rng.standard_normal(num_rules)
    noises = [np.sqrt(1 - rho) * rng.standard_normal((num, num_rules)) for num in nums]
    return [0.5 + 0.1 * (truth_R + noise_AR) for noise_AR in noises]


def test_the_mean_is_that_of_numpys_r_over_all_pairs_of_raters():
    people, judges = raters(5, 4, num_rules=30, rho=0.6, rng=np.random.default_rng(1))
    for agreement, pairs in (
        (rater_agreement(people, judges), product(people, judges)),
        (rater_agreement(people), combinations(people, 2)),
    ):
        correlations = [np.corrcoef(*pair)[0, 1] for pair in pairs]
        assert agreement.r.value == pytest.approx(np.mean(correlations), abs=1e-12)
        assert agreement.num_pairs == len(correlations)
        assert agreement.r.low < agreement.r.value < agreement.r.high


def test_rules_that_one_of_two_raters_did_not_rate_do_not_count_for_the_two():
    rating_AR = np.array([[0.1, 0.4, 0.8, np.nan, 0.9], [0.2, 0.3, 0.9, 0.5, np.nan]])
    expected = np.corrcoef(rating_AR[:, :3])[0, 1]
    assert rater_agreement(rating_AR).r.value == pytest.approx(expected, abs=1e-12)


def test_a_rater_with_one_answer_or_two_rules_in_common_has_no_r():
    rows = np.array([[0.1, 0.2, 0.4, 0.7], [0.5] * 4, [0.2, 0.9, np.nan, np.nan]])
    nobody = np.empty((0, 4))
    for groups in ((rows,), (rows[:1],), (rows, nobody)):
        assert rater_agreement(*groups) == RaterAgreement(r=Estimate(), num_pairs=0)


def test_equal_raters_agree_fully_and_the_same_call_gives_the_same_interval():
    rating_AR = np.random.default_rng(0).random((3, 20))
    assert rater_agreement(rating_AR) == rater_agreement(rating_AR)
    r = rater_agreement(rating_AR[[0, 0]]).r
    assert (r.value, r.low, r.high) == pytest.approx((1, 1, 1))


@pytest.mark.parametrize("num_studies", [60, pytest.param(500, marks=pytest.mark.full)])
def test_the_interval_covers_the_true_correlation_in_95_percent_of_studies(num_studies):
    """Five people and four judges rate 87 rules, as in the paper; the truth is known."""
    rng = np.random.default_rng(20)
    num_covered = 0
    for _ in range(num_studies):
        r = rater_agreement(*raters(5, 4, num_rules=NUM_RULES, rho=RATER_RHO, rng=rng)).r
        num_covered += r.low <= RATER_RHO <= r.high
    # Of 60 studies, 95 % is 57; three standard errors of a share of 0.95 are 0.084.
    lowest, highest = (0.93, 0.97) if num_studies >= 500 else (0.866, 1.0)
    assert lowest <= num_covered / num_studies <= highest
