"""Read the ratings of each pair under all rules, for regressions and resampling."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

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
        not_applicable_2PR: True where the judge says that a rule does not apply to the chosen, then
            the rejected response, whose rating is missing; shape [2, P, R]. None if that is nowhere
            so.
    """

    rule_ids: tuple[str, ...]
    source_P: NDArray[np.object_]
    pair_id_P: NDArray[np.object_]
    chosen_PR: _Floats
    rejected_PR: _Floats
    prompt_P: NDArray[np.uint64] | None = None
    grouped_by: GroupedBy = "pair"
    not_applicable_2PR: NDArray[np.bool_] | None = None

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

    @property
    def margin_or_zero_PR(self) -> _Floats:
        """Return `margin_PR`, but 0 where the rule does not apply to both and so ranks nothing."""
        if self.not_applicable_2PR is None:
            return self.margin_PR
        return np.asarray(np.where(self.not_applicable_2PR.any(axis=0), 0.0, self.margin_PR))

    @property
    def is_failed_PR(self) -> NDArray[np.bool_]:
        """Return True where a rating is missing although the rule may apply, shape [P, R].

        A rule that does not apply to one of the two responses compares them in no case.
        """
        is_missing_PR = np.isnan(self.margin_PR)
        if self.not_applicable_2PR is None:
            return is_missing_PR
        return np.asarray(is_missing_PR & ~self.not_applicable_2PR.any(axis=0))

    def take(self, row_N: NDArray[np.intp] | NDArray[np.bool_]) -> PairRatings:
        """Return the pairs with the given indices, or those that a mask keeps."""
        columns = {name: getattr(self, name)[row_N] for name in _PAIR_COLUMNS}
        return dataclasses.replace(
            self,
            **columns,
            prompt_P=None if self.prompt_P is None else self.prompt_P[row_N],
            not_applicable_2PR=(
                None if self.not_applicable_2PR is None else self.not_applicable_2PR[:, row_N]
            ),
        )

    def select_rules(self, rule_ids: Sequence[str]) -> PairRatings:
        """Return the ratings under the given rules, in this order."""
        indices = [self.rule_ids.index(rule_id) for rule_id in rule_ids]
        columns = {name: getattr(self, name)[:, indices] for name in ("chosen_PR", "rejected_PR")}
        return dataclasses.replace(
            self,
            rule_ids=tuple(rule_ids),
            **columns,
            not_applicable_2PR=(
                None if self.not_applicable_2PR is None else self.not_applicable_2PR[:, :, indices]
            ),
        )

    def complete(self) -> PairRatings:
        """Return the pairs whose two responses every rule rated, or does not apply to.

        Composed ratings are compared on these pairs only: a missing margin is not a margin of 0,
        and all weight vectors are measured on the same pairs. Some rule applies to each response.
        """
        is_missing_2PR = np.isnan(self.rating_2PR)
        is_unrated_P = is_missing_2PR.all(axis=2).any(axis=0)
        if self.not_applicable_2PR is not None:
            is_missing_2PR &= ~self.not_applicable_2PR
        is_left_out_P = np.asarray(is_missing_2PR.any(axis=(0, 2)) | is_unrated_P)
        return self.take(~is_left_out_P) if is_left_out_P.any() else self


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
    if warehouse.has_rules_not_applying:
        pairs = dataclasses.replace(pairs, not_applicable_2PR=_not_applicable(warehouse, pairs))
    ids = {"source": pairs.source_P, "pair_id": pairs.pair_id_P}
    prompt_P, is_known_P = warehouse.prompt_keys(pa.table(ids))
    if not is_known_P.any():
        return pairs
    grouped_by: GroupedBy = "prompt" if is_known_P.all() else "pair"
    return dataclasses.replace(pairs, prompt_P=prompt_P, grouped_by=grouped_by)


def _not_applicable(warehouse: Warehouse, pairs: PairRatings) -> NDArray[np.bool_]:
    """Return where the rules of some pairs do not apply, shape [2, P, R]."""
    not_applicable_2PR = np.zeros((2, pairs.num_pairs, len(pairs.rule_ids)), dtype=bool)
    rule_ids = pa.array(pairs.rule_ids, pa.string())
    key_P = _joined_ids(pa.array(pairs.source_P), pa.array(pairs.pair_id_P))
    for part in warehouse.query_parts("pair_applicability"):
        rows = part.filter(pc.is_in(part["rule_id"], value_set=rule_ids))
        pair_N = pc.index_in(_joined_ids(rows["source"], rows["pair_id"]), value_set=key_P)
        rule_N = pc.index_in(rows["rule_id"], value_set=rule_ids)
        for response, name in enumerate(("chosen_applies", "rejected_applies")):
            is_silent_N = pc.invert(pc.fill_null(rows[name], True)).to_numpy()
            not_applicable_2PR[response, pair_N.to_numpy(), rule_N.to_numpy()] = is_silent_N
    return not_applicable_2PR


def _joined_ids(source_N: Any, pair_id_N: Any) -> Any:
    """Return source and pair_id of each row as one text."""
    return pc.binary_join_element_wise(source_N, pair_id_N, "\0")


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
