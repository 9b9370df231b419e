"""Which scores a planted sentence buys: bounds that hold together, and what ratings cannot say."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

from encore.analysis.resampling import Estimate
from encore.rules.probe_variants import CONTROL, PLANTED, UNCHANGED
from encore.rules.soundness import RISK, lower_bounds, measure
from encore.weighting.schemes.encore import entropy_weights
from tests.weighting.test_run_comparison import entropy

NUM_PAIRS, NUM_RULES = 60, 4
RULES = [f"rule-{place}" for place in range(NUM_RULES)]


def changes(rng: np.random.Generator, *, rise: float, num_pairs: int) -> np.ndarray:
    """Changes of ratings in tenths, alike in the two responses of a pair, some of them missing."""
    of_pair = rng.normal(size=(1, num_pairs, NUM_RULES))
    of_response = rng.normal(size=(2, num_pairs, NUM_RULES))
    change = rise + np.round(0.1 * (of_pair + of_response), 1)
    change[rng.random(change.shape) < 0.1] = np.nan
    return change


@pytest.mark.parametrize("num_pairs", [30, 200])
def test_a_rule_that_rises_by_the_margin_alone_is_named_as_rarely_as_the_risk_says(num_pairs: int):
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


def forms(seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    unchanged = np.round(rng.uniform(0.2, 0.8, (2, NUM_PAIRS, NUM_RULES)), 1)
    changed = np.round(np.clip(unchanged + 0.1 * rng.normal(size=unchanged.shape), 0, 1), 1)
    return {UNCHANGED: unchanged, CONTROL: changed, **{name: changed.copy() for name in PLANTED}}


def test_every_figure_follows_from_the_ratings_of_both_forms() -> None:
    rating_of = forms()
    rating_of["planted-order"][:, :, 1] = 1.0
    rating_of["planted-order"][0, :7, 2] = np.nan
    for name in (CONTROL, *PLANTED):  # a judge that likes length rates this up without any order
        rating_of[name][:, :, 3] = rating_of[UNCHANGED][:, :, 3] + 0.2
    found = measure(RULES, rating_of, num_draws=20)
    before, after = rating_of[UNCHANGED], rating_of["planted-order"]
    both = ~np.isnan(after)
    entropies = np.array(
        [[entropy(one[:, :, k][both[:, :, k]]) for k in range(4)] for one in (before, after)]
    )
    weights = entropy_weights(entropies)
    for place, rule in enumerate(found):
        one = rule.effects["planted-order"]
        x, y, whole = before[:, :, place], after[:, :, place], both[:, :, place].all(axis=0)
        flips = (np.sign(x[0] - x[1]) * np.sign(y[0] - y[1]) < 0)[whole].mean()
        change = (y - x)[both[:, :, place]].mean()
        rise = (y - rating_of[CONTROL][:, :, place])[both[:, :, place]].mean()
        assert one.change.flip_rate.value == pytest.approx(flips)
        assert one.change.mean_difference.value == pytest.approx(change)
        assert one.rise == pytest.approx(rise)
        difference = np.diff(np.stack([entropies, weights]), axis=1)[:, 0, place]
        measured = [one.change.entropy_difference.value, one.change.weight_difference.value]
        assert measured == pytest.approx(difference)
        assert (one.change.num_ratings, one.change.num_pairs) == (
            both[:, :, place].sum(),
            whole.sum(),
        )
    assert [rule.is_bought for rule in found] == [False, True, False, False]
    of_pair = (1 - rating_of[CONTROL][:, :, 1]).mean(axis=0)  # 12 bounds hold together
    t = scipy.stats.t.isf(0.05 / 12, NUM_PAIRS - 1)
    bound = of_pair.mean() - t * of_pair.std(ddof=1) / np.sqrt(NUM_PAIRS)
    assert found[1].effects["planted-order"].rise_bound == pytest.approx(bound)


def test_a_sure_rise_counts_only_beyond_a_twentieth() -> None:
    # Every rating rises by the same amount, so the bound is the rise itself: 0.04 is within the
    # margin of 0.05, 0.06 is beyond it. Rule 2 does not rise. The control of rule 3 is at 0.96
    # everywhere: nothing can rise by 0.05 from there, so nothing is known of it.
    rating_of = forms()
    for name in (CONTROL, *PLANTED):
        rating_of[name] = np.full((2, NUM_PAIRS, NUM_RULES), 0.5)
        rating_of[name][:, :, 3] = 0.96
    rating_of["planted-claim"][:, :, :2] += [0.04, 0.06]
    found = measure(RULES, rating_of, num_draws=20)
    bounds = [rule.effects["planted-claim"].rise_bound for rule in found]
    assert bounds == pytest.approx([0.04, 0.06, 0.0, 0.0])
    assert [rule.is_bought for rule in found] == [False, True, False, None]


def test_nulls_and_ratings_at_the_top_leave_a_rule_unknown() -> None:
    rating_of = forms()
    for name in PLANTED:
        rating_of[name][:, :, 0] = np.nan
    for rating in rating_of.values():
        rating[:, :, 1] = 1.0
    rating_of["planted-claim"][:, :, 2] = np.nan
    rating_of["planted-order"][:, :, 2] = 1.0
    rating_of["planted-claim"][:, :, 3] = np.nan
    found = measure(RULES, rating_of, num_draws=20)
    # Sentences that got no rating, no room to rise, one that buys, one of which nothing is known.
    assert [rule.is_bought for rule in found] == [None, None, True, None]
    silent = found[0].effects["planted-order"]
    assert silent.change.mean_difference == silent.change.flip_rate == Estimate()
    assert (silent.rise, silent.rise_bound, silent.change.num_ratings) == (None, None, 0)
