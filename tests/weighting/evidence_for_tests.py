"""Evidence made up for a test: entropies or whole tables of margins, without any file."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa

from encore.analysis.analyze import analyze
from encore.analysis.statistics import RuleStats
from encore.warehouse import PairRatings
from encore.weighting.scheme import Evidence
from tests.ratings_files import ratings_table

# Suffixes: P pairs, R rules.


RESPONSES = ("chosen", "rejected")


@cache
def _some_rule() -> RuleStats:
    rows = [(f"p{i}", "s", response, "r", i / 10) for i in range(3) for response in RESPONSES]
    return analyze(ratings_table(rows)).rules[0]


def stats(rule_id: str, entropy_nats: float | None, **changes: Any) -> RuleStats:
    """Statistics of a rule with an entropy; 7 nulls, and two levels unless told otherwise."""
    num_ratings = 0 if entropy_nats is None else 100
    return dataclasses.replace(
        _some_rule(),
        **{
            "rule_id": rule_id,
            "entropy_nats": entropy_nats,
            "num_ratings": num_ratings,
            "num_unparsed": 7,
            "num_levels": 2,
            **changes,
        },
    )


def rule_names(num_rules: int) -> tuple[str, ...]:
    """rule-00, rule-01, …"""
    return tuple(f"rule-{place:02d}" for place in range(num_rules))


def evidence_of_entropies(
    entropies: Sequence[float | None], *, pairs: PairRatings | None = None
) -> Evidence:
    """Rules with these entropies; reading pairs fails unless there are some."""

    def read_pairs() -> PairRatings:
        assert pairs is not None, "a scheme that uses no labels has read the pairs"
        return pairs

    num_pairs = 50 if pairs is None else pairs.num_pairs
    rule_ids = rule_names(len(entropies)) if pairs is None else pairs.rule_ids
    rules = tuple(
        stats(rule_id, entropy, num_pairs=num_pairs, num_pairs_total=num_pairs)
        for rule_id, entropy in zip(rule_ids, entropies, strict=True)
    )
    return Evidence(rules=rules, read_pairs=read_pairs)


def pairs_of_margins(
    margin_PR: np.ndarray | Sequence[Sequence[float]], *, rule_ids: Sequence[str] | None = None
) -> PairRatings:
    """Pairs whose margins are these (the rejected response is rated 0)."""
    chosen_PR = np.array(margin_PR, dtype=np.float64)
    num_pairs, num_rules = chosen_PR.shape
    return PairRatings(
        rule_ids=tuple(rule_ids or rule_names(num_rules)),
        source_P=np.array(["s"] * num_pairs, dtype=object),
        pair_id_P=np.array([f"{place:032x}" for place in range(num_pairs)], dtype=object),
        chosen_PR=chosen_PR,
        rejected_PR=np.where(np.isnan(chosen_PR), np.nan, 0.0),
    )


def evidence_of_margins(margin_PR: np.ndarray | Sequence[Sequence[float]]) -> Evidence:
    """Rules of rising entropy over pairs with these margins."""
    pairs = pairs_of_margins(margin_PR)
    entropies = [0.1 * (place + 1) for place in range(len(pairs.rule_ids))]
    return evidence_of_entropies(entropies, pairs=pairs)


def table_of(
    chosen_PR: np.ndarray, rejected_PR: np.ndarray, *, rule_ids: Sequence[str], source: str = "s"
) -> pa.Table:
    """The same ratings as a table of the contract; NaN is null."""
    num_pairs, num_rules = chosen_PR.shape
    rating = np.stack([chosen_PR, rejected_PR], axis=1).ravel()
    pair_ids = np.array([f"{place:032x}" for place in range(num_pairs)])
    return pa.table(
        {
            "pair_id": np.repeat(pair_ids, 2 * num_rules),
            "source": pa.array([source] * len(rating)),
            "response": np.tile(np.repeat(RESPONSES, num_rules), num_pairs),
            "rule_id": np.tile(np.array(rule_ids), 2 * num_pairs),
            "rating": pa.array(rating, mask=np.isnan(rating)),
        }
    )
