"""The study in `examples/never_below_start.py`: its intervals, and what each part learns from."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="scikit-learn is not installed")

from examples.never_below_start import RULES, Pairs, pairs_and_seeds, rewards_of_states

pytestmark = pytest.mark.full  # of a script alone


def test_an_interval_is_over_prompts_and_over_seeds():
    # Two seeds that differ in all pairs: a draw is twice the first, twice the second, or both, so
    # the interval goes from one to the other although no pair varies within a seed.
    credit_SP = np.array([[1.0] * 50, [0.0] * 50])
    assert pairs_and_seeds(credit_SP, np.arange(50)) == (0.5, 0.0, 1.0)
    # One seed, two prompts, five pairs not tested: the mean of a draw is 0, 1/2 or 1.
    credit_SP = np.array([[1.0] * 10 + [0.0] * 10 + [np.nan] * 5])
    group_P = np.repeat([7, 8], (10, 15))
    mean, low, high = pairs_and_seeds(credit_SP, group_P)
    assert (mean, low, high) == (0.5, 0.0, 1.0)


def test_rewards_rank_held_out_pairs_of_a_reward_that_is_linear():
    rng = np.random.default_rng(0)
    state_P2D = rng.normal(size=(300, 2, 8))
    state_P2D[:, :, 4:] = state_P2D[:, :1, 4:]  # the prompt's half
    quality_P2 = state_P2D[:, :, 0]
    order_P2 = np.argsort(-quality_P2, axis=1)
    state_P2D = np.take_along_axis(state_P2D, order_P2[:, :, None], axis=1)
    mixing_DR = rng.normal(size=(8, len(RULES)))
    mixing_DR[0] = np.abs(mixing_DR[0])
    rating_P2R = 1 / (1 + np.exp(-(state_P2D @ mixing_DR)))
    pairs = Pairs(state_P2D=state_P2D, rating_P2R=rating_P2R, group_P=np.arange(300) // 2)
    margins, is_test_P, losses = rewards_of_states(pairs, {}, seed=0)
    assert is_test_P.sum() == 60  # a fifth of 150 prompts, two pairs each
    assert (margins["Bradley-Terry head"]["held-out"] > 0).mean() > 0.95
    assert (margins["best constant weights of heads"]["held-out"] > 0).mean() > 0.9
    assert losses["best constant weights"] < np.log(2)
