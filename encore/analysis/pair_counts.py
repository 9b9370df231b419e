"""Put the two ratings of every pair together under every rule, and count how they compare.

Ratings usually stand pair by pair, as a judge gave them. Then one look at the rows in their order
is enough: a pair is a run of rows of one key. That no key has two runs is checked; if one has, the
rows are sorted by key first, which costs more and gives the same.

A key is a 64-bit hash of source and pair_id. Two pairs of one key look like one pair with repeated
ratings and are refused. Only pairs that lack ratings, and lack different ones, could be taken for
one pair unnoticed; the chance that any two of 3 million pairs have one key is 2.4e-7.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from encore.core.errors import EncoreError
from encore.warehouse import Warehouse

# Suffixes: N rows, P pairs, S sources, R rules, L levels, M = L + 1 states: a level, or at the end
# that the rating is missing; a leading 2 stands for chosen and rejected.

#: So many keys of each batch are looked at first.
_FIRST_LOOK = 10_000
#: All counts of cells together; 128 MiB. Rules beyond it go without, as those of many levels do.
_MAX_CELL_COUNTS = 1 << 24

_Floats = NDArray[np.float64]
_Counts = NDArray[np.int64]
_Keys = NDArray[np.uint64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PairCounts:
    """What is counted of the pairs of one source, or of all together.

    Attributes:
        num_pairs: All pairs, also those that a rule did not rate fully.
        num_one_sided: Pairs with ratings of one response only.
        wins_R: Pairs whose chosen response the rule rates higher, shape [R].
        losses_R: Pairs whose rejected response it rates higher, shape [R].
        ties_R: Pairs with two equal ratings, shape [R].
        sign_gram_RR: S'S with S = sign(chosen - rejected), one row per pair and 0 where a rating
            is missing, shape [R, R].
        cells: For each rule the pairs by the state of the chosen, then of the rejected response,
            shape [M, M]: what resampling whole pairs must know. None for a rule of too many levels.
    """

    num_pairs: int
    num_one_sided: int
    wins_R: _Counts
    losses_R: _Counts
    ties_R: _Counts
    sign_gram_RR: _Counts
    cells: tuple[_Counts | None, ...]

    def select_rules(self, places: Sequence[int]) -> PairCounts:
        """The counts of some rules, in the order of ``places``."""
        return dataclasses.replace(
            self,
            wins_R=self.wins_R[places],
            losses_R=self.losses_R[places],
            ties_R=self.ties_R[places],
            sign_gram_RR=self.sign_gram_RR[np.ix_(places, places)],
            cells=tuple(self.cells[place] for place in places),
        )


def count_pairs(
    warehouse: Warehouse, *, sources: Sequence[str], levels: Mapping[str, _Floats | None]
) -> dict[str | None, PairCounts]:
    """Count the pairs of every source, and under None those of all together.

    Args:
        warehouse: The ratings.
        sources: All sources in them.
        levels: The different ratings of every rule, ascending, or None for a rule of too many to
            count pairs of them. Counts are in the alphabetical order of these rules.

    Raises:
        InputError: A rating is there more than once.
    """
    for order_by in (None, "pair_key"):
        tally = _Tally(len(sources), [levels[rule_id] for rule_id in sorted(levels)])
        if _add_rows(warehouse, tally, order_by=order_by):
            break
    else:
        raise EncoreError(
            "two pairs have the same 64-bit hash and cannot be told apart; give the pairs other "
            "ids, for example with a letter in front"
        )
    rows: dict[str | None, slice] = {None: slice(None)}
    rows |= {source: slice(s, s + 1) for s, source in enumerate(sorted(sources))}
    return {source: tally.counts(those) for source, those in rows.items()}


# --- rows -----------------------------------------------------------------------------------------


class _Rows(NamedTuple):
    """Columns of ``coded_ratings.sql``, shape [N] each: whole numbers, and ratings with NaN."""

    pair_key: NDArray[Any]
    source_place: NDArray[Any]
    rule_place: NDArray[Any]
    is_rejected: NDArray[Any]
    rating: NDArray[Any]


def _add_rows(warehouse: Warehouse, tally: _Tally, *, order_by: str | None) -> bool:
    """Count all rows; False if the rows of some pair do not stand together.

    Raises:
        InputError: A rating is there more than once.
    """
    seen: list[_Keys] = []
    with contextlib.closing(warehouse.stream("coded_ratings", order_by=order_by)) as batches:
        for num_batches, rows in enumerate(_whole_pairs(batches), start=1):
            is_first_N = np.append(True, rows.pair_key[1:] != rows.pair_key[:-1])
            if order_by is None:
                seen.append(rows.pair_key[is_first_N])
                # In another order keys come again soon. All so far are looked at whenever they
                # have doubled, so that this stays cheap.
                is_power_of_2 = num_batches & (num_batches - 1) == 0
                if not _all_differ([seen[-1][:_FIRST_LOOK]]):
                    return False
                if is_power_of_2 and not _all_differ(seen):
                    return False
            tally.add(rows, is_first_N)
            if tally.num_repeats:
                break
    if tally.num_repeats:
        warehouse.refuse_repeats()
        return False  # there are none: two pairs have one key
    return order_by is not None or _all_differ(seen)


def _whole_pairs(batches: Iterable[pa.RecordBatch]) -> Iterator[_Rows]:
    """The same rows, never cut between two of the same key."""
    kept: _Rows | None = None
    for batch in batches:
        if batch.num_rows == 0:
            continue
        # Not copied; `to_numpy` would import pandas, which takes longer than all this.
        rows = _Rows(*(np.from_dlpack(batch[name]) for name in _Rows._fields))
        if kept is not None:
            rows = _Rows(*map(np.concatenate, zip(kept, rows, strict=True)))
        other_N = np.flatnonzero(rows.pair_key != rows.pair_key[-1])
        cut = int(other_N[-1]) + 1 if len(other_N) else 0
        if cut:
            yield _Rows(*(column_N[:cut] for column_N in rows))
        kept = _Rows(*(column_N[cut:] for column_N in rows))
    if kept is not None:
        yield kept


def _all_differ(keys: Sequence[_Keys]) -> bool:
    ordered = np.sort(np.concatenate(keys))
    return not bool((ordered[1:] == ordered[:-1]).any())


# --- counting -------------------------------------------------------------------------------------


class _Tally:
    """Counts of pairs by source; rules in alphabetical order."""

    def __init__(self, num_sources: int, levels: Sequence[_Floats | None]) -> None:
        num_rules = len(levels)
        #: Rows beyond the first of a pair, response and rule.
        self.num_repeats = 0
        self._num_pairs_S, self._num_one_sided_S = np.zeros((2, num_sources), dtype=np.int64)
        #: Wins, losses and ties.
        self._outcomes_S3R = np.zeros((num_sources, 3, num_rules), dtype=np.int64)
        self._sign_gram_SRR = np.zeros((num_sources, num_rules, num_rules), dtype=np.int64)
        #: Of each rule the levels, and how often each two states stand against each other.
        self._cells: list[tuple[_Floats, _Counts] | None] = []
        room = _MAX_CELL_COUNTS
        for level_L in levels:
            size = 0 if level_L is None else num_sources * (len(level_L) + 1) ** 2
            if level_L is None or size > room:
                self._cells.append(None)
            else:
                room -= size
                shape = (num_sources, len(level_L) + 1, len(level_L) + 1)
                self._cells.append((level_L, np.zeros(shape, dtype=np.int64)))

    def add(self, rows: _Rows, is_first_N: NDArray[np.bool_]) -> None:
        """Count rows that hold their pairs whole, each as one run."""
        first_P = np.flatnonzero(is_first_N)
        rating_2RP = self._side_by_side(rows, is_first_N, num_pairs=len(first_P))
        source_P = rows.source_place[first_P]
        for source in np.flatnonzero(np.bincount(source_P)).tolist():
            is_own_P = source_P == source
            is_only_one = bool(is_own_P.all())
            self._add_source(source, rating_2RP if is_only_one else rating_2RP[:, :, is_own_P])

    def counts(self, rows: slice) -> PairCounts:
        """What was counted of some sources together."""
        wins_R, losses_R, ties_R = self._outcomes_S3R[rows].sum(axis=0)
        return PairCounts(
            num_pairs=int(self._num_pairs_S[rows].sum()),
            num_one_sided=int(self._num_one_sided_S[rows].sum()),
            wins_R=wins_R,
            losses_R=losses_R,
            ties_R=ties_R,
            sign_gram_RR=self._sign_gram_SRR[rows].sum(axis=0),
            cells=tuple(one and one[1][rows].sum(axis=0) for one in self._cells),
        )

    def _side_by_side(
        self, rows: _Rows, is_first_N: NDArray[np.bool_], *, num_pairs: int
    ) -> _Floats:
        """Ratings by response, rule and pair; NaN where there is none."""
        num_rules = len(self._cells)
        slot_N = rows.is_rejected.astype(np.int64)
        slot_N *= num_rules
        slot_N += rows.rule_place
        slot_N *= num_pairs
        slot_N += np.cumsum(is_first_N)
        slot_N -= 1
        rating = np.full(2 * num_rules * num_pairs, np.nan)
        rating[slot_N] = rows.rating
        is_filled = np.zeros(len(rating), dtype=bool)
        is_filled[slot_N] = True
        self.num_repeats += len(slot_N) - int(np.count_nonzero(is_filled))
        return rating.reshape(2, num_rules, num_pairs)

    def _add_source(self, source: int, rating_2RP: _Floats) -> None:
        chosen_RP, rejected_RP = rating_2RP
        win_RP, loss_RP = chosen_RP > rejected_RP, chosen_RP < rejected_RP
        is_one_sided_P = np.isnan(chosen_RP).all(axis=0) != np.isnan(rejected_RP).all(axis=0)
        # Sums of signs are whole numbers far below 2^53: exact in floating point, where the matrix
        # product is fast.
        sign_RP = win_RP.astype(np.float64) - loss_RP
        self._num_pairs_S[source] += rating_2RP.shape[2]
        self._num_one_sided_S[source] += np.count_nonzero(is_one_sided_P)
        for place, is_so_RP in enumerate((win_RP, loss_RP, chosen_RP == rejected_RP)):
            self._outcomes_S3R[source, place] += np.count_nonzero(is_so_RP, axis=1)
        self._sign_gram_SRR[source] += (sign_RP @ sign_RP.T).astype(np.int64)
        for cells, chosen_P, rejected_P in zip(self._cells, chosen_RP, rejected_RP, strict=True):
            if cells is not None:
                level_L, count_SMM = cells
                # NaN is missing and sorts behind the last level.
                key_P = np.searchsorted(level_L, chosen_P)
                key_P *= len(level_L) + 1
                key_P += np.searchsorted(level_L, rejected_P)
                count_MM = count_SMM[source]
                count_MM += np.bincount(key_P, minlength=count_MM.size).reshape(count_MM.shape)
