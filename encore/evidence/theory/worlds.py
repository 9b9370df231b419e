"""Ratings made for the theorem: a synthetic world in which it holds, and small counter-examples."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from encore.pair_ratings import PairRatings

# Suffixes: P pairs, R rules.

NUM_PAIRS = 20_000
_NUM_RULES = 10
#: How often the part of a rule that knows the label is right.
_SKILL = 0.8
_NUM_LEVELS = 11

_Floats = NDArray[np.float64]


def noise_world(*, seed: int, num_pairs: int = NUM_PAIRS) -> PairRatings:
    """Ten rules between a decisive one and pure noise: the mixture of the paper's remark.

    Rule k rates a pair with probability k/9 by throwing dice: each response gets one of 11 levels,
    all equally likely. Otherwise it is decisive: 1 to one response and 0 to the other, to the right
    one in 80 % of cases. So entropy rises from ln 2 to ln 11 and the mean margin falls from 0.6 to
    0, and the last rule is what the theorem is about: uniform and independent of the label.
    """
    rng = np.random.default_rng(seed)
    shape = (num_pairs, _NUM_RULES)
    noise_R = np.linspace(0, 1, _NUM_RULES)
    is_dice = rng.random(shape) < noise_R
    decisive_PR = (rng.random(shape) < _SKILL).astype(np.float64)
    dice = rng.integers(0, _NUM_LEVELS, size=(2, *shape)) / (_NUM_LEVELS - 1)
    return _pairs(
        [f"noise-{round(100 * noise):03d}-percent" for noise in noise_R],
        chosen_PR=np.where(is_dice, dice[0], decisive_PR),
        rejected_PR=np.where(is_dice, dice[1], 1 - decisive_PR),
    )


def equal_entropy_example() -> PairRatings:
    """500 pairs under three rules: two with uniform ratings, and one that always says 0.5.

    Both uniform rules give each of the levels 0, 0.1, … 0.9 to a tenth of the responses. The
    perfect one gives the chosen response always 0.5 more; the random one goes through all
    combinations of two levels, for each of the perfect one's, so that it knows nothing.
    """
    index_P = np.arange(500)
    level_P = index_P % 5 / 10
    half_P = np.full(len(index_P), 0.5)
    return _pairs(
        ("uniform-and-perfect", "uniform-and-random", "constant"),
        chosen_PR=np.stack([level_P + 0.5, index_P // 5 % 10 / 10, half_P], axis=1),
        rejected_PR=np.stack([level_P, index_P // 50 / 10, half_P], axis=1),
    )


def shared_noise_example() -> PairRatings:
    """400 pairs under two rules that share a disturbance s: +1, -1, 0 and 0 in turn.

    One rule's margin is 0.3 + 0.5 s: it knows the label, and is disturbed. The other's is 0.5 s:
    on its own it knows nothing.
    """
    disturbance_P = np.tile([1.0, -1.0, 0.0, 0.0], 100)
    margin_PR = np.stack([0.3 + 0.5 * disturbance_P, 0.5 * disturbance_P], axis=1)
    return _pairs(
        ("disturbed", "disturbance"),
        chosen_PR=0.5 + margin_PR / 2,
        rejected_PR=0.5 - margin_PR / 2,
    )


def _pairs(rule_ids: Sequence[str], *, chosen_PR: _Floats, rejected_PR: _Floats) -> PairRatings:
    num_pairs = len(chosen_PR)
    return PairRatings(
        rule_ids=tuple(rule_ids),
        source_P=np.full(num_pairs, "synthetic", dtype=object),
        pair_id_P=np.array([f"pair-{row:06d}" for row in range(num_pairs)], dtype=object),
        # Two decimals, as judges give: levels must not differ in their last bits.
        chosen_PR=np.round(chosen_PR, 2),
        rejected_PR=np.round(rejected_PR, 2),
    )
