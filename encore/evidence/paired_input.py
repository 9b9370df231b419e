"""Open any ratings as pairs side by side: for what looks at pairs and not at counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from encore.pair_ratings import PairRatings, read_pair_ratings
from encore.ratings_input import ratings_input
from encore.warehouse import Warehouse


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PairedInput:
    """Every pair of an input with its ratings.

    Attributes:
        label: What messages call the input.
        pairs: All pairs and rules; rules in rule-set order where it is known, else sorted.
        num_shards: Shards of the run's plan; 0 where there is no plan.
        num_missing_shards: Those that are not in it.
    """

    label: str
    pairs: PairRatings
    num_shards: int = 0
    num_missing_shards: int = 0


def read_paired(
    ratings: str | Path | Any, *, run: str | None = None, judge: str | None = None
) -> PairedInput:
    """Read every pair of some ratings, all sources together.

    Args:
        ratings: As for `encore.analysis.analyze.analyze`.
        run: Which run, where there are several: a unique prefix of its key.
        judge: Which judge, where there are several.

    Raises:
        InputError: Not a ratings table: which file, column and value, and what was expected.
    """
    source = ratings_input(ratings, run=run, judge=judge)
    with Warehouse(source) as warehouse:
        found = warehouse.query("rule_ids")["rule_id"].to_pylist()
        pairs = read_pair_ratings(warehouse, rule_ids=_in_order(found, source.rule_order or ()))
    return PairedInput(
        label=source.label,
        pairs=pairs,
        num_shards=source.num_shards,
        num_missing_shards=source.num_missing_shards,
    )


def _in_order(rule_ids: Sequence[str], rule_order: Sequence[str]) -> tuple[str, ...]:
    known = [rule_id for rule_id in rule_order if rule_id in rule_ids]
    return (*known, *sorted(set(rule_ids).difference(known)))
