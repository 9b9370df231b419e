"""Ratings of pairs side by side, for what counts and sums cannot tell: regressions, resampling."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from encore.warehouse.connection import Warehouse, open_warehouse
from encore.warehouse.ratings import Ratings

# Suffixes: P pairs, R rules, N rows of a query.

_Floats = NDArray[np.float64]
_OF_PAIRS = ("source_P", "pair_id_P", "chosen_PR", "rejected_PR")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PairRatings:
    """What every rule gave the two responses of every pair; NaN where a rating is missing.

    Pairs are sorted by source, then pair_id.

    Attributes:
        rule_ids: The R rules.
        source_P: Data set of each pair, shape [P], text.
        pair_id_P: Id of each pair, shape [P], text.
        chosen_PR: Ratings of the preferred responses, shape [P, R].
        rejected_PR: Ratings of the other responses, shape [P, R].
    """

    rule_ids: tuple[str, ...]
    source_P: NDArray[np.object_]
    pair_id_P: NDArray[np.object_]
    chosen_PR: _Floats
    rejected_PR: _Floats

    @property
    def num_pairs(self) -> int:
        """P."""
        return len(self.pair_id_P)

    @property
    def rating_2PR(self) -> _Floats:
        """Ratings of chosen, then of rejected responses, shape [2, P, R]."""
        return np.stack([self.chosen_PR, self.rejected_PR])

    @property
    def margin_PR(self) -> _Floats:
        """rating(chosen) - rating(rejected), shape [P, R]; NaN unless both are there."""
        return self.chosen_PR - self.rejected_PR

    def take(self, row_N: NDArray[np.intp] | NDArray[np.bool_]) -> PairRatings:
        """Some pairs, by index or mask."""
        return dataclasses.replace(self, **{name: getattr(self, name)[row_N] for name in _OF_PAIRS})

    def complete(self) -> PairRatings:
        """The pairs whose two responses every rule rated.

        Composed ratings are compared over these alone: a missing margin is not a margin of 0, and
        every weight vector is measured on the same pairs.
        """
        is_missing_P = np.asarray(np.isnan(self.margin_PR).any(axis=1))
        return self.take(~is_missing_P) if is_missing_P.any() else self


def read_pairs_of(ratings: Ratings) -> PairRatings:
    """Every pair of some ratings under all their rules; parameters as `read_pair_ratings`."""
    with open_warehouse(ratings) as warehouse:
        return read_pair_ratings(warehouse, rule_ids=warehouse.rule_ids())


def read_pair_ratings(warehouse: Warehouse, *, rule_ids: Sequence[str]) -> PairRatings:
    """Every pair of a warehouse with its ratings under some rules.

    Memory is 16 bytes a pair and rule plus the ids; the query runs in parts.

    Args:
        warehouse: The ratings.
        rule_ids: The rules to read, in the order wanted; other rules are passed over.

    Raises:
        InputError: A rating is there more than once.
    """
    parts = []
    for rows in warehouse.query_parts("pair_ratings"):
        if pc.any(pc.greater(rows["num_repeats"], 0)).as_py():
            warehouse.refuse_repeats()
        parts.append(_side_by_side(rows, tuple(rule_ids)))
    if len(parts) == 1:
        return parts[0]
    columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in _OF_PAIRS}
    joined = PairRatings(rule_ids=tuple(rule_ids), **columns)
    return joined.take(np.lexsort((joined.pair_id_P, joined.source_P)))


def _side_by_side(rows: pa.Table, rule_ids: tuple[str, ...]) -> PairRatings:
    """The pairs of a result of ``pair_ratings.sql``, which is sorted by pair."""
    ids = (rows[name].combine_chunks().dictionary_encode() for name in ("source", "pair_id"))
    changes = [np.diff(one.indices.to_numpy()) != 0 for one in ids]
    is_first_N = np.r_[True, changes[0] | changes[1]]
    first_P = np.flatnonzero(is_first_N)
    pair_N = np.cumsum(is_first_N) - 1
    places = pc.index_in(rows["rule_id"], value_set=pa.array(rule_ids, pa.string()))
    place_N = pc.fill_null(places, -1).to_numpy()
    wanted_N = place_N >= 0
    rating_2PR = np.full((2, len(first_P), len(rule_ids)), np.nan)
    for rating_PR, name in zip(rating_2PR, ("chosen", "rejected"), strict=True):
        rating_PR[pair_N[wanted_N], place_N[wanted_N]] = rows[name].to_numpy()[wanted_N]
    heads = rows.take(pa.array(first_P))
    return PairRatings(
        rule_ids=rule_ids,
        source_P=heads["source"].to_numpy(),
        pair_id_P=heads["pair_id"].to_numpy(),
        chosen_PR=rating_2PR[0],
        rejected_PR=rating_2PR[1],
    )
