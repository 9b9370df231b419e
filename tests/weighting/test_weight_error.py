"""The stated error of weights holds, for a sample of pairs and for a run that stops early."""

from __future__ import annotations

import re
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.stats
from numpy.typing import ArrayLike, NDArray

from encore.rating.stop_rules import round_ends
from encore.warehouse import PairRatings
from encore.weighting.weight_error import ratings_needed, weight_error
from tests.worlds.prompts import DESIGNS, ranked_pairs
from tests.worlds.ratings import rated_pairs

pytestmark = pytest.mark.services

# Suffixes: K qualities of a response, R rules, L levels, P pairs; 2 before PR: chosen, rejected.

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


def weights_of(entropies: ArrayLike, *, tau: float = 2.0) -> NDArray[np.float64]:
    """Return ENCORE's weights, by default at the paper's temperature."""
    mass_R = np.exp(-np.array(entropies) / tau)
    return mass_R / mass_R.sum()


def weights_of_levels(level_2PR: NDArray[np.float64], *, tau: float = 2.0) -> NDArray[np.float64]:
    """Return ENCORE's weights of ratings that are whole numbers; NaN is missing."""
    level_NR = level_2PR.reshape(-1, level_2PR.shape[2])
    columns = [level_N[~np.isnan(level_N)].astype(int) for level_N in level_NR.T]
    return weights_of([scipy.stats.entropy(np.bincount(levels)) for levels in columns], tau=tau)


@pytest.mark.parametrize("copied", [0.0, 0.8])
def test_the_stated_error_holds_19_times_in_20(copied):
    # Ratings copied within a pair are worth half as much; whole pairs are drawn, so it counts.
    stated = weight_error(drawn_pairs(1, num_pairs=1000, copied=copied)).error
    assert stated is not None
    true_weight_R = weights_of(scipy.stats.entropy(MASSES, axis=1))
    samples = (drawn_pairs(2 + i, num_pairs=1000, copied=copied) for i in range(200))
    errors = [
        np.abs(weights_of_levels(np.rint(10 * sample.rating_2PR)) / true_weight_R - 1).max()
        for sample in samples
    ]
    assert 0.9 <= np.mean(np.array(errors) <= stated) <= 1.0


def test_half_the_error_needs_four_times_as_many_pairs():
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


def test_no_error_is_stated_for_few_pairs_new_levels_or_rare_rules():
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


def test_a_constant_rule_is_not_certain():
    # 200 pairs, two rules, 400 ratings of 0.5 each. Every surprise is 0 and no level is missing, so
    # all error is that of one more pair with a rating never seen before: it adds ln 400 / 2 to the
    # entropy, whose sd is then ln 400 / 2 / 200 = 0.014979. Weights are 1/2 each, so log w of the
    # first changes by (dH_2 - dH_1) / (2 tau) = (dH_2 - dH_1) / 4: sd 0.014979 · sqrt(2) / 4 =
    # 0.005296. The second changes by the opposite. The larger change of the two is exp(|x|) - 1,
    # and 95 % of |x| lie below 1.96 sd = 0.010380: exp(0.010380) - 1 = 0.010434. A quantile of
    # 20,000 draws is right to about 1 % (sd sqrt(0.95 · 0.05 / 20,000) / density).
    half = np.full((200, 2), 0.5)
    assert weight_error(rated_pairs(half, half)).error == pytest.approx(0.010434, rel=0.04)
    # At tau 0.5 log w changes by dH_2 - dH_1, four times as much: exp(4 · 0.010380) - 1 = 0.042394.
    sharp = weight_error(rated_pairs(half, half), tau=0.5)
    assert sharp.error == pytest.approx(0.042394, rel=0.04)


# --- runs that stop early -------------------------------------------------------------------------

NUM_PAIRS, SHARD_SIZE, TOLERANCE = 70_000, 1000, 0.02
PLAN: Any = SimpleNamespace(shards=range(NUM_PAIRS // SHARD_SIZE), shard_size=SHARD_SIZE)
NUM_QUALITIES = 4


@dataclass(kw_only=True)
class World:
    """A judge that rates each response by its quality, under each rule with other probabilities.

    Rules depend on each other through the quality, and a pair's two ratings through ``copied``, the
    share of pairs whose responses have the same quality. ``cloud`` has 101 levels, tenths the most
    likely.
    """

    num_rules: int = 10
    copied: float = 0.4
    kind: str = "peaked"
    missing: float = 0.0

    def mass_KRL(self, rng: np.random.Generator) -> NDArray[np.float64]:
        num_levels = 101 if self.kind == "cloud" else 11
        level_L = np.linspace(0, 1, num_levels)
        quality_K11 = np.linspace(-0.5, 0.5, NUM_QUALITIES)[:, None, None]
        centre_R1, shift_R1, width_R1 = (
            rng.uniform(*ends, size=(self.num_rules, 1))
            for ends in ((0.3, 0.95), (0.0, 0.5), (0.05, 0.35))
        )
        if self.kind == "skewed":  # the lowest levels are the most likely, for some rules by far
            mass_KRL = np.exp(-level_L * 40 * width_R1 * (1 + quality_K11))
        else:
            if self.kind == "constant":  # half of the rules hardly ever leave one level
                width_R1[::2], shift_R1[::2] = 0.02, 0.0
            distance_KRL = np.abs(level_L - centre_R1 - shift_R1 * quality_K11)
            mass_KRL = np.exp(-2 * distance_KRL / width_R1)
        if self.kind == "cloud":
            steps = np.arange(num_levels)
            mass_KRL *= np.where(steps % 10 == 0, 1.0, np.where(steps % 5 == 0, 0.5, 0.03))
        return mass_KRL / mass_KRL.sum(axis=-1, keepdims=True)


def drawn_ratings(world: World, rng: np.random.Generator) -> NDArray[np.float64]:
    """Draw the levels of a full study, shape [2, P, R]; NaN where a rating is missing."""
    mass_KRL = world.mass_KRL(rng)
    quality_2P = rng.integers(NUM_QUALITIES, size=(2, NUM_PAIRS))
    is_copied_P = rng.random(NUM_PAIRS) < world.copied
    quality_2P[1, is_copied_P] = quality_2P[0, is_copied_P]
    level_2PR = rng.random((2, NUM_PAIRS, world.num_rules))
    for quality, mass_RL in enumerate(mass_KRL):
        has_quality_2P = quality_2P == quality
        for rule, mass_L in enumerate(mass_RL):
            ends = np.cumsum(mass_L)[:-1]
            level_2PR[has_quality_2P, rule] = np.searchsorted(ends, level_2PR[has_quality_2P, rule])
    level_2PR[rng.random(level_2PR.shape) < world.missing] = np.nan
    return level_2PR


def stopped(world: World, *, seed: int, tau: float = 2.0) -> tuple[float, float]:
    """Return the share of pairs at which a run stops, and the largest error of a weight there."""
    level_2PR = drawn_ratings(world, np.random.default_rng(seed))
    *ends, _ = round_ends(PLAN)
    for end in ends:
        first_2PR = level_2PR[:, : end * SHARD_SIZE]
        estimate = weight_error(
            rated_pairs(*first_2PR), num_all=NUM_PAIRS, num_tests=len(ends), tau=tau
        )
        if estimate.error is not None and estimate.error <= TOLERANCE:
            weight_R, weight_of_all_R = (
                weights_of_levels(levels, tau=tau) for levels in (first_2PR, level_2PR)
            )
            error = float(np.abs(weight_R / weight_of_all_R - 1).max())
            return end * SHARD_SIZE / NUM_PAIRS, error
    return 1.0, 0.0


WORLDS = {
    "10 rules": World(),
    "20 rules": World(num_rules=20),
    "independent ratings": World(copied=0.0),
    "both ratings of a pair alike": World(num_rules=20, copied=0.9),
    "skewed": World(num_rules=20, kind="skewed"),
    "half of the rules nearly constant": World(num_rules=20, kind="constant"),
    "two decimals": World(kind="cloud"),
    "a rating in twenty missing": World(num_rules=20, missing=0.05),
}


def test_rounds_of_a_plan_grow_by_a_half():
    assert round_ends(PLAN) == (1, 2, 3, 4, 6, 9, 13, 19, 28, 42, 63, 70)
    small: Any = SimpleNamespace(shards=range(40), shard_size=50)  # the first holds 1,000 pairs
    assert round_ends(small) == (20, 30, 40)
    assert round_ends(SimpleNamespace(shards=range(3), shard_size=1000)) == (1, 2, 3)


def test_a_run_stops_early_and_every_weight_is_within_the_tolerance():
    runs = [stopped(world, seed=7) for world in WORLDS.values()]
    shares, errors = zip(*runs, strict=True)
    assert np.median(shares) <= 0.08
    assert max(shares) < 0.2
    assert sum(error > TOLERANCE for error in errors) <= 1


def test_at_a_smaller_tau_a_run_goes_on_for_longer_and_its_weights_hold():
    # Errors are four times those at tau 2, so about 16 times as many pairs are needed.
    share, error = stopped(WORLDS["10 rules"], seed=7, tau=0.5)
    assert share > 4 * stopped(WORLDS["10 rules"], seed=7)[0]
    assert error <= TOLERANCE


@pytest.mark.full
@pytest.mark.parametrize("name", WORLDS)
def test_190_of_200_full_studies_stay_within_the_tolerance(name):
    runs = [stopped(WORLDS[name], seed=seed) for seed in range(200)]
    shares, errors = zip(*runs, strict=True)
    num_kept = sum(error <= TOLERANCE for error in errors)
    assert num_kept >= 190
    assert np.median(shares) <= (0.09 if name == "two decimals" else 0.08)


# --- several pairs a prompt -----------------------------------------------------------------------


def rated_prompts(seed: int, *, design: str, num_pairs: int = 600) -> PairRatings:
    """Return pairs whose ratings depend on the prompt: three levels, rules of different spread."""
    rng = np.random.default_rng(seed)
    num_responses, ranks = DESIGNS[design]
    shape = (round(num_pairs / len(ranks)), num_responses, 5)
    quality_GMR = rng.standard_normal(shape) + rng.standard_normal((shape[0], 1, 5))
    level_GMR = np.floor(3 * scipy.stats.norm.cdf(quality_GMR * np.linspace(0.2, 1, 5)))
    return ranked_pairs(np.minimum(level_GMR, 2) / 2, design)


@pytest.mark.parametrize("num_studies", [60, pytest.param(1000, marks=pytest.mark.full)])
@pytest.mark.parametrize("design", DESIGNS)
def test_the_stated_error_holds_where_prompts_have_several_pairs(design, num_studies):
    """At 95 %, fewer than 51 of 60 have a chance of 0.1 %; 1,000 studies have an error of 0.7 %."""
    many = rated_prompts(0, design=design, num_pairs=200_000)
    true_weight_R = weights_of_levels(np.rint(2 * many.rating_2PR))
    num_within = 0
    for seed in range(1, num_studies + 1):
        pairs = rated_prompts(seed, design=design)
        stated = weight_error(pairs).error
        assert stated is not None
        error = np.abs(weights_of_levels(np.rint(2 * pairs.rating_2PR)) / true_weight_R - 1).max()
        num_within += error <= stated
    assert num_within / num_studies >= (0.925 if num_studies == 1000 else 51 / 60)


def test_against_the_study_itself_pairs_are_drawn_and_not_prompts():
    """A run rates pairs in the order of their hash, whatever their prompts."""
    pairs = rated_prompts(1, design="all pairs of 4")
    of_prompts, of_pairs = weight_error(pairs).error, weight_error(pairs, num_all=10**9).error
    assert of_prompts is not None
    assert of_pairs is not None
    assert of_prompts > 1.3 * of_pairs
