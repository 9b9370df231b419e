"""Sum over pairs what intervals, correlations and resampling need.

DuckDB counts wins, ties and losses (``rule_outcomes.sql``); what two rules, or the levels of both
responses, have in common is counted here.

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
import math
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from encore.core.errors import EncoreError
from encore.data.arrow_tables import arrow_array
from encore.warehouse import PairRatings, Warehouse

# Suffixes: N rows, P pairs, S sources, B blocks of pairs, R rules, L levels, M = L + 1 states: a
# level, or at the end that the rating is missing; a leading 2 stands for chosen and rejected.

#: Number of keys of each batch that are checked for repeats before the rest.
_NUM_FIRST_KEYS = 10_000
#: Blocks of pairs by their key, or of prompts, for errors of what follows from sums over pairs.
NUM_BLOCKS = 40
#: Limit of all counts of cells together, 128 MiB. Rules beyond it have none, like rules of too many
#: levels.
_MAX_CELL_COUNTS = 1 << 24
#: A rule of more levels has no counts of cells.
_MAX_LEVELS = 256
#: Values of a column that are no level of their own: NaN, and -0 beside 0.
_NUM_UNLISTED = 2

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
        sign_gram_RR: S'S with S = sign(chosen - rejected), 0 where a rating is missing, one row per
            pair, or per prompt with the sum over its pairs (`by_prompt`); shape [R, R].
        margin_sums_B2RR: For each of `NUM_BLOCKS` blocks of pairs, or of prompts, first the sum
            over pairs of two rules' margins, rating(chosen) - rating(rejected), multiplied; then
            the sum of the squared margins of the row's rule over the pairs that the column's rule
            rated fully as well. Shape [B, 2, R, R].
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

    def by_prompt(self, pairs: PairRatings) -> PairCounts:
        """Return the counts with sums over whole prompts, for pairs that share prompts.

        Args:
            pairs: The same pairs under the same rules, with their prompts.
        """
        assert pairs.prompt_P is not None
        margin_PR = np.nan_to_num(pairs.margin_PR)
        rated_PR = (~np.isnan(pairs.margin_PR)).astype(np.float64)
        group_P, block_P = pairs.group_P, pairs.prompt_P % np.uint64(NUM_BLOCKS)
        sign_GR = sum_by_group(np.sign(margin_PR), group_P)
        masks = [block_P == block for block in range(NUM_BLOCKS)]
        return dataclasses.replace(
            self,
            sign_gram_RR=(sign_GR.T @ sign_GR).astype(np.int64),
            margin_sums_B2RR=np.array(
                [
                    (
                        margin_PR[mask_P].T @ margin_PR[mask_P],
                        (margin_PR[mask_P] ** 2).T @ rated_PR[mask_P],
                    )
                    for mask_P in masks
                ]
            ),
        )


def sum_by_group(value_PR: _Floats, group_P: NDArray[np.intp]) -> _Floats:
    """Return the sums of values over the pairs of each group, shape [G, R].

    Args:
        value_PR: Values of each pair, shape [P, R].
        group_P: Group of each pair, from 0 without gaps.
    """
    order_P = np.argsort(group_P, kind="stable")
    first_G = np.flatnonzero(np.diff(group_P[order_P], prepend=-1))
    return np.asarray(np.add.reduceat(value_PR[order_P], first_G, axis=0), dtype=np.float64)


def count_pairs(warehouse: Warehouse) -> dict[str | None, PairCounts]:
    """Count the pairs of each source, and under None those of all sources together.

    Counts are in the order of the sorted rules. Afterwards ``outcome_counts.sql``, and what reads
    it, has its rows without a further pass over the ratings.

    Args:
        warehouse: Warehouse of the opened ratings.

    Raises:
        InputError: A pair, response and rule has more than one rating.
    """
    for order_by in (None, "pair_key"):
        tally = _Tally(warehouse)
        batches = warehouse.stream("coded_ratings", order_by=order_by)
        if _add_rows(warehouse, tally, batches, is_sorted=order_by is not None):
            return tally.counts()
    raise EncoreError(
        "two pairs have the same 64-bit hash and cannot be told apart; give the pairs other "
        "ids, for example with a letter in front"
    )


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
        rows = _Rows(*map(np.from_dlpack, batch.columns))
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
    """Running counts of pairs by source; sources and rules are in alphabetical order."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._warehouse = warehouse
        self._sources, self._rule_ids = warehouse.names("source"), warehouse.names("rule_id")
        #: Rows beyond the first of a pair, response and rule.
        self.num_repeats = 0
        #: Sums over the pairs of each source, as `_sums` returns them.
        self._sums_by_source: dict[int, list[NDArray[Any]]] = {}
        #: For each rule the state of each level, from 1 as they come; None for too many levels.
        self._states: list[dict[float, int] | None] = [{} for _ in self._rule_ids]
        #: Wins, ties and losses: rows of ``outcome_counts.sql``, which add up.
        self._outcomes: list[pa.Table] = []
        #: By source and rule, pairs by the states of the two responses; 0 is a missing rating.
        self._cells: dict[tuple[int, int], _Counts] = {}

    def add(self, rows: _Rows, is_first_N: NDArray[np.bool_]) -> None:
        """Count rows in which each pair is whole, as one run of rows."""
        first_P = np.flatnonzero(is_first_N)
        num_pairs, num_rules = len(first_P), len(self._states)
        # Pairs by source and block, so that those of each stand together.
        source_P = rows.source_index[first_P]
        block_P = (rows.pair_key[first_P] % np.uint64(NUM_BLOCKS)).astype(np.int32)
        group_P = source_P * np.int32(NUM_BLOCKS) + block_P
        order_P = np.argsort(group_P.astype(np.min_scalar_type(group_P.max())), kind="stable")
        # Ratings side by side, by response, rule and pair; NaN where a row is missing.
        column_N = rows.is_rejected * np.int32(num_rules) + rows.rule_index
        num_columns = 2 * num_rules
        order_C = np.argsort(column_N[:num_columns])
        if (
            len(column_N) == num_pairs * num_columns
            and (column_N[:num_columns][order_C] == np.arange(num_columns)).all()
            and (column_N.reshape(num_pairs, -1) == column_N[:num_columns]).all()
            and (np.diff(first_P) == num_columns).all()
        ):  # every pair has all its rows in the same order, as in a run's shards
            rating_PC = rows.rating.reshape(num_pairs, -1).take(order_P, axis=0)
            rating_CP = np.empty((num_columns, num_pairs))
            rating_CP[order_C.argsort()] = rating_PC.T
        else:
            slot_N = column_N * np.int64(num_pairs) + np.cumsum(is_first_N) - 1
            rating_CP = np.full((num_columns, num_pairs), np.nan)
            rating_CP.ravel()[slot_N] = rows.rating
            is_filled = np.zeros(rating_CP.size, dtype=bool)
            is_filled[slot_N] = True
            self.num_repeats += len(slot_N) - int(np.count_nonzero(is_filled))
            rating_CP = rating_CP.take(order_P, axis=1)
        rating_2RP = rating_CP.reshape(2, num_rules, num_pairs)
        states_by_rule = [self._number(index, rating_2RP[:, index]) for index in range(num_rules)]
        self._count_outcomes(rating_2RP, source_P[order_P])
        # Each source is counted apart.
        sorted_group_P = group_P[order_P]
        for source in np.flatnonzero(np.bincount(source_P)).tolist():
            groups = np.arange(source * NUM_BLOCKS, (source + 1) * NUM_BLOCKS + 1)
            ends_B = np.searchsorted(sorted_group_P, groups)
            pairs = slice(ends_B[0], ends_B[-1])
            sums = _sums(rating_2RP[:, :, pairs], ends_B - ends_B[0])
            if earlier_sums := self._sums_by_source.get(source):
                sums = list(map(np.add, earlier_sums, sums))
            self._sums_by_source[source] = sums
            for rule_index, state_2P in enumerate(states_by_rule):
                if state_2P is not None:
                    self._add_cells(source, rule_index, state_2P[:, pairs])
        self._limit_cells()

    def counts(self) -> dict[str | None, PairCounts]:
        """Return the counts of each source, and under None of all sources together."""
        self._warehouse.keep_rows("outcome_counts", pa.concat_tables(self._outcomes))
        outcomes = self._warehouse.rows_by_rule("rule_outcomes")
        rule_ids, sources = self._rule_ids.to_pylist(), self._sources.to_pylist()
        numbers: dict[str | None, list[int]] = {name: [n] for n, name in enumerate(sources)}
        numbers[None] = [*range(len(sources))]
        return {
            source: self._counts_of(
                numbers[source], [outcomes[source, rule_id] for rule_id in rule_ids]
            )
            for source in numbers
        }

    def _count_outcomes(self, rating_2RP: _Floats, source_P: NDArray[Any]) -> None:
        """Let DuckDB count wins, ties and losses of pairs, of which the sources' numbers are given.

        The ratings are what ``pair_ratings.sql`` finds by grouping, which takes longer.
        """
        _, num_rules, num_pairs = rating_2RP.shape
        rule_P = np.repeat(np.arange(num_rules, dtype=np.int32), num_pairs)
        columns = {
            "source": _texts(np.tile(source_P, num_rules), self._sources),
            "rule_id": _texts(rule_P, self._rule_ids),
            "chosen": arrow_array(rating_2RP[0].ravel(), nan_is_null=True),
            "rejected": arrow_array(rating_2RP[1].ravel(), nan_is_null=True),
        }
        pair_ratings = pa.RecordBatch.from_arrays([*columns.values()], [*columns])
        self._outcomes.append(self._warehouse.outcome_counts(pair_ratings))

    def _number(self, rule_index: int, rating_2P: _Floats) -> _Counts | None:
        """Return the states of a rule's ratings, shape [2, P]; None if it has too many levels."""
        states = self._states[rule_index]
        if states is None:
            return None
        encoded = arrow_array(rating_2P.ravel()).dictionary_encode()
        if len(encoded.dictionary) <= _MAX_LEVELS + _NUM_UNLISTED:
            state_L = [
                states.setdefault(level, len(states) + 1) if not math.isnan(level) else 0
                for level in encoded.dictionary.to_pylist()
            ]
            if len(states) <= _MAX_LEVELS:
                index_N: Any = np.from_dlpack(encoded.indices)
                return np.asarray(np.array(state_L, dtype=np.int32).take(index_N).reshape(2, -1))
        self._states[rule_index] = None
        return None

    def _limit_cells(self) -> None:
        """Drop the cells of the last rules if there are too many, whatever the order of the rows.

        A rule of too many levels has no cells. It counts as if it had the most, as it may have had.
        """
        num_counts = 0
        for rule_index, states in enumerate(self._states):
            num_levels = _MAX_LEVELS if states is None else len(states)
            num_counts += len(self._sums_by_source) * (num_levels + 1) ** 2
            if num_counts > _MAX_CELL_COUNTS:
                self._states[rule_index] = None

    def _add_cells(self, source: int, rule_index: int, state_2P: _Counts) -> None:
        states = self._states[rule_index]
        assert states is not None
        num_states = len(states) + 1
        key_P = state_2P[0] * num_states + state_2P[1]
        count_MM = np.bincount(key_P, minlength=num_states**2).reshape(num_states, num_states)
        earlier_MM = self._cells.get((source, rule_index), count_MM[:0, :0])
        count_MM[: len(earlier_MM), : len(earlier_MM)] += earlier_MM
        self._cells[source, rule_index] = count_MM

    def _counts_of(
        self, sources: Sequence[int], outcomes: Sequence[Mapping[str, Any]]
    ) -> PairCounts:
        """Return the counts of these sources together.

        Args:
            sources: Numbers of the sources.
            outcomes: Row of ``rule_outcomes.sql`` of each rule for these sources.
        """
        parts = zip(*(self._sums_by_source[source] for source in sources), strict=True)
        sums: list[Any] = [sum(arrays) for arrays in parts]
        totals_2, sign_gram_RR, margin_sums_B2RR = sums
        wins_R, losses_R, ties_R = (
            np.array([row[name] for row in outcomes], dtype=np.int64)
            for name in ("num_wins", "num_losses", "num_ties")
        )
        cells: list[_Counts | None] = []
        levels: list[_Floats | None] = []
        for rule_index, states in enumerate(self._states):
            if states is None:
                cells.append(None)
                levels.append(None)
                continue
            count_MM = np.zeros((len(states) + 1,) * 2, dtype=np.int64)
            for part_MM in (self._cells[source, rule_index] for source in sources):
                count_MM[: len(part_MM), : len(part_MM)] += part_MM
            state_M = [*(states[level] for level in sorted(states)), 0]
            cells.append(count_MM[np.ix_(state_M, state_M)])
            levels.append(np.array(sorted(states)))
        return PairCounts(
            num_pairs=int(totals_2[0]),
            num_one_sided=int(totals_2[1]),
            wins_R=wins_R,
            losses_R=losses_R,
            ties_R=ties_R,
            sign_gram_RR=sign_gram_RR,
            margin_sums_B2RR=margin_sums_B2RR,
            cells=tuple(cells),
            levels=tuple(levels),
        )


def _texts(index_N: NDArray[Any], names: pa.Array) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(arrow_array(index_N), names)


def _sums(rating_2RP: _Floats, ends_B: NDArray[np.intp]) -> list[NDArray[Any]]:
    """Return sums over the pairs of one source, which stand in the order of their blocks.

    Args:
        rating_2RP: Ratings, NaN for a missing one.
        ends_B: Ends of the blocks, from 0, shape [B + 1].

    Returns:
        Numbers of pairs, all and one-sided; ``sign_gram_RR``; ``margin_sums_B2RR``.
    """
    is_missing_2RP: NDArray[np.bool_] = np.isnan(rating_2RP)
    is_silent_2P = np.asarray(is_missing_2RP.all(axis=1))
    is_rated_RP = ~is_missing_2RP.any(axis=0)
    margin_RP: _Floats = np.where(is_rated_RP, rating_2RP[0] - rating_2RP[1], 0)
    # Sums of signs are whole numbers far below 2^53, exact in floating point, whose matrix product
    # is fast.
    sign_RP: _Floats = np.sign(margin_RP)
    rated_RP: Any = is_rated_RP.astype(np.float64)
    square_RP: _Floats = margin_RP**2
    margin_sums = [
        (
            margin_RP[:, start:stop] @ margin_RP[:, start:stop].T,
            square_RP[:, start:stop] @ rated_RP[:, start:stop].T,
        )
        for start, stop in pairwise(ends_B.tolist())
    ]
    num_one_sided = np.count_nonzero(is_silent_2P[0] != is_silent_2P[1])
    return [
        np.array([rating_2RP.shape[2], num_one_sided]),
        (sign_RP @ sign_RP.T).astype(np.int64),
        np.array(margin_sums),
    ]
