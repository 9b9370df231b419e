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
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from encore.core.errors import InputError
from encore.data.arrow_tables import arrow_array
from encore.data.records import RESPONSES
from encore.data.schemas import RATINGS_CONTRACT

# Suffixes: N rows, P runs of rows of one pair.

_ID_COLUMNS = [name for name in RATINGS_CONTRACT.names if name != "rating"]
_RESPONSES: dict[str, int] = {response: number for number, response in enumerate(RESPONSES)}
_SHARDS_PER_BATCH = 20


class InvalidShardError(InputError):
    """A shard has a value that is not valid, though its digest is right."""


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
        InvalidShardError: A value is not valid.
    """
    rules = {rule_id: number for number, rule_id in enumerate(rule_ids)}
    read = partial(_read_shards, sources=sources, rules=rules)
    starts = range(0, len(paths), _SHARDS_PER_BATCH)
    batches = [paths[start : start + _SHARDS_PER_BATCH] for start in starts]
    with ThreadPoolExecutor(1) as pool:  # the next batch is read while one is counted
        futures = [pool.submit(read, batches[0])]
        for following in (*batches[1:], None):
            columns, pairs, num_rows_P = futures.pop().result()
            if following is not None:
                futures.append(pool.submit(read, following))
            pair_key_N = np.repeat(pair_keys_of(pairs), num_rows_P)
            columns = {"pair_key": pair_key_N, **columns}
            arrays = [arrow_array(column_N) for column_N in columns.values()]
            yield pa.RecordBatch.from_arrays(arrays, names=[*columns])


def _read_shards(
    paths: Sequence[Path], *, sources: dict[str, int], rules: Mapping[str, int]
) -> tuple[dict[str, Any], pa.Table, NDArray[np.intp]]:
    """Return the columns but the key, the pair of each run of rows, and the rows in each run."""
    tables = [
        pq.ParquetFile(path, read_dictionary=_ID_COLUMNS).read(
            columns=RATINGS_CONTRACT.names, use_threads=False
        )
        for path in paths
    ]
    table = pa.concat_tables(tables).unify_dictionaries().combine_chunks()
    pair_id, source, response, rule_id = (table[name].chunk(0) for name in _ID_COLUMNS)
    nan = arrow_array(np.full(1, np.nan))[0]
    rating_N = np.from_dlpack(table["rating"].chunk(0).fill_null(nan))
    num_valid = np.count_nonzero((rating_N >= 0) & (rating_N <= 1)) + table["rating"].null_count
    if num_valid < len(rating_N) or any(table[name].null_count for name in _ID_COLUMNS):
        raise InvalidShardError(f"{paths[0]} or a shard after it has a value that is not valid")
    for name in source.dictionary.to_pylist():
        sources.setdefault(name, len(sources))
    pair_N, source_N = (np.from_dlpack(ids.indices) for ids in (pair_id, source))  # no pandas
    is_first_N = np.append(True, (pair_N[1:] != pair_N[:-1]) | (source_N[1:] != source_N[:-1]))
    first_P = np.flatnonzero(is_first_N)
    pairs_P = [ids.take(arrow_array(first_P)) for ids in (source, pair_id)]
    pairs = pa.Table.from_arrays(pairs_P, names=["source", "pair_id"])
    columns = {
        "source_place": _numbers(source, sources, dtype=np.int32),
        "rule_place": _numbers(rule_id, rules, dtype=np.int32),
        "is_rejected": _numbers(response, _RESPONSES, dtype=np.uint8),
        "rating": rating_N,
    }
    return columns, pairs, np.diff(first_P, append=len(pair_N))


def _numbers(
    ids: pa.DictionaryArray, number_by_name: Mapping[str, int], *, dtype: Any
) -> NDArray[Any]:
    """Return the number of each id, shape [N]."""
    names = ids.dictionary.to_pylist()
    if unknown := {*names} - number_by_name.keys():
        raise InvalidShardError(f"{unknown} is no rule and no response of this run")
    numbers = np.array([number_by_name[name] for name in names], dtype=dtype)
    index_N: Any = np.from_dlpack(ids.indices)
    return np.asarray(numbers.take(index_N))
