"""The stated error of weights holds for the true weights, or none is stated."""

from __future__ import annotations

import re

import numpy as np
import pytest

from encore.warehouse import PairRatings
from encore.weighting.ratings_needed import ratings_needed
from encore.weighting.weight_error import weight_error
from tests.worlds.ratings import rated_pairs

# Five rules on eleven levels, from nearly uniform to nearly constant.
MASSES = np.exp(-np.linspace(0.05, 1.5, 5)[:, None] * np.linspace(0, 10, 11))
MASSES /= MASSES.sum(axis=1, keepdims=True)


def drawn_pairs(seed: int, *, num_pairs: int, copied: float = 0.0) -> PairRatings:
    """Draw pairs whose ratings have the probabilities `MASSES`.

    With probability ``copied`` the rejected response has the rating of the chosen one, so that the
    two ratings of a pair depend on each other.
    """
    rng = np.random.default_rng(seed)
    shape = (2, num_pairs, len(MASSES))
    level = (rng.random(shape)[..., None] > np.cumsum(MASSES, axis=1)[:, :-1]).sum(axis=-1)
    level[1] = np.where(rng.random(shape[1:]) < copied, level[0], level[1])
    return rated_pairs(*(level / 10))


def weights_of(entropies: list[float]) -> np.ndarray:
    mass_R = np.exp(-np.array(entropies) / 2)
    return mass_R / mass_R.sum()


def largest_error(pairs: PairRatings) -> float:
    """Return the largest error of a weight of these pairs, against the weights of `MASSES`."""
    columns = np.concatenate([pairs.chosen_PR, pairs.rejected_PR]).T
    shares = [np.unique(column, return_counts=True)[1] / len(column) for column in columns]
    weights = weights_of([-np.sum(p * np.log(p)) for p in shares])
    return float(np.abs(weights / weights_of(-np.sum(MASSES * np.log(MASSES), axis=1)) - 1).max())


@pytest.mark.parametrize("copied", [0.0, 0.8])
def test_the_error_that_it_states_holds_19_times_in_20(copied: float) -> None:
    # Ratings copied within a pair are worth half as much; whole pairs are drawn, so it counts.
    stated = weight_error(drawn_pairs(1, num_pairs=1000, copied=copied)).error
    assert stated is not None
    samples = (drawn_pairs(2 + i, num_pairs=1000, copied=copied) for i in range(200))
    share = np.mean([largest_error(sample) <= stated for sample in samples])
    assert 0.9 <= share <= 1.0


def test_half_the_error_needs_four_times_as_many_pairs() -> None:
    pairs = drawn_pairs(2, num_pairs=4000)
    sentences = [ratings_needed(pairs, target=target) for target in (0.02, 0.01, 0.0002)]
    number = re.compile("(?:after|take about) ([0-9,]+)")
    assert "within 2 % of the true ones after" in sentences[0]
    of_2_percent, of_1_percent = (
        int(number.search(sentence)[1].replace(",", "")) for sentence in sentences[:2]
    )
    assert of_1_percent == pytest.approx(4 * of_2_percent, rel=0.15)
    assert "8,000 ratings per rule are too few for 0.02 %" in sentences[2]
    assert "(extrapolated)" in sentences[2]
    assert ratings_needed(pairs, target=0.02) == sentences[0]
    assert weight_error(pairs, seed=1) != weight_error(pairs)


def test_no_error_is_stated_for_few_pairs_new_levels_or_rare_rules() -> None:
    rng = np.random.default_rng(5)
    assert "at least 100 are needed" in ratings_needed(drawn_pairs(5, num_pairs=99))
    distinct_2PR = rng.random((2, 300, 2))
    distinct_2PR[:, :, 0] = 0.5
    sentence = ratings_needed(rated_pairs(*distinct_2PR))
    assert "100% of the ratings of rule rule-01 occur once only" in sentence
    rare_2PR = np.full((2, 300, 2), np.nan)
    rare_2PR[:, :, 0] = np.round(rng.random((2, 300)), 1)
    rare_2PR[:, :3, 1] = 0.5
    assert "rule rule-01 has 6 ratings" in ratings_needed(rated_pairs(*rare_2PR))
    assert weight_error(rated_pairs(*rare_2PR)).error is None


def test_a_constant_rule_is_not_certain() -> None:
    # 200 pairs, two rules, 400 ratings of 0.5 each. Every surprise is 0 and no level is missing, so
    # all error is that of one more pair with a rating never seen before: it adds ln 400 / 2 to the
    # entropy, whose sd is then ln 400 / 2 / 200 = 0.014979. Weights are 1/2 each, so log w of the
    # first changes by (dH_2 - dH_1) / (2 tau) = (dH_2 - dH_1) / 4: sd 0.014979 · sqrt(2) / 4 =
    # 0.005296. The second changes by the opposite. The larger change of the two is exp(|x|) - 1,
    # and 95 % of |x| lie below 1.96 sd = 0.010380: exp(0.010380) - 1 = 0.010434. A quantile of
    # 20,000 draws is right to about 1 % (sd sqrt(0.95 · 0.05 / 20,000) / density).
    half = np.full((200, 2), 0.5)
    assert weight_error(rated_pairs(half, half)).error == pytest.approx(0.010434, rel=0.04)
