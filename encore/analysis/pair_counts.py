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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from encore.analysis.outcomes import PairOutcomes, take_rules
from encore.analysis.pair_cells import PairCells, cells_of_counts
from encore.errors import EncoreError
from encore.warehouse import Warehouse

# Suffixes: N rows, P pairs, S sources, R rules, L levels, M = L + 1 states (a level or missing); a
# leading 2 stands for chosen and rejected.

_QUERY = "coded_ratings"
#: So many keys of each batch are looked at first.
_FIRST_LOOK = 10_000
#: All counts of cells together; 256 MiB. Rules beyond it go without, as those of many levels do.
_MAX_CELL_COUNTS = 1 << 25

_Floats = NDArray[np.float64]
_Keys = NDArray[np.uint64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PairCounts:
    """What is counted of the pairs of one source, or of all together.

    Attributes:
        outcomes: Wins, losses, ties and agreement of the rules.
        cells: One for each rule; None for a rule of too many levels.
        num_one_sided: Pairs with ratings of one response only.
    """

    outcomes: PairOutcomes
    cells: tuple[PairCells | None, ...]
    num_one_sided: int


def count_pairs(
    warehouse: Warehouse, *, sources: Sequence[str], levels: Mapping[str, _Floats | None]
) -> dict[str | None, PairCounts]:
    """Count the pairs of every source, and under None those of all together.

    Args:
        warehouse: The ratings.
        sources: All sources in them.
        levels: The different ratings of every rule, ascending, or None for a rule of too many to
            count pairs of them. Counts are in the order of these rules.

    Raises:
        InputError: A rating is there more than once.
    """
    # The query counts sources and rules in alphabetical order.
    sorted_sources, sorted_rules = sorted(sources), sorted(levels)
    sorted_levels = [levels[rule_id] for rule_id in sorted_rules]
    tally = _Tally(num_sources=len(sorted_sources), levels=sorted_levels)
    if not _add_in_order(warehouse, tally):
        tally = _Tally(num_sources=len(sorted_sources), levels=sorted_levels)
        _add_by_key(warehouse, tally)
    places = [sorted_rules.index(rule_id) for rule_id in levels]
    every = range(len(sorted_sources))
    return {
        None: tally.counts(every, places=places),
        **{sorted_sources[s]: tally.counts([s], places=places) for s in every},
    }


# --- two ways to go through the rows --------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Rows:
    """Columns of ``coded_ratings.sql``."""

    key_N: _Keys
    source_N: NDArray[np.int32]
    rule_N: NDArray[np.int32]
    is_rejected_N: NDArray[np.uint8]
    rating_N: _Floats

    @property
    def columns(self) -> tuple[NDArray[Any], ...]:
        return (self.key_N, self.source_N, self.rule_N, self.is_rejected_N, self.rating_N)


def _rows(batch: pa.RecordBatch) -> _Rows:
    """The columns, not copied; `to_numpy` would import pandas, which takes longer than all this."""
    names = ("pair_key", "source_place", "rule_place", "is_rejected", "rating")
    columns: list[Any] = [np.from_dlpack(batch[name]) for name in names]
    return _Rows(*columns)


def _add_in_order(warehouse: Warehouse, tally: _Tally) -> bool:
    """Count rows in their order; False if the rows of some pair do not stand together."""
    seen: list[_Keys] = []
    with contextlib.closing(warehouse.stream(_QUERY)) as batches:
        for num_batches, rows in enumerate(_whole_runs(batches), start=1):
            key_P = rows.key_N[_is_first(rows)]
            seen.append(key_P)
            # In another order keys come again soon. All so far are looked at whenever they have
            # doubled, so that this stays cheap.
            is_power_of_2 = num_batches & (num_batches - 1) == 0
            if not _all_differ([key_P[:_FIRST_LOOK]]) or (is_power_of_2 and not _all_differ(seen)):
                return False
            tally.add(rows)
            if tally.num_repeats:
                break
    if tally.num_repeats:
        warehouse.refuse_repeats()
        return False  # there are none: neighbours of one key
    return _all_differ(seen)


def _add_by_key(warehouse: Warehouse, tally: _Tally) -> None:
    """Count rows in the order of their keys."""
    with contextlib.closing(warehouse.stream(_QUERY, order_by="pair_key")) as batches:
        for rows in _whole_runs(batches):
            tally.add(rows)
            if tally.num_repeats:
                break
    if tally.num_repeats:
        warehouse.refuse_repeats()
        raise EncoreError(
            "two pairs have the same 64-bit hash and cannot be told apart; give the pairs other "
            "ids, for example with a letter in front"
        )


def _is_first(rows: _Rows) -> NDArray[np.bool_]:
    """Whether a row is the first of its run, shape [N]."""
    is_first_N = np.empty(len(rows.key_N), dtype=bool)
    is_first_N[0] = True
    np.not_equal(rows.key_N[1:], rows.key_N[:-1], out=is_first_N[1:])
    return is_first_N


def _whole_runs(batches: Iterable[pa.RecordBatch]) -> Iterator[_Rows]:
    """The same rows, never cut between two of the same key."""
    kept: _Rows | None = None
    for batch in batches:
        if batch.num_rows == 0:
            continue
        rows = _rows(batch) if kept is None else _joined(kept, _rows(batch))
        other_N = np.flatnonzero(rows.key_N != rows.key_N[-1])
        cut = int(other_N[-1]) + 1 if len(other_N) else 0
        if cut:
            yield _Rows(*(column_N[:cut] for column_N in rows.columns))
        kept = _Rows(*(column_N[cut:] for column_N in rows.columns))
    if kept is not None:
        yield kept


def _joined(first: _Rows, second: _Rows) -> _Rows:
    columns = zip(first.columns, second.columns, strict=True)
    return _Rows(*(np.concatenate(both) for both in columns))


def _all_differ(keys: Sequence[_Keys]) -> bool:
    ordered = np.sort(np.concatenate(keys))
    return not bool((ordered[1:] == ordered[:-1]).any())


# --- counting -------------------------------------------------------------------------------------


class _Tally:
    """Counts of pairs by source; rules in alphabetical order."""

    def __init__(self, *, num_sources: int, levels: Sequence[_Floats | None]) -> None:
        shape = (num_sources, len(levels))
        self._num_pairs_S = np.zeros(num_sources, dtype=np.int64)
        self._num_one_sided_S = np.zeros(num_sources, dtype=np.int64)
        self._wins_SR = np.zeros(shape, dtype=np.int64)
        self._losses_SR = np.zeros(shape, dtype=np.int64)
        self._ties_SR = np.zeros(shape, dtype=np.int64)
        self._sign_gram_SRR = np.zeros((*shape, len(levels)), dtype=np.int64)
        self._cells = _cell_tallies(levels, num_sources=num_sources)
        #: Rows beyond the first of a pair, response and rule.
        self.num_repeats = 0

    def add(self, rows: _Rows) -> None:
        """Count rows that hold their pairs whole, each as one run."""
        is_first_N = _is_first(rows)
        first_P = np.flatnonzero(is_first_N)
        rating_2RP = self._side_by_side(rows, is_first_N, num_pairs=len(first_P))
        source_P = rows.source_N[first_P]
        for source in np.flatnonzero(np.bincount(source_P)).tolist():
            is_own_P = source_P == source
            is_only_one = bool(is_own_P.all())
            self._add_source(source, rating_2RP if is_only_one else rating_2RP[:, :, is_own_P])

    def counts(self, sources: Sequence[int], *, places: Sequence[int]) -> PairCounts:
        """What was counted of some sources together, the rules in the order of ``places``."""
        rows = list(sources)
        outcomes = PairOutcomes(
            num_pairs=int(self._num_pairs_S[rows].sum()),
            wins_R=self._wins_SR[rows].sum(axis=0),
            losses_R=self._losses_SR[rows].sum(axis=0),
            ties_R=self._ties_SR[rows].sum(axis=0),
            sign_gram_RR=self._sign_gram_SRR[rows].sum(axis=0),
        )
        tallies = [self._cells[place] for place in places]
        return PairCounts(
            outcomes=take_rules(outcomes, places),
            cells=tuple(None if tally is None else tally.cells(rows) for tally in tallies),
            num_one_sided=int(self._num_one_sided_S[rows].sum()),
        )

    def _side_by_side(
        self, rows: _Rows, is_first_N: NDArray[np.bool_], *, num_pairs: int
    ) -> _Floats:
        """Ratings by response, rule and pair; NaN where there is none."""
        num_rules = len(self._cells)
        slot_N = rows.is_rejected_N.astype(np.int64)
        slot_N *= num_rules
        slot_N += rows.rule_N
        slot_N *= num_pairs
        slot_N += np.cumsum(is_first_N)
        slot_N -= 1
        rating = np.full(2 * num_rules * num_pairs, np.nan)
        rating[slot_N] = rows.rating_N
        is_filled = np.zeros(len(rating), dtype=bool)
        is_filled[slot_N] = True
        self.num_repeats += len(slot_N) - int(np.count_nonzero(is_filled))
        return rating.reshape(2, num_rules, num_pairs)

    def _add_source(self, source: int, rating_2RP: _Floats) -> None:
        chosen_RP, rejected_RP = rating_2RP
        win_RP = chosen_RP > rejected_RP
        loss_RP = chosen_RP < rejected_RP
        is_one_sided_P = np.isnan(chosen_RP).all(axis=0) != np.isnan(rejected_RP).all(axis=0)
        # Sums of signs are whole numbers far below 2^53: exact in floating point, where the matrix
        # product is fast.
        sign_RP = win_RP.astype(np.float64) - loss_RP
        self._num_pairs_S[source] += rating_2RP.shape[2]
        self._num_one_sided_S[source] += np.count_nonzero(is_one_sided_P)
        self._wins_SR[source] += np.count_nonzero(win_RP, axis=1)
        self._losses_SR[source] += np.count_nonzero(loss_RP, axis=1)
        self._ties_SR[source] += np.count_nonzero(chosen_RP == rejected_RP, axis=1)
        self._sign_gram_SRR[source] += (sign_RP @ sign_RP.T).astype(np.int64)
        for tally, chosen_P, rejected_P in zip(self._cells, chosen_RP, rejected_RP, strict=True):
            if tally is not None:
                tally.add(source, chosen_P, rejected_P)


class _CellTally:
    """How often each two ratings of one rule stand against each other, by source."""

    def __init__(self, level_L: _Floats, *, num_sources: int) -> None:
        self._level_L = level_L
        num_states = len(level_L) + 1
        self._count_SMM = np.zeros((num_sources, num_states, num_states), dtype=np.int64)

    def add(self, source: int, chosen_P: _Floats, rejected_P: _Floats) -> None:
        """Count some pairs; NaN is missing and sorts behind the last level."""
        count_MM = self._count_SMM[source]
        key_P = np.searchsorted(self._level_L, chosen_P)
        key_P *= len(count_MM)
        key_P += np.searchsorted(self._level_L, rejected_P)
        count_MM += np.bincount(key_P, minlength=count_MM.size).reshape(count_MM.shape)

    def cells(self, sources: Sequence[int]) -> PairCells:
        """The cells of some sources together."""
        return cells_of_counts(self._count_SMM[list(sources)].sum(axis=0))


def _cell_tallies(
    levels: Sequence[_Floats | None], *, num_sources: int
) -> tuple[_CellTally | None, ...]:
    tallies: list[_CellTally | None] = []
    num_counts = 0
    for level_L in levels:
        needed = 0 if level_L is None else num_sources * (len(level_L) + 1) ** 2
        if level_L is None or num_counts + needed > _MAX_CELL_COUNTS:
            tallies.append(None)
            continue
        num_counts += needed
        tallies.append(_CellTally(level_L, num_sources=num_sources))
    return tuple(tallies)
