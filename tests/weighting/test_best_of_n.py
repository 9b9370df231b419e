"""Best-of-n over cached samples equals the mean over every subset, also where rewards are equal."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from examples.best_of_n import best_of_n


def test_the_best_of_two_by_hand():
    # Subsets (1, 2), (1, 3), (2, 3): the best have the values 0, 9 and 9.
    assert best_of_n([1.0, 2.0, 3.0], [3.0, 0.0, 9.0], 2) == 6.0


def test_one_sample_is_the_mean_and_all_are_the_best():
    assert best_of_n([1.0, 2.0, 3.0], [3.0, 0.0, 9.0], 1) == 4.0
    assert best_of_n([1.0, 2.0, 3.0], [3.0, 0.0, 9.0], 3) == 9.0


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 6])
def test_equal_rewards_share_their_value_as_in_every_subset(n):
    reward_N, value_N = [2.0, 1.0, 2.0, 0.0, 1.0, 2.0], [1.0, 5.0, 4.0, 7.0, 2.0, 9.0]
    winners = []
    for subset in combinations(range(6), n):
        top = max(reward_N[index] for index in subset)
        winners.append(np.mean([value_N[index] for index in subset if reward_N[index] == top]))
    assert best_of_n(reward_N, value_N, n) == pytest.approx(np.mean(winners), abs=1e-12)
