"""A planted sentence buys a score if the bound of its rise says so; the bounds hold together."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

from encore.analysis.bootstrap import Estimate
from encore.analysis.entropy import entropy_weights
from encore.rules.probe_effects import RISK, lower_bounds, measure
from encore.rules.probe_variants import CONTROL, PLANTED, UNCHANGED
from tests.analysis.test_run_comparison import entropy

NUM_PAIRS, NUM_RULES = 60, 4
RULES = [f"rule-{index}" for index in range(NUM_RULES)]


def changes(rng: np.random.Generator, *, rise: float, num_pairs: int) -> np.ndarray:
    """Return changes in tenths, correlated in the two responses of a pair, some missing."""
    pair_effect = rng.normal(size=(1, num_pairs, NUM_RULES))
    response_effect = rng.normal(size=(2, num_pairs, NUM_RULES))
    change = rise + np.round(0.1 * (pair_effect + response_effect), 1)
    change[rng.random(change.shape) < 0.1] = np.nan
    return change


@pytest.mark.parametrize("num_pairs", [30, 200])
def test_a_rule_that_rises_by_the_margin_alone_is_named_as_rarely_as_the_risk_says(num_pairs):
    # 3 sentences and 4 rules: any of 12 bounds above the truth in 5 % of the probes at most. Of
    # 1,000 probes 5 % are 50, and chance adds 2.6 standard deviations (18) in one case of 200.
    rng = np.random.default_rng(0)
    level = RISK / (3 * NUM_RULES)
    named = [
        any(
            (lower_bounds(changes(rng, rise=0.1, num_pairs=num_pairs), level=level)[1] > 0.1).any()
            for _ in range(3)
        )
        for _ in range(1000)
    ]
    assert 20 <= sum(named) <= 68


def forms() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    unchanged = np.round(rng.uniform(0.2, 0.8, (2, NUM_PAIRS, NUM_RULES)), 1)
    changed = np.round(np.clip(unchanged + 0.1 * rng.normal(size=unchanged.shape), 0, 1), 1)
    return {UNCHANGED: unchanged, CONTROL: changed, **{name: changed.copy() for name in PLANTED}}


def test_every_figure_follows_from_the_ratings_of_both_forms():
    rating_of = forms()
    rating_of["planted-order"][:, :, 1] = 1.0
    rating_of["planted-order"][0, :7, 2] = np.nan
    for name in (CONTROL, *PLANTED):  # a judge that likes length rates this up without any order
        rating_of[name][:, :, 3] = rating_of[UNCHANGED][:, :, 3] + 0.2
    rules = measure(RULES, rating_of, num_draws=20)
    before_2PR, after_2PR = rating_of[UNCHANGED], rating_of["planted-order"]
    is_rated_2PR = ~np.isnan(after_2PR)
    entropies = np.array(
        [
            [entropy(rating[:, :, rule][is_rated_2PR[:, :, rule]]) for rule in range(NUM_RULES)]
            for rating in (before_2PR, after_2PR)
        ]
    )
    weights = entropy_weights(entropies)
    for index, rule in enumerate(rules):
        effect = rule.effects["planted-order"]
        before_2P, after_2P = before_2PR[:, :, index], after_2PR[:, :, index]
        is_rated_2P = is_rated_2PR[:, :, index]
        is_whole_P = is_rated_2P.all(axis=0)
        orders = np.sign(before_2P[0] - before_2P[1]) * np.sign(after_2P[0] - after_2P[1])
        rise_2P = after_2P - rating_of[CONTROL][:, :, index]
        change = effect.change
        assert change.flip_rate.value == pytest.approx((orders < 0)[is_whole_P].mean())
        assert change.mean_difference.value == pytest.approx(np.nanmean(after_2P - before_2P))
        assert effect.rise == pytest.approx(np.nanmean(rise_2P))
        differences = [change.entropy_difference.value, change.weight_difference.value]
        expected = [entropies[1] - entropies[0], weights[1] - weights[0]]
        assert differences == pytest.approx([difference_R[index] for difference_R in expected])
        assert (change.num_ratings, change.num_pairs) == (is_rated_2P.sum(), is_whole_P.sum())
    assert [rule.is_bought for rule in rules] == [False, True, False, False]
    rise_P = (1 - rating_of[CONTROL][:, :, 1]).mean(axis=0)  # 12 bounds hold together
    t = scipy.stats.t.isf(0.05 / 12, NUM_PAIRS - 1)
    bound = rise_P.mean() - t * rise_P.std(ddof=1) / np.sqrt(NUM_PAIRS)
    assert rules[1].effects["planted-order"].rise_bound == pytest.approx(bound)


def test_a_sure_rise_counts_only_beyond_a_twentieth():
    # Every rating rises by the same amount, so the bound is the rise itself: 0.04 is within the
    # margin of 0.05, 0.06 is beyond it. Rule 2 does not rise. The control of rule 3 is at 0.96
    # everywhere: nothing can rise by 0.05 from there, so the rule is unknown.
    rating_of = forms()
    for name in (CONTROL, *PLANTED):
        rating_of[name] = np.full((2, NUM_PAIRS, NUM_RULES), 0.5)
        rating_of[name][:, :, 3] = 0.96
    rating_of["planted-claim"][:, :, :2] += [0.04, 0.06]
    rules = measure(RULES, rating_of, num_draws=20)
    bounds = [rule.effects["planted-claim"].rise_bound for rule in rules]
    assert bounds == pytest.approx([0.04, 0.06, 0.0, 0.0])
    assert [rule.is_bought for rule in rules] == [False, True, False, None]


def test_nulls_and_ratings_at_the_top_leave_a_rule_unknown():
    rating_of = forms()
    for name in PLANTED:
        rating_of[name][:, :, 0] = np.nan
    for rating in rating_of.values():
        rating[:, :, 1] = 1.0
    rating_of["planted-claim"][:, :, 2] = np.nan
    rating_of["planted-order"][:, :, 2] = 1.0
    rating_of["planted-claim"][:, :, 3] = np.nan
    rules = measure(RULES, rating_of, num_draws=20)
    # No sentence has a rating; no room to rise; one sentence buys; one sentence is unknown.
    assert [rule.is_bought for rule in rules] == [None, None, True, None]
    silent = rules[0].effects["planted-order"]
    assert silent.change.mean_difference == silent.change.flip_rate == Estimate()
    assert (silent.rise, silent.rise_bound, silent.change.num_ratings) == (None, None, 0)
