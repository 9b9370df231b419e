"""A run that stops once its weights are precise has the stated error over the whole study."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.stats
from numpy.typing import NDArray

from encore.rating.rounds import round_ends
from encore.weighting.weight_error import weight_error
from tests.weighting.test_ratings_needed import weights_of
from tests.worlds.ratings import rated_pairs

# Suffixes: K qualities of a response, R rules, L levels, P pairs; 2 before PR: chosen, rejected.

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


def weights_of_ratings(level_2PR: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return ENCORE's weights of these ratings at the paper's temperature."""
    level_NR = level_2PR.reshape(-1, level_2PR.shape[2])
    columns = [level_N[~np.isnan(level_N)].astype(int) for level_N in level_NR.T]
    return weights_of([scipy.stats.entropy(np.bincount(levels)) for levels in columns])


def stopped(world: World, *, seed: int) -> tuple[float, float]:
    """Return the share of pairs at which a run stops, and the largest error of a weight there."""
    level_2PR = drawn_ratings(world, np.random.default_rng(seed))
    *ends, _ = round_ends(PLAN)
    for end in ends:
        first_2PR = level_2PR[:, : end * SHARD_SIZE]
        estimate = weight_error(rated_pairs(*first_2PR), num_all=NUM_PAIRS, num_tests=len(ends))
        if estimate.error is not None and estimate.error <= TOLERANCE:
            errors = weights_of_ratings(first_2PR) / weights_of_ratings(level_2PR) - 1
            return end * SHARD_SIZE / NUM_PAIRS, float(np.abs(errors).max())
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


def test_rounds_of_a_plan_grow_by_a_half() -> None:
    assert round_ends(PLAN) == (1, 2, 3, 4, 6, 9, 13, 19, 28, 42, 63, 70)
    small: Any = SimpleNamespace(shards=range(40), shard_size=50)  # the first holds 1,000 pairs
    assert round_ends(small) == (20, 30, 40)
    assert round_ends(SimpleNamespace(shards=range(3), shard_size=1000)) == (1, 2, 3)


def test_a_run_stops_early_and_every_weight_is_within_the_tolerance() -> None:
    runs = [stopped(world, seed=7) for world in WORLDS.values()]
    shares, errors = zip(*runs, strict=True)
    assert np.median(shares) <= 0.08
    assert max(shares) < 0.2
    assert sum(error > TOLERANCE for error in errors) <= 1


@pytest.mark.full
@pytest.mark.parametrize("name", WORLDS)
def test_190_of_200_full_studies_stay_within_the_tolerance(name: str) -> None:
    runs = [stopped(WORLDS[name], seed=seed) for seed in range(200)]
    shares, errors = zip(*runs, strict=True)
    num_kept = sum(error <= TOLERANCE for error in errors)
    assert num_kept >= 190
    assert np.median(shares) <= (0.09 if name == "two decimals" else 0.08)
