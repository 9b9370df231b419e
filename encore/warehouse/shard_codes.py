"""Read the shards of a run as numbers, without text: the fast way to count pairs.

A shard's ids are dictionaries in its Parquet file, and Arrow reads them as such. Each rule, source
and response is then looked up once for a batch of shards instead of once for a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from encore.data.records import RESPONSES
from encore.data.schemas import RATINGS_CONTRACT

# Suffixes: N rows, P runs of rows of one pair.

_ID_COLUMNS = [name for name in RATINGS_CONTRACT.names if name != "rating"]
_SHARDS_PER_BATCH = 20


def coded_shards(
    paths: Sequence[Path],
    *,
    sources: Sequence[str],
    rule_ids: Sequence[str],
    pair_keys_of: Callable[[pa.Table], NDArray[np.uint64]],
) -> Iterator[pa.RecordBatch]:
    """Yield the columns of ``coded_ratings.sql``, in the order of the shards and their rows.

    Args:
        paths: Shards of a run whose digests and values were checked.
        sources: Sources in the order that numbers them.
        rule_ids: Rules in the order that numbers them.
        pair_keys_of: Returns the hash of each row of a table of ``source`` and ``pair_id``.
    """
    read = partial(_read_shards, sources=sources, rule_ids=rule_ids)
    starts = range(0, len(paths), _SHARDS_PER_BATCH)
    batches = [paths[start : start + _SHARDS_PER_BATCH] for start in starts]
    with ThreadPoolExecutor(1) as pool:  # the next batch is read while one is counted
        futures = [pool.submit(read, batches[0])]
        for following in (*batches[1:], None):
            columns, pairs, num_rows_P = futures.pop().result()
            if following is not None:
                futures.append(pool.submit(read, following))
            pair_key_N = np.repeat(pair_keys_of(pairs), num_rows_P)
            yield pa.RecordBatch.from_pydict({"pair_key": pair_key_N, **columns})


def _read_shards(
    paths: Sequence[Path], *, sources: Sequence[str], rule_ids: Sequence[str]
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
    pair_N, source_N = (np.from_dlpack(ids.indices) for ids in (pair_id, source))  # no pandas
    is_first_N = np.append(True, (pair_N[1:] != pair_N[:-1]) | (source_N[1:] != source_N[:-1]))
    first_P = np.flatnonzero(is_first_N)
    pairs = pa.table({"source": source.take(first_P), "pair_id": pair_id.take(first_P)})
    columns = {
        "source_place": _numbers(source, sources, dtype=np.int32),
        "rule_place": _numbers(rule_id, rule_ids, dtype=np.int32),
        "is_rejected": _numbers(response, RESPONSES, dtype=np.uint8),
        "rating": table["rating"].chunk(0).fill_null(np.nan),
    }
    return columns, pairs, np.diff(first_P, append=len(pair_N))


def _numbers(ids: pa.DictionaryArray, names: Sequence[str], *, dtype: Any) -> NDArray[Any]:
    """Return the index of each id in ``names``, shape [N]."""
    index_by_name = {name: index for index, name in enumerate(names)}
    numbers = [index_by_name[name] for name in ids.dictionary.to_pylist()]
    return np.asarray(np.array(numbers, dtype=dtype)[np.from_dlpack(ids.indices)])
