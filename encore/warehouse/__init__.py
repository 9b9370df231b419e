"""Ratings in DuckDB: open them, check them, and run the queries of `sql/` over them."""

from __future__ import annotations

from encore.warehouse.connection import RuleKey, Warehouse, entropies_by_rule, open_warehouse
from encore.warehouse.pair_ratings import PairRatings, read_pair_ratings, read_pairs_of
from encore.warehouse.ratings import (
    RatingKind,
    Ratings,
    Scale,
    is_rating_table,
    open_compared_ratings,
    open_ratings,
)

__all__ = [
    "PairRatings",
    "RatingKind",
    "Ratings",
    "RuleKey",
    "Scale",
    "Warehouse",
    "entropies_by_rule",
    "is_rating_table",
    "open_compared_ratings",
    "open_ratings",
    "open_warehouse",
    "read_pair_ratings",
    "read_pairs_of",
]
