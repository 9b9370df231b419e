"""Composed ratings: who wins, what a tie is, and how sure the accuracy is."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

from encore.analysis.analyze import analyze
from encore.analysis.statistics import Accuracy
from encore.pair_ratings import read_pair_ratings
from encore.ratings_input import ratings_input
from encore.warehouse import Warehouse
from encore.weighting import composed
from encore.weighting.composed import (
    Outcome,
    complete_pairs,
    composed_outcomes,
    credits_of,
    half_credit_interval,
    margin_sds_of,
    outcome_of,
)
from encore.weighting.weigh import margin_sds
from tests.ratings_files import random_table
from tests.weighting.evidence_for_tests import pairs_of_margins


def test_pairs_are_won_tied_and_lost_by_the_weighted_margin() -> None:
    # At weights (3/4, 1/4): 0.3 - 0.1 > 0, 0.15 - 0.15 = 0, -0.3 + 0.1 < 0, 0.
    margin_PR = np.array([[0.4, -0.4], [0.2, -0.6], [-0.4, 0.4], [0.0, 0.0]])
    [outcome] = composed_outcomes(margin_PR, np.array([[0.75, 0.25]]))
    assert outcome == Outcome(num_wins=1, num_ties=2, num_losses=1)
    assert outcome.accuracy == Accuracy(half=0.5, strict=0.25, untied=0.5, inclusive=0.75)


def test_margins_that_cancel_but_for_rounding_are_a_tie() -> None:
    margin_PR = np.array([[0.8 - 0.7, 0.3 - 0.4]])
    assert (margin_PR @ [0.5, 0.5])[0] != 0
    [outcome] = composed_outcomes(margin_PR, np.array([[0.5, 0.5]]))
    assert outcome.num_ties == 1


def test_the_credit_of_a_pair_is_1_a_half_or_0() -> None:
    assert credits_of(np.array([0.2, 1e-17, 0.0, -0.2])).tolist() == [1.0, 0.5, 0.5, 0.0]


@pytest.mark.parametrize("seed", range(3))
def test_one_rule_alone_composes_its_own_accuracy(seed: int) -> None:
    table = random_table(np.random.default_rng(seed), max_rows=2000)
    rules = [rule for rule in analyze(table).rules if rule.num_pairs]
    with Warehouse(ratings_input(table)) as warehouse:
        for rule in rules:
            pairs = complete_pairs(read_pair_ratings(warehouse, rule_ids=[rule.rule_id]))
            assert outcome_of(pairs.margin_PR[:, 0]).accuracy == rule.accuracy


def test_blocks_of_pairs_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    margin_PR = rng.integers(-5, 6, size=(101, 4)) / 10
    weight_VR = rng.dirichlet(np.ones(4), size=7)
    whole = composed_outcomes(margin_PR, weight_VR)
    monkeypatch.setattr(composed, "_BLOCK_CELLS", 70)
    assert composed_outcomes(margin_PR, weight_VR) == whole


def test_without_pairs_there_is_no_accuracy_and_no_interval() -> None:
    [outcome] = composed_outcomes(np.empty((0, 2)), np.array([[0.5, 0.5]]))
    assert outcome.accuracy == Accuracy(half=None, strict=None, untied=None, inclusive=None)
    assert outcome.interval == (None, None)


def test_pairs_are_complete_when_every_rule_rated_both_responses() -> None:
    pairs = pairs_of_margins([[0.1, np.nan], [0.2, 0.3], [np.nan, np.nan], [0.0, 0.0]])
    assert complete_pairs(pairs).margin_PR.tolist() == [[0.2, 0.3], [0.0, 0.0]]


# --- intervals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("wins", "total"), [(0, 7), (7, 7), (61, 100), (500, 1000)])
def test_without_ties_the_interval_is_wilson_s(wins: int, total: int) -> None:
    expected = scipy.stats.binomtest(wins, total).proportion_ci(method="wilson")
    found = half_credit_interval(wins / total, tie_rate=0.0, num_pairs=total)
    assert found == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_ties_alone_leave_no_doubt_that_half_is_a_half() -> None:
    assert half_credit_interval(0.5, tie_rate=1.0, num_pairs=40) == pytest.approx((0.5, 0.5))


def test_the_interval_covers_the_truth_95_times_in_100() -> None:
    # Credits 1, 1/2, 0 with probabilities 0.4, 0.35, 0.25: the truth is 0.575. Of 4,000 samples
    # 95 % are covered give or take 4 · sqrt(0.95 · 0.05 / 4000) = 1.4 %.
    counts = np.random.default_rng(0).multinomial(300, [0.4, 0.35, 0.25], size=4000)
    intervals = np.array(
        [
            Outcome(num_wins=wins, num_ties=ties, num_losses=losses).interval
            for wins, ties, losses in counts.tolist()
        ]
    )
    covered = (intervals[:, 0] <= 0.575) & (intervals[:, 1] >= 0.575)
    assert covered.mean() == pytest.approx(0.95, abs=0.014)


# --- spread of margins ----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_the_spread_of_margins_is_that_of_the_query(seed: int) -> None:
    table = random_table(np.random.default_rng(seed), max_rows=2000)
    rule_ids = [rule.rule_id for rule in analyze(table).rules]
    with Warehouse(ratings_input(table)) as warehouse:
        expected = margin_sds(warehouse)
        found = margin_sds_of(read_pair_ratings(warehouse, rule_ids=rule_ids).margin_PR)
    for rule_id, sd in zip(rule_ids, found, strict=True):
        assert sd == (None if expected[rule_id] is None else pytest.approx(expected[rule_id]))


def test_one_margin_has_no_spread() -> None:
    assert margin_sds_of(np.array([[0.5, np.nan], [np.nan, np.nan]])) == (None, None)
