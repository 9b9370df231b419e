"""Rated pairs for tests about evidence: made from probabilities, and turned into tables."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from encore.warehouse import PairRatings
from tests.ratings_files import ratings_table


def rated_pairs(
    chosen_PR: np.ndarray, rejected_PR: np.ndarray, *, rule_ids: Sequence[str] = ()
) -> PairRatings:
    """Pairs with these ratings; NaN is missing."""
    num_pairs, num_rules = np.shape(chosen_PR)
    return PairRatings(
        rule_ids=tuple(rule_ids) or tuple(f"rule-{place}" for place in range(num_rules)),
        source_P=np.full(num_pairs, "hh", dtype=object),
        pair_id_P=np.array([f"pair-{row:07d}" for row in range(num_pairs)], dtype=object),
        chosen_PR=np.asarray(chosen_PR, dtype=np.float64),
        rejected_PR=np.asarray(rejected_PR, dtype=np.float64),
    )


def table_of(pairs: PairRatings) -> pa.Table:
    """The pairs as a ratings table; a missing rating is a null row."""
    rows = [
        (pair_id, source, response, rule_id, None if np.isnan(rating) else float(rating))
        for response, rating_PR in (("chosen", pairs.chosen_PR), ("rejected", pairs.rejected_PR))
        for pair_id, source, rating_R in zip(
            pairs.pair_id_P, pairs.source_P, rating_PR, strict=True
        )
        for rule_id, rating in zip(pairs.rule_ids, rating_R, strict=True)
    ]
    return ratings_table(rows)


def drawn_pairs(
    mass_RL: np.ndarray, *, num_pairs: int, rng: np.random.Generator, copied: float = 0.0
) -> PairRatings:
    """Pairs whose ratings have these probabilities: rule r gives level l with mass_RL[r, l].

    With probability ``copied`` the rejected response has the rating of the chosen one, so that the
    two ratings of a pair depend on each other.
    """
    num_rules, num_levels = mass_RL.shape
    shape = (2, num_pairs, num_rules)
    below = np.cumsum(mass_RL, axis=1)[:, :-1]
    level = (rng.random(shape)[..., None] > below).sum(axis=-1)
    level[1] = np.where(rng.random(shape[1:]) < copied, level[0], level[1])
    rating = level / (num_levels - 1)
    return rated_pairs(rating[0], rating[1])


def skewed_masses(num_rules: int, num_levels: int = 11) -> np.ndarray:
    """Probabilities of levels from nearly uniform to nearly constant."""
    rate_R = np.linspace(0.05, 1.5, num_rules)
    mass_RL = np.exp(-rate_R[:, None] * np.linspace(0, 10, num_levels))
    return np.asarray(mass_RL / mass_RL.sum(axis=1, keepdims=True))


def exact_weights(mass_RL: np.ndarray, *, tau: float) -> np.ndarray:
    """ENCORE's weights of rules with these probabilities, by the definition."""
    entropy_R = -np.sum(mass_RL * np.log(mass_RL), axis=1)
    mass_R = np.exp(-entropy_R / tau)
    return np.asarray(mass_R / mass_R.sum())
