"""Read the shards of a run as numbers, without text: the fast way to count pairs.

A shard's ids are dictionaries in its Parquet file, and Arrow reads them as such. Each rule, source
and response is then looked up once for a batch of shards instead of once for a row. Decoding the
files bounds the speed of `encore analyze`: one thread reads while another one counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from encore.core.errors import EncoreError
from encore.data.arrow_tables import arrow_array
from encore.data.records import RESPONSES
from encore.data.schemas import RATINGS_CONTRACT

# Suffixes: N rows, P runs of rows of one pair.

_ID_COLUMNS = [name for name in RATINGS_CONTRACT.names if name != "rating"]
#: Columns of ``coded_ratings.sql``.
_COLUMNS = ["pair_key", "source_place", "rule_place", "is_rejected", "rating"]
_RESPONSES: dict[str, int] = {response: number for number, response in enumerate(RESPONSES)}
_SHARDS_PER_BATCH = 20


class UncheckedShardError(EncoreError):
    """A run cannot be read the fast way: open it with checked values and read it by SQL."""


def coded_shards(
    paths: Sequence[Path],
    *,
    sources: dict[str, int],
    rule_ids: Sequence[str],
    pair_keys_of: Callable[[pa.Table], NDArray[np.uint64]],
) -> Iterator[pa.RecordBatch]:
    """Yield the columns of ``coded_ratings.sql``, in the order of the shards and their rows.

    Args:
        paths: Shards of a run whose digests were checked.
        sources: Receives the number of each source, in the order in which they come.
        rule_ids: Rules in the order that numbers them.
        pair_keys_of: Returns the hash of each row of a table of ``source`` and ``pair_id``.

    Raises:
        UncheckedShardError: A shard cannot be read, has other columns or a value that is not valid.
    """
    rules = {rule_id: number for number, rule_id in enumerate(rule_ids)}
    read = partial(_read_shards, sources=sources, rules=rules)
    starts = range(0, len(paths), _SHARDS_PER_BATCH)
    batches = [paths[start : start + _SHARDS_PER_BATCH] for start in starts]
    with ThreadPoolExecutor(1) as pool:  # the next batch is read while one is counted
        futures = [pool.submit(read, batches[0])]
        for following in (*batches[1:], None):
            rows = futures.pop().result()
            if following is not None:
                futures.append(pool.submit(read, following))
            pair_key_N = np.repeat(pair_keys_of(rows.pairs), rows.num_rows_P)
            arrays = [arrow_array(column_N) for column_N in (pair_key_N, *rows.columns)]
            yield pa.RecordBatch.from_arrays(arrays, names=_COLUMNS)


class _CodedRows(NamedTuple):
    """Rows as numbers.

    Attributes:
        columns: `_COLUMNS` but the first, each of shape [N].
        pairs: Source and pair_id of each run of rows of one pair.
        num_rows_P: Rows in each run, shape [P].
    """

    columns: Sequence[NDArray[Any]]
    pairs: pa.Table
    num_rows_P: NDArray[np.intp]


def _read_shards(
    paths: Sequence[Path], *, sources: dict[str, int], rules: Mapping[str, int]
) -> _CodedRows:
    """Read the rows of some shards.

    Raises:
        UncheckedShardError: A shard cannot be read, has other columns or a value that is not valid.
    """
    shards = [_read_shard(path, sources=sources, rules=rules) for path in paths]
    return _CodedRows(
        columns=[*map(np.concatenate, zip(*(shard.columns for shard in shards), strict=True))],
        pairs=pa.concat_tables([shard.pairs for shard in shards]),
        num_rows_P=np.concatenate([shard.num_rows_P for shard in shards]),
    )


def _read_shard(path: Path, *, sources: dict[str, int], rules: Mapping[str, int]) -> _CodedRows:
    """Read the rows of one shard.

    Raises:
        UncheckedShardError: It cannot be read, has other columns or a value that is not valid.
    """
    try:
        table = _read_table(path)
    except (pa.ArrowException, OSError, KeyError) as error:
        raise UncheckedShardError(f"{path}: {error}") from error
    pair_id, source, response, rule_id = (table[name].chunk(0) for name in _ID_COLUMNS)
    nan = arrow_array(np.full(1, np.nan))[0]
    rating_N = np.from_dlpack(table["rating"].chunk(0).fill_null(nan))
    num_valid = np.count_nonzero((rating_N >= 0) & (rating_N <= 1)) + table["rating"].null_count
    if num_valid < len(rating_N) or any(table[name].null_count for name in _ID_COLUMNS):
        raise UncheckedShardError(f"{path}: a value is not valid")
    pair_N, source_N = (np.from_dlpack(ids.indices) for ids in (pair_id, source))  # no pandas
    is_first_N = np.append(True, (pair_N[1:] != pair_N[:-1]) | (source_N[1:] != source_N[:-1]))
    first_P = np.flatnonzero(is_first_N)
    # Dictionaries differ between shards.
    pairs_P = [ids.take(arrow_array(first_P)).dictionary_decode() for ids in (source, pair_id)]
    for name in pairs_P[0].unique().to_pylist():
        sources.setdefault(name, len(sources))
    numbers = (_numbers(source, sources), _numbers(rule_id, rules), _numbers(response, _RESPONSES))
    return _CodedRows(
        columns=[*numbers, rating_N],
        pairs=pa.Table.from_arrays(pairs_P, names=["source", "pair_id"]),
        num_rows_P=np.diff(first_P, append=len(pair_N)),
    )


def _read_table(path: Path) -> pa.Table:
    """Read the columns of the ratings contract in one chunk, ids as dictionaries.

    Raises:
        UncheckedShardError: A column has another type, or may have nulls that it must not have.
    """
    file = pq.ParquetFile(path, read_dictionary=_ID_COLUMNS)
    for field in RATINGS_CONTRACT:
        column = file.schema_arrow.field(field.name)
        is_id = field.name in _ID_COLUMNS
        expected_type = pa.dictionary(pa.int32(), field.type) if is_id else field.type
        if column.type != expected_type or (column.nullable and not field.nullable):
            raise UncheckedShardError(f"{path}: column {column} is not of `encore rate`")
    table = file.read(columns=RATINGS_CONTRACT.names, use_threads=False)
    return table.unify_dictionaries().combine_chunks()


def _numbers(ids: pa.DictionaryArray, number_by_name: Mapping[str, int]) -> NDArray[np.int32]:
    """Return the number of each id, shape [N].

    Raises:
        UncheckedShardError: An id has no number.
    """
    names = ids.dictionary.to_pylist()
    if unknown := {*names} - number_by_name.keys():
        raise UncheckedShardError(f"{unknown} is no rule and no response of this run")
    numbers = np.array([number_by_name[name] for name in names], dtype=np.int32)
    index_N: Any = np.from_dlpack(ids.indices)
    return np.asarray(numbers.take(index_N))
