"""Count for each rule how the two ratings of every pair compare.

A judge rates pair by pair, so the rows of a pair usually follow each other: a pair is a run of rows
with the same key, and one pass over the rows in their order is enough. If a key turns out to have
two runs, the rows are read again, sorted by key. That costs more and gives the same counts.

A key is a 64-bit hash of source and pair_id. Two pairs with the same key look like one pair with
repeated ratings and are refused. They could only be mistaken for one pair if both lack ratings, and
different ones. The chance that any two of 3 million pairs share a key is 2.4e-7.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from encore.core.errors import EncoreError
from encore.warehouse import Warehouse

# Suffixes: N rows, P pairs, S sources, B blocks of pairs, R rules, L levels, M = L + 1 states: a
# level, or at the end that the rating is missing; a leading 2 stands for chosen and rejected.

#: Number of keys of each batch that are checked for repeats before the rest.
_NUM_FIRST_KEYS = 10_000
#: Blocks of pairs by their key, for errors of what follows from sums over pairs.
NUM_BLOCKS = 40
#: Limit of all counts of cells together, 128 MiB. Rules beyond it have none, like rules of too many
#: levels.
_MAX_CELL_COUNTS = 1 << 24
#: Up to so many levels, comparing with every level is faster than a binary search.
_FEW_LEVELS = 64

_Floats = NDArray[np.float64]
_Counts = NDArray[np.int64]
_Keys = NDArray[np.uint64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PairCounts:
    """Counts of the pairs of one source, or of all sources together.

    Attributes:
        num_pairs: All pairs, also those that a rule did not rate fully.
        num_one_sided: Pairs with ratings of only one response.
        wins_R: Pairs whose chosen response the rule rates higher, shape [R].
        losses_R: Pairs whose rejected response the rule rates higher, shape [R].
        ties_R: Pairs with two equal ratings, shape [R].
        sign_gram_RR: S'S with S = sign(chosen - rejected), one row per pair and 0 where a rating
            is missing, shape [R, R].
        margin_sums_B2RR: For each of `NUM_BLOCKS` blocks of pairs, first the sum over pairs of two
            rules' margins, rating(chosen) - rating(rejected), multiplied; then the sum of the
            squared margins of the row's rule over the pairs that the column's rule rated fully as
            well. Shape [B, 2, R, R].
        cells: For each rule the number of pairs by the states of the chosen and the rejected
            response, shape [M, M]. Resampling whole pairs needs it. None for a rule of too many
            levels.
        levels: For each rule its levels, shape [L]; None for a rule of too many levels.
    """

    num_pairs: int
    num_one_sided: int
    wins_R: _Counts
    losses_R: _Counts
    ties_R: _Counts
    sign_gram_RR: _Counts
    margin_sums_B2RR: _Floats
    cells: tuple[_Counts | None, ...]
    levels: tuple[_Floats | None, ...]

    def select_rules(self, rule_indices: Sequence[int]) -> PairCounts:
        """Return the counts of the rules at these indices, in this order."""
        return dataclasses.replace(
            self,
            wins_R=self.wins_R[rule_indices],
            losses_R=self.losses_R[rule_indices],
            ties_R=self.ties_R[rule_indices],
            sign_gram_RR=self.sign_gram_RR[np.ix_(rule_indices, rule_indices)],
            margin_sums_B2RR=self.margin_sums_B2RR[:, :, rule_indices][:, :, :, rule_indices],
            cells=tuple(self.cells[index] for index in rule_indices),
            levels=tuple(self.levels[index] for index in rule_indices),
        )


def count_pairs(
    warehouse: Warehouse, *, sources: Sequence[str], levels: Mapping[str, _Floats | None]
) -> dict[str | None, PairCounts]:
    """Count the pairs of each source, and under None those of all sources together.

    Args:
        warehouse: Warehouse of the opened ratings.
        sources: All sources in the ratings.
        levels: For each rule its distinct ratings, ascending, or None for too many levels to count
            pairs of them. Counts are in the alphabetical order of these rules.

    Raises:
        InputError: A pair, response and rule has more than one rating.
    """
    for order_by in (None, "pair_key"):
        tally = _Tally(len(sources), [levels[rule_id] for rule_id in sorted(levels)])
        batches = warehouse.coded_ratings(
            sources=sorted(sources), rule_ids=sorted(levels), order_by=order_by
        )
        if _add_rows(warehouse, tally, batches, is_sorted=order_by is not None):
            break
    else:
        raise EncoreError(
            "two pairs have the same 64-bit hash and cannot be told apart; give the pairs other "
            "ids, for example with a letter in front"
        )
    index_by_source: dict[str | None, slice] = {None: slice(None)}
    index_by_source |= {source: slice(s, s + 1) for s, source in enumerate(sorted(sources))}
    return {source: tally.counts(index) for source, index in index_by_source.items()}


# --- rows -----------------------------------------------------------------------------------------


class _Rows(NamedTuple):
    """Columns of ``coded_ratings.sql`` in its order, shape [N]: whole numbers, ratings with NaN."""

    pair_key: NDArray[Any]
    source_index: NDArray[Any]
    rule_index: NDArray[Any]
    is_rejected: NDArray[Any]
    rating: NDArray[Any]


def _add_rows(
    warehouse: Warehouse,
    tally: _Tally,
    batches: Generator[pa.RecordBatch, None, None],
    *,
    is_sorted: bool,
) -> bool:
    """Count all rows. Return False if the rows of a pair do not follow each other.

    Raises:
        InputError: A pair, response and rule has more than one rating.
    """
    batch_keys: list[_Keys] = []
    with contextlib.closing(batches):
        for num_batches, rows in enumerate(_whole_pairs(batches), start=1):
            is_first_N = np.append(True, rows.pair_key[1:] != rows.pair_key[:-1])
            if not is_sorted:
                batch_keys.append(rows.pair_key[is_first_N])
                # If rows are in another order, keys repeat soon. All keys so far are checked
                # whenever the number of batches has doubled, so that this stays cheap.
                is_power_of_2 = num_batches & (num_batches - 1) == 0
                if not _all_differ([batch_keys[-1][:_NUM_FIRST_KEYS]]):
                    return False
                if is_power_of_2 and not _all_differ(batch_keys):
                    return False
            tally.add(rows, is_first_N)
            if tally.num_repeats:
                break
    if tally.num_repeats:
        warehouse.refuse_repeats()
        return False  # no rating is repeated: two pairs have the same key
    return is_sorted or _all_differ(batch_keys)


def _whole_pairs(batches: Iterable[pa.RecordBatch]) -> Iterator[_Rows]:
    """Yield the rows of the batches, cut so that a run of rows with the same key stays whole."""
    last_run: _Rows | None = None
    for batch in batches:
        if batch.num_rows == 0:
            continue
        # Not copied; `to_numpy` would import pandas, which takes longer than counting.
        rows = _Rows(*(np.from_dlpack(batch[name]) for name in batch.schema.names))
        if last_run is not None:
            if last_run.pair_key[0] == rows.pair_key[0]:
                rows = _Rows(*map(np.concatenate, zip(last_run, rows, strict=True)))
            else:
                yield last_run
        is_earlier_N = rows.pair_key != rows.pair_key[-1]
        cut = len(is_earlier_N) - int(is_earlier_N[::-1].argmax()) if is_earlier_N.any() else 0
        if cut:
            yield _Rows(*(column_N[:cut] for column_N in rows))
        last_run = _Rows(*(column_N[cut:] for column_N in rows))
    if last_run is not None:
        yield last_run


def _all_differ(keys: Sequence[_Keys]) -> bool:
    ordered = np.sort(np.concatenate(keys))
    return not bool((ordered[1:] == ordered[:-1]).any())


# --- counting -------------------------------------------------------------------------------------


class _Tally:
    """Running counts of pairs by source; rules in alphabetical order."""

    def __init__(self, num_sources: int, levels: Sequence[_Floats | None]) -> None:
        num_rules = len(levels)
        #: Rows beyond the first of a pair, response and rule.
        self.num_repeats = 0
        self._num_pairs_S, self._num_one_sided_S = np.zeros((2, num_sources), dtype=np.int64)
        #: Wins, losses and ties.
        self._outcomes_S3R = np.zeros((num_sources, 3, num_rules), dtype=np.int64)
        self._sign_gram_SRR = np.zeros((num_sources, num_rules, num_rules), dtype=np.int64)
        self._margin_sums_SB2RR = np.zeros((num_sources, NUM_BLOCKS, 2, num_rules, num_rules))
        #: Levels of each rule, and its counts of pairs by their two states, shape [S, M, M].
        self._cells: list[tuple[_Floats, _Counts] | None] = []
        num_free_counts = _MAX_CELL_COUNTS
        for level_L in levels:
            num_states = 0 if level_L is None else len(level_L) + 1
            num_counts = num_sources * num_states**2
            if level_L is None or num_counts > num_free_counts:
                self._cells.append(None)
            else:
                num_free_counts -= num_counts
                shape = (num_sources, num_states, num_states)
                self._cells.append((level_L, np.zeros(shape, dtype=np.int64)))

    def add(self, rows: _Rows, is_first_N: NDArray[np.bool_]) -> None:
        """Count rows in which each pair is whole, as one run of rows."""
        first_P = np.flatnonzero(is_first_N)
        num_pairs, num_rules = len(first_P), len(self._cells)
        # Ratings side by side, by response, rule and pair; NaN where one is missing.
        column_N = rows.is_rejected * np.int32(num_rules) + rows.rule_index
        num_columns = 2 * num_rules
        order_C = np.argsort(column_N[:num_columns])
        if (
            len(column_N) == num_pairs * num_columns
            and (column_N[:num_columns][order_C] == np.arange(num_columns)).all()
            and (column_N.reshape(num_pairs, -1) == column_N[:num_columns]).all()
            and (np.diff(first_P) == num_columns).all()
        ):  # every pair has all its rows in the same order, as in a run's shards
            rating_CP = rows.rating.reshape(num_pairs, -1).T[order_C]
        else:
            slot_N = column_N * np.int64(num_pairs) + np.cumsum(is_first_N) - 1
            rating_CP = np.full((num_columns, num_pairs), np.nan)
            rating_CP.ravel()[slot_N] = rows.rating
            is_filled = np.zeros(rating_CP.size, dtype=bool)
            is_filled[slot_N] = True
            self.num_repeats += len(slot_N) - int(np.count_nonzero(is_filled))
        rating_2RP = rating_CP.reshape(2, num_rules, num_pairs)
        # Each source is counted apart.
        source_P = rows.source_index[first_P]
        for source in np.flatnonzero(np.bincount(source_P)).tolist():
            is_of_source_P = source_P == source
            block_P = rows.pair_key[first_P[is_of_source_P]] % np.uint64(NUM_BLOCKS)
            self._add_source(source, rating_2RP.compress(is_of_source_P, axis=2), block_P)

    def counts(self, source_index: slice) -> PairCounts:
        """Return the counts of these sources together."""
        wins_R, losses_R, ties_R = self._outcomes_S3R[source_index].sum(axis=0)
        return PairCounts(
            num_pairs=int(self._num_pairs_S[source_index].sum()),
            num_one_sided=int(self._num_one_sided_S[source_index].sum()),
            wins_R=wins_R,
            losses_R=losses_R,
            ties_R=ties_R,
            sign_gram_RR=self._sign_gram_SRR[source_index].sum(axis=0),
            margin_sums_B2RR=self._margin_sums_SB2RR[source_index].sum(axis=0),
            cells=tuple(
                None if cells is None else cells[1][source_index].sum(axis=0)
                for cells in self._cells
            ),
            levels=tuple(None if cells is None else cells[0] for cells in self._cells),
        )

    def _add_source(self, source: int, rating_2RP: _Floats, block_P: _Keys) -> None:
        chosen_RP, rejected_RP = rating_2RP
        win_RP, loss_RP = chosen_RP > rejected_RP, chosen_RP < rejected_RP
        is_one_sided_P = np.isnan(chosen_RP).all(axis=0) != np.isnan(rejected_RP).all(axis=0)
        # Sums of signs are whole numbers far below 2^53, exact in floating point, whose matrix
        # product is fast.
        sign_RP = win_RP.astype(np.float64) - loss_RP
        self._num_pairs_S[source] += rating_2RP.shape[2]
        self._num_one_sided_S[source] += np.count_nonzero(is_one_sided_P)
        for outcome, is_outcome_RP in enumerate((win_RP, loss_RP, chosen_RP == rejected_RP)):
            self._outcomes_S3R[source, outcome] += np.count_nonzero(is_outcome_RP, axis=1)
        self._sign_gram_SRR[source] += (sign_RP @ sign_RP.T).astype(np.int64)
        order_P = np.argsort(block_P.astype(np.uint8), kind="stable")
        ends_B = np.cumsum(np.bincount(block_P.astype(np.int64), minlength=NUM_BLOCKS))
        margin_RP = (chosen_RP - rejected_RP).take(order_P, axis=1)
        is_rated_RP = (~np.isnan(margin_RP)).astype(np.float64)
        np.nan_to_num(margin_RP, copy=False)
        for block, (start, stop) in enumerate(pairwise((0, *ends_B.tolist()))):
            margin_of_block_RP = margin_RP[:, start:stop]
            self._margin_sums_SB2RR[source, block] += (
                margin_of_block_RP @ margin_of_block_RP.T,
                margin_of_block_RP**2 @ is_rated_RP[:, start:stop].T,
            )
        for cells, chosen_P, rejected_P in zip(self._cells, chosen_RP, rejected_RP, strict=True):
            if cells is not None:
                level_L, count_SMM = cells
                key_P = _states(chosen_P, level_L) * (len(level_L) + 1)
                key_P += _states(rejected_P, level_L)
                count_MM = count_SMM[source]
                count_MM += np.bincount(key_P, minlength=count_MM.size).reshape(count_MM.shape)


def _states(rating_P: _Floats, level_L: _Floats) -> _Counts:
    """Return the index of each rating's level; a missing rating stands behind the last level."""
    if len(level_L) > _FEW_LEVELS:
        return np.searchsorted(level_L, rating_P)  # NaN sorts behind the last level
    state_P = np.full(len(rating_P), len(level_L), dtype=np.uint8)
    for level in level_L.tolist():  # several times as fast as a binary search
        state_P -= (rating_P <= level).view(np.uint8)  # false for NaN
    return state_P.astype(np.int64)
