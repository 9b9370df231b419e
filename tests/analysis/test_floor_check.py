"""Checks of a floor under the rules' agreement, of drift between runs, and their false passes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from scipy.stats import binom

from encore.analysis.floor_check import TAIL, RuleFloor, check_drift, check_floor, outcome_of
from encore.analysis.paired_difference import mean_difference_interval
from encore.analysis.statistics import rating_statistics
from encore.warehouse import open_ratings, open_warehouse
from tests.worlds.ratings import pairs_of_margins, rule_names, statistics_of_margins, table_of

FULL = pytest.mark.full
FLOOR = 0.8
#: Rules that are drawn at a time: each is a study of its own.
NUM_RULES = 100


def checked(table: pa.Table, *, floor: float = FLOOR) -> tuple[RuleFloor, ...]:
    with open_warehouse(open_ratings(table)) as warehouse:
        statistics = rating_statistics(warehouse)[-1]
    rule_ids = [rule.rule_id for rule in statistics.rules]
    return check_floor(statistics, floor=floor, rule_ids=rule_ids)


def table_of_wins(is_win_PR: np.ndarray) -> pa.Table:
    return table_of(is_win_PR, ~is_win_PR)


def share_passed(accuracy: float, *, num_pairs: int, num_studies: int, num_alike: int = 1) -> float:
    """Return the share of simulated rules of this accuracy that pass.

    Args:
        accuracy: The accuracy of every rule.
        num_pairs: Number of pairs, none of them tied.
        num_studies: Number of rules, a multiple of `NUM_RULES`.
        num_alike: Number of pairs of a prompt, which agree with people all or none of them.
    """
    rng, num_passed = np.random.default_rng(num_pairs), 0
    num_prompts = num_pairs // num_alike
    for _ in range(num_studies // NUM_RULES):
        is_win_GR = rng.random((num_prompts, NUM_RULES)) < accuracy
        margin_PR = np.repeat(np.where(is_win_GR, 1.0, -1.0), num_alike, axis=0)
        statistics = statistics_of_margins(margin_PR)
        if num_alike > 1:
            prompt_P = np.repeat(np.arange(num_prompts, dtype=np.uint64), num_alike)
            pairs = replace(pairs_of_margins(margin_PR), prompt_P=prompt_P, grouped_by="prompt")
            statistics = replace(statistics, pairs=pairs)
        rows = check_floor(statistics, floor=FLOOR, rule_ids=rule_names(NUM_RULES))
        num_passed += sum(row.outcome == "above" for row in rows)
    return num_passed / num_studies


@pytest.mark.parametrize(
    ("num_pairs", "num_studies"),
    [(100, 200), *(pytest.param(number, 4000, marks=FULL) for number in (50, 100, 200, 400))],
)
def test_a_rule_at_the_floor_passes_in_4_to_5_percent_of_studies(num_pairs, num_studies):
    """The exact test has 4.3 to 4.8 % for these numbers of pairs; three standard errors more."""
    error = 3 * np.sqrt(0.05 * 0.95 / num_studies)
    share = share_passed(FLOOR, num_pairs=num_pairs, num_studies=num_studies)
    assert 0.04 - error <= share <= 0.05 + error


@pytest.mark.full
@pytest.mark.parametrize("num_pairs", [100, 400])
def test_pairs_of_one_prompt_are_no_further_evidence(num_pairs):
    """Four pairs of a prompt count as one: at the floor at most 5 % pass, not some 20 %."""
    share = share_passed(FLOOR, num_pairs=num_pairs, num_studies=2000, num_alike=4)
    assert 0.01 <= share <= 0.065


@pytest.mark.full
@pytest.mark.parametrize("accuracy", [0.85, 0.9])
@pytest.mark.parametrize("num_pairs", [50, 100, 200, 400])
def test_the_power_is_that_of_the_exact_test(accuracy, num_pairs):
    least_wins = int(binom.isf(0.05, num_pairs, FLOOR)) + 1
    power = float(binom.sf(least_wins - 1, num_pairs, accuracy))
    share = share_passed(accuracy, num_pairs=num_pairs, num_studies=4000)
    assert abs(share - power) <= 3 * np.sqrt(power * (1 - power) / 4000) + 1e-3


def test_a_rule_passes_by_its_bound_and_the_further_pairs_are_named():
    """87 of 100 pairs are the least that reject 80 % (P(X >= 87) = 4.7 %, P(X >= 86) = 8.0 %).

    At 85 %: (1.6449 sqrt(0.8 * 0.2) + 0.8416 sqrt(0.85 * 0.15)) / 0.05 = 19.17, squared 367.5, and
    1 / 0.05 more: 388 pairs, 288 of them new. At the floor itself no number decides.
    """
    wins = (87, 86, 85, 80, 70)
    rows = checked(table_of_wins(np.arange(100)[:, None] < np.array(wins)))
    outcomes = ["above", "undecided", "undecided", "undecided", "below"]
    assert [row.outcome for row in rows] == outcomes
    assert [row.num_more_pairs for row in rows][2:] == [288, None, None]


def test_ties_are_left_out_and_missing_pairs_are_counted_for_a_second_look():
    """90 of 95 pairs are right; of the others 5 are tied and 20 lack a rating: 90 of 115 fail."""
    chosen = np.repeat([1.0, 0.0, 0.5, np.nan], [90, 5, 5, 20])[:, None]
    [row] = checked(table_of(chosen, np.full((120, 1), 0.5)))
    assert row.agreement.value == 90 / 95
    assert (row.num_untied_pairs, row.num_missing_pairs, row.tie_rate) == (95, 20, 0.05)
    assert (row.outcome, row.outcome_if_missing_lost) == ("above", "undecided")


def test_drift_is_a_paired_difference_above_the_margin():
    """Bonett and Price, one-sided: with 200 pairs and d differing ones that the new run loses.

    The centre is -d / 202, the variance (d + 2) / 202 - d² / 202², by 202. With 1.6449 errors: no
    pair differs gives -0.0115, 2 give -0.0261, 20 give -0.1354 to -0.0626, so the loss of 0.1 is
    seen.
    """
    is_win = np.ones((200, 3), dtype=bool)
    old = open_ratings(table_of_wins(is_win))
    is_win[:2, 1] = is_win[:20, 2] = False
    new = open_ratings(table_of_wins(is_win))
    rows = check_drift(new, old, margin=0.02, rule_ids=rule_names(3))
    assert [row.outcome for row in rows] == ["above", "undecided", "below"]
    assert [(row.num_better_pairs, row.num_worse_pairs) for row in rows] == [
        (0, 0),
        (0, 2),
        (0, 20),
    ]
    lows = [row.difference.low for row in rows]
    assert lows == pytest.approx([-0.0115, -0.0261, -0.1354], abs=1e-4)
    # (0.0162 (1 + 0.8416 / 1.6449) / 0.01)² is 6.03 times the pairs: 1,207, 1,007 of them new.
    assert [row.num_more_pairs for row in rows] == [None, pytest.approx(1007, abs=5), None]
    [row] = check_drift(old, new, margin=0.0, rule_ids=rule_names(3)[2:])
    assert (row.outcome, row.num_better_pairs) == ("above", 20)


@pytest.mark.full
@pytest.mark.parametrize("share_differing", [0.1, 0.3])
@pytest.mark.parametrize("num_pairs", [100, 400])
def test_a_judge_that_lost_the_margin_passes_in_about_5_percent(share_differing, num_pairs):
    """Three errors of 3,000 studies are 1.2 points; few differing pairs add up to 1 point."""
    margin, rng, num_passed = 0.05, np.random.default_rng(num_pairs), 0
    shares = [(share_differing + margin) / 2, 1 - share_differing, (share_differing - margin) / 2]
    for _ in range(3000):
        delta_P = rng.choice([-1.0, 0.0, 1.0], p=shares, size=num_pairs)
        difference = mean_difference_interval(delta_P, tail=TAIL)
        num_passed += outcome_of(difference, -margin) == "above"
    assert 0.03 <= num_passed / 3000 <= 0.072


def test_pairs_that_the_new_run_does_not_rate_are_counted():
    chosen = np.ones((40, 1))
    old = open_ratings(table_of(chosen, 1 - chosen))
    chosen[:5] = np.nan
    [row] = check_drift(
        open_ratings(table_of(chosen, 1 - chosen)), old, margin=0.1, rule_ids=rule_names(1)
    )
    assert (row.num_pairs, row.num_lost_pairs) == (35, 5)
