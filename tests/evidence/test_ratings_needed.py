"""How many ratings are enough: the promise holds for the true weights, and nothing is promised."""

from __future__ import annotations

import numpy as np
import pytest

from encore.evidence.ratings_needed import ratings_needed
from encore.warehouse import PairRatings
from tests.evidence.evidence_pairs import drawn_pairs, exact_weights, rated_pairs, skewed_masses

MASSES = skewed_masses(5)


def largest_error(pairs: PairRatings) -> float:
    """Of ENCORE's weights from these pairs against those of the probabilities they came from."""
    columns = np.concatenate([pairs.chosen_PR, pairs.rejected_PR]).T
    counts = [np.unique(column, return_counts=True)[1] for column in columns]
    entropy_R = np.array([-np.sum(c / c.sum() * np.log(c / c.sum())) for c in counts])
    mass_R = np.exp(-entropy_R / 2)
    return float(np.abs(mass_R / mass_R.sum() / exact_weights(MASSES, tau=2.0) - 1).max())


@pytest.mark.parametrize("copied", [0.0, 0.8])
def test_the_error_that_it_states_holds_19_times_in_20(copied: float) -> None:
    # Ratings that are copied within a pair say half as much: whole pairs are drawn, so it knows.
    rng = np.random.default_rng(1)
    pairs = drawn_pairs(MASSES, num_pairs=1000, rng=rng, copied=copied)
    stated = ratings_needed(pairs).error_now
    assert stated is not None
    samples = (drawn_pairs(MASSES, num_pairs=1000, rng=rng, copied=copied) for _ in range(200))
    share = np.mean([largest_error(one) <= stated for one in samples])
    assert 0.85 <= share <= 1.0  # the curve is fitted to one sample, whose quantile is unsure


def test_errors_fall_with_the_root_of_pairs_and_so_does_the_recommendation() -> None:
    pairs = drawn_pairs(MASSES, num_pairs=4000, rng=np.random.default_rng(2))
    found = ratings_needed(pairs, target=0.02)
    sizes, errors = np.array(found.errors).T
    assert (sizes[0], sizes[-1]) == (25, 2000)
    assert (np.diff(errors) < 0).all()
    other = ratings_needed(pairs, target=0.01)
    # Half the error takes some four times as many pairs.
    assert other.num_pairs_needed == pytest.approx(4 * found.num_pairs_needed, rel=0.1)
    assert "2 %" in found.sentence


def test_a_target_beyond_the_data_is_extrapolated_and_said() -> None:
    pairs = drawn_pairs(MASSES, num_pairs=500, rng=np.random.default_rng(3))
    found = ratings_needed(pairs, target=0.001)
    assert found.num_pairs_needed > 500
    assert "1,000 ratings per rule are too few for 0.1 %" in found.sentence
    assert "(extrapolated)" in found.sentence


def test_the_same_seed_gives_the_same_sentence() -> None:
    pairs = drawn_pairs(MASSES, num_pairs=300, rng=np.random.default_rng(4))
    assert ratings_needed(pairs) == ratings_needed(pairs)
    assert ratings_needed(pairs).errors != ratings_needed(pairs, seed=1).errors


def test_few_pairs_unknown_levels_and_silent_rules_promise_nothing() -> None:
    rng = np.random.default_rng(5)
    few = ratings_needed(drawn_pairs(MASSES, num_pairs=99, rng=rng))
    assert "at least 100 are needed" in few.sentence
    unknown = rng.random((2, 300, 2))
    unknown[:, :, 0] = 0.5
    found = ratings_needed(rated_pairs(*unknown))
    assert "100% of the ratings of rule rule-1 occur once only" in found.sentence
    rare = np.full((2, 300, 2), np.nan)
    rare[:, :, 0] = np.round(rng.random((2, 300)), 1)
    rare[:, :3, 1] = 0.5
    silent = ratings_needed(rated_pairs(*rare))
    assert "most samples hold no rating of some rule" in silent.sentence
    assert (silent.error_now, silent.num_pairs_needed) == (None, None)


def test_constant_rules_have_no_error() -> None:
    half = np.full((200, 2), 0.5)
    assert ratings_needed(rated_pairs(half, half)).error_now == 0.0
