"""Read the ratings of each pair under all rules, for regressions and resampling."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from encore.warehouse.connection import Warehouse, open_warehouse
from encore.warehouse.ratings import Ratings

# Suffixes: P pairs, R rules, N rows of a query.

_Floats = NDArray[np.float64]
_PAIR_COLUMNS = ("source_P", "pair_id_P", "chosen_PR", "rejected_PR")

#: Whether pairs of one prompt are known to belong together, or each pair counts as its own prompt.
GroupedBy = Literal["prompt", "pair"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PairRatings:
    """Ratings of both responses of every pair under every rule; NaN where a rating is missing.

    Pairs are sorted by source, then pair_id.

    Attributes:
        rule_ids: Ids of the R rules.
        source_P: Data set of each pair, shape [P], text.
        pair_id_P: Id of each pair, shape [P], text.
        chosen_PR: Ratings of the preferred responses, shape [P, R].
        rejected_PR: Ratings of the other responses, shape [P, R].
        prompt_P: A number for the prompt of each pair, shape [P]; None if no prompt is known.
        grouped_by: ``prompt`` if the prompts of all pairs are known. Else a pair without a prompt
            counts as one of a prompt of its own.
    """

    rule_ids: tuple[str, ...]
    source_P: NDArray[np.object_]
    pair_id_P: NDArray[np.object_]
    chosen_PR: _Floats
    rejected_PR: _Floats
    prompt_P: NDArray[np.uint64] | None = None
    grouped_by: GroupedBy = "pair"

    @property
    def group_P(self) -> NDArray[np.intp]:
        """Return the group of each pair, from 0 as they appear, shape [P]: its prompt, or itself.

        Without prompts, groups are in the order of the pair_ids, and pairs with the same pair_id
        in two sources are one group.
        """
        if self.prompt_P is None:
            return np.asarray(np.unique(self.pair_id_P, return_inverse=True)[1].reshape(-1))
        _, first_G, group_P = np.unique(self.prompt_P, return_index=True, return_inverse=True)
        rank_G = np.empty(len(first_G), dtype=np.intp)
        rank_G[np.argsort(first_G)] = np.arange(len(first_G))
        return np.asarray(rank_G[group_P.reshape(-1)])

    @property
    def num_pairs(self) -> int:
        """Return the number of pairs, P."""
        return len(self.pair_id_P)

    @property
    def num_prompts(self) -> int | None:
        """Return the number of distinct prompts; None unless all are known."""
        if self.grouped_by == "pair" or self.prompt_P is None:
            return None
        return len(np.unique(self.prompt_P))

    @property
    def rating_2PR(self) -> _Floats:
        """Return the ratings of chosen, then of rejected responses, shape [2, P, R]."""
        return np.stack([self.chosen_PR, self.rejected_PR])

    @property
    def margin_PR(self) -> _Floats:
        """Return rating(chosen) - rating(rejected), shape [P, R]; NaN if a rating is missing."""
        return self.chosen_PR - self.rejected_PR

    def take(self, row_N: NDArray[np.intp] | NDArray[np.bool_]) -> PairRatings:
        """Return the pairs with the given indices, or those that a mask keeps."""
        columns = {name: getattr(self, name)[row_N] for name in _PAIR_COLUMNS}
        prompt_P = None if self.prompt_P is None else self.prompt_P[row_N]
        return dataclasses.replace(self, **columns, prompt_P=prompt_P)

    def select_rules(self, rule_ids: Sequence[str]) -> PairRatings:
        """Return the ratings under the given rules, in this order."""
        indices = [self.rule_ids.index(rule_id) for rule_id in rule_ids]
        columns = {name: getattr(self, name)[:, indices] for name in ("chosen_PR", "rejected_PR")}
        return dataclasses.replace(self, rule_ids=tuple(rule_ids), **columns)

    def complete(self) -> PairRatings:
        """Return the pairs whose two responses every rule rated.

        Composed ratings are compared on these pairs only: a missing margin is not a margin of 0,
        and all weight vectors are measured on the same pairs.
        """
        is_missing_P = np.asarray(np.isnan(self.margin_PR).any(axis=1))
        return self.take(~is_missing_P) if is_missing_P.any() else self


def read_pairs_of(ratings: Ratings) -> PairRatings:
    """Read every pair of opened ratings under all their rules (`read_pair_ratings`)."""
    with open_warehouse(ratings) as warehouse:
        return read_pair_ratings(warehouse, rule_ids=warehouse.rule_ids())


def read_pair_ratings(warehouse: Warehouse, *, rule_ids: Sequence[str]) -> PairRatings:
    """Read every pair of a warehouse with its ratings under the given rules.

    It takes 16 bytes per pair and rule plus the ids; the query runs in parts.

    Args:
        warehouse: Warehouse with the ratings.
        rule_ids: Rules to read, in the order of the result's columns; ratings under further rules
            are ignored.

    Raises:
        InputError: A rating occurs more than once.
    """
    parts = []
    for rows in warehouse.query_parts("pair_ratings", order_by="source, pair_id, rule_id"):
        if pc.any(pc.greater(rows["num_repeats"], 0)).as_py():
            warehouse.refuse_repeats()
        parts.append(_pivot(rows, tuple(rule_ids)))
    pairs = parts[0]
    if len(parts) > 1:
        columns = {
            name: np.concatenate([getattr(part, name) for part in parts]) for name in _PAIR_COLUMNS
        }
        pairs = PairRatings(rule_ids=tuple(rule_ids), **columns)
        pairs = pairs.take(np.lexsort((pairs.pair_id_P, pairs.source_P)))
    ids = {"source": pairs.source_P, "pair_id": pairs.pair_id_P}
    prompt_P, is_known_P = warehouse.prompt_keys(pa.table(ids))
    if not is_known_P.any():
        return pairs
    grouped_by: GroupedBy = "prompt" if is_known_P.all() else "pair"
    return dataclasses.replace(pairs, prompt_P=prompt_P, grouped_by=grouped_by)


def _pivot(rows: pa.Table, rule_ids: tuple[str, ...]) -> PairRatings:
    """Turn a result of ``pair_ratings.sql``, sorted by pair, into one row per pair."""
    ids = (rows[name].combine_chunks().dictionary_encode() for name in ("source", "pair_id"))
    is_new_source_N, is_new_id_N = (np.diff(column.indices.to_numpy()) != 0 for column in ids)
    is_first_N = np.r_[True, is_new_source_N | is_new_id_N]
    first_P = np.flatnonzero(is_first_N)
    pair_N = np.cumsum(is_first_N) - 1
    indices = pc.index_in(rows["rule_id"], value_set=pa.array(rule_ids, pa.string()))
    rule_N = pc.fill_null(indices, -1).to_numpy()
    is_read_N = rule_N >= 0
    rating_2PR = np.full((2, len(first_P), len(rule_ids)), np.nan)
    for rating_PR, name in zip(rating_2PR, ("chosen", "rejected"), strict=True):
        rating_PR[pair_N[is_read_N], rule_N[is_read_N]] = rows[name].to_numpy()[is_read_N]
    pairs = rows.take(pa.array(first_P))
    return PairRatings(
        rule_ids=rule_ids,
        source_P=pairs["source"].to_numpy(),
        pair_id_P=pairs["pair_id"].to_numpy(),
        chosen_PR=rating_2PR[0],
        rejected_PR=rating_2PR[1],
    )
