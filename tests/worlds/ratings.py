"""Make random ratings tables with every oddity of real ones, and store them in odd ways."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from encore.data.schemas import RATINGS_CONTRACT

SOURCES = ("hh", "pku", "quelle-ä", "来源", "sp ace")
_RULE_NAMES = ("avoid-harm", "Regel 2 – äöü", "规则三", "rule'4", 'rule"5', "r6", "rule-7", "🛡️")


def ratings_table(rows: list[tuple[str, str, str, str, float | None]]) -> pa.Table:
    """Return a table of (pair_id, source, response, rule_id, rating) rows."""
    names = ("pair_id", "source", "response", "rule_id", "rating")
    records = [dict(zip(names, row, strict=True)) for row in rows]
    nullable = pa.schema([(field.name, field.type) for field in RATINGS_CONTRACT])
    return pa.Table.from_pylist(records, schema=nullable)


def random_table(rng: np.random.Generator, *, max_rows: int) -> pa.Table:
    """Return random ratings of several sources and rules in random order.

    They have 1 level to as many as ratings, ties, nulls and missing rows. The same pair ids occur
    in several sources.
    """
    num_rules = int(rng.integers(1, 13))
    rule_ids = [*_RULE_NAMES[:num_rules], *(f"rule-{k:02d}" for k in range(8, num_rules))]
    sources = rng.permutation(SOURCES)[: rng.integers(1, len(SOURCES))].tolist()
    num_pairs = int(rng.integers(3, max(4, max_rows // (2 * num_rules * len(sources)))))
    blocks = [
        _block(rng, source=source, rule_id=rule_id, num_pairs=num_pairs, rule_index=k)
        for source in sources
        for k, rule_id in enumerate(rule_ids)
        if k == 0 or rng.random() > 0.1  # some rules are missing in some sources
    ]
    table = pa.concat_tables(blocks)
    return table.take(pa.array(rng.permutation(table.num_rows)))


def write_odd_files(table: pa.Table, folder: Path, rng: np.random.Generator) -> None:
    """Write a table to files with different but equivalent types, beside files of other kinds."""
    cuts = np.sort(rng.integers(0, table.num_rows + 1, size=int(rng.integers(0, 4))))
    bounds = [0, *cuts.tolist(), table.num_rows]
    for i, (start, stop) in enumerate(pairwise(bounds)):
        name = f"deep/er/part[{i}].parquet" if i % 2 else f"it's shard-{i:03d}*.parquet"
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        part = _retyped(table.slice(start, stop - start), rng)
        pq.write_table(part, path, row_group_size=int(rng.integers(1, 5000)))
    for name in ("_tmp.parquet", ".hidden.parquet", "notes.txt", "shard-9.parquet.tmp"):
        (folder / name).write_text("not a ratings table")


def _block(
    rng: np.random.Generator, *, source: str, rule_id: str, num_pairs: int, rule_index: int
) -> pa.Table:
    """Return the ratings of a source's pairs under a rule; some are null, some are left out."""
    quality = rng.normal(size=(num_pairs, 1)) * rng.random()
    noise = rng.normal(size=(num_pairs, 2))
    raw = 1 / (1 + np.exp(-(quality + noise + np.array([0.3 * rng.normal(), 0.0]))))
    num_levels = int(rng.choice([1, 2, 3, 11, 101, 0])) if rule_index else 11
    rating = raw if num_levels == 0 else np.round(raw * (num_levels - 1)) / max(num_levels - 1, 1)
    is_null = rng.random((num_pairs, 2)) < rng.choice([0.0, 0.02, 0.3])
    is_there = rng.random((num_pairs, 2)) > rng.choice([0.0, 0.05, 0.5], p=[0.6, 0.2, 0.2])
    is_there[0] = True
    pair = np.array([f"{i:032x}" for i in range(num_pairs)])
    rows = np.flatnonzero(is_there.ravel())
    return pa.table(
        {
            "pair_id": pair[rows // 2],
            "source": [source] * len(rows),
            "response": np.array(["chosen", "rejected"])[rows % 2],
            "rule_id": [rule_id] * len(rows),
            "rating": pa.array(rating.ravel()[rows], mask=is_null.ravel()[rows]),
        }
    )


def _retyped(table: pa.Table, rng: np.random.Generator) -> pa.Table:
    for name in ("pair_id", "source", "response", "rule_id"):
        kind = rng.integers(0, 4)
        column = table[name]
        if kind == 1:
            column = column.cast(pa.large_string())
        elif kind == 2:
            column = column.cast(pa.string_view())
        elif kind == 3:
            column = column.dictionary_encode()
        table = table.set_column(table.schema.get_field_index(name), name, column)
    if rng.random() < 0.3:  # columns of other kinds do no harm, and order means nothing
        table = table.append_column("raw_reply", pa.nulls(table.num_rows, pa.string()))
    return table.select(rng.permutation(table.column_names).tolist())
