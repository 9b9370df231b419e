"""Per-pair results of a benchmark in Parquet: what every figure of a table can be recomputed from.

Grain: one row per (row, subset, row_id, pair_id), where ``row`` is a row of the results' table: a
scheme, a model, a judge.

Suffixes: P pairs, 2 responses (chosen, rejected).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from encore.benchmarks.benchmark_pairs import BenchmarkPairs
from encore.benchmarks.definition import Ties, Weighting
from encore.benchmarks.table_rows import RowMetadata, TableRow
from encore.core.errors import InputError
from encore.core.files import atomic_path
from encore.data.schemas import text_columns

#: The rewards are null where a judge compared the two responses without scoring either.
PAIR_RESULTS = pa.schema(
    [
        *text_columns("benchmark", "data_digest", "row", "subset", "pair_id", "row_id"),
        pa.field("reward_chosen", pa.float64(), nullable=True),
        pa.field("reward_rejected", pa.float64(), nullable=True),
        pa.field("credit", pa.float64(), nullable=False),
    ]
)
_FOOTER_KEY = b"encore"
_KEY_COLUMNS = ["subset", "row_id", "pair_id"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PairResults:
    """What a file of results holds.

    Attributes:
        benchmark: Name of the benchmark.
        data_digest: Of its pairs (`BenchmarkPairs.digest`).
        weighting: How the benchmark's headline is weighted.
        keys: Subset, row id and pair id of each pair, in order.
        rows: In the table's order.
    """

    benchmark: str
    data_digest: str
    weighting: Weighting
    keys: list[tuple[str, str, str]]
    rows: tuple[TableRow, ...]

    def order_of(self, keys: Sequence[tuple[str, str, str]]) -> list[int]:
        """Where the pair of each key stands: files may differ in order."""
        place = {key: index for index, key in enumerate(self.keys)}
        return [place[key] for key in keys]


def write_pair_results(path: Path, rows: Sequence[TableRow], *, pairs: BenchmarkPairs) -> Path:
    """Write what a table's rows gave every pair to one Parquet file, whole or not at all.

    Args:
        path: The file, which is returned; its folder must exist.
        rows: In the table's order, each with a name of its own.
        pairs: What they are results on.

    Raises:
        OSError: As the file system reports it.
    """
    benchmark = pairs.benchmark
    footer = {
        "benchmark": benchmark.name,
        **benchmark.model_dump(include={"version", "revision", "weighting"}),
        "data_digest": pairs.digest,
        "num_pairs": pairs.num_pairs,
        "is_partial": pairs.is_partial,
        "ties": {row.name: row.ties for row in rows},
        "rows": {row.name: row.metadata.model_dump(mode="json") for row in rows},
    }
    schema = PAIR_RESULTS.with_metadata({_FOOTER_KEY: json.dumps(footer).encode()})
    keys = dict(zip(_KEY_COLUMNS, zip(*pairs.keys, strict=True), strict=True))
    nulls = [None] * pairs.num_pairs
    with (
        atomic_path(path) as temporary,
        pq.ParquetWriter(temporary, schema, compression="zstd") as writer,
    ):
        for row in rows:
            chosen, rejected = (nulls, nulls) if row.reward_P2 is None else row.reward_P2.T
            columns = {
                "benchmark": [benchmark.name] * pairs.num_pairs,
                "data_digest": [pairs.digest] * pairs.num_pairs,
                "row": [row.name] * pairs.num_pairs,
                **keys,
                "reward_chosen": chosen,
                "reward_rejected": rejected,
                "credit": row.credit_P,
            }
            writer.write_table(pa.table(columns, schema=schema))
    return path


def read_pair_results(path: Path) -> PairResults:
    """What `write_pair_results` wrote.

    Raises:
        InputError: No such file, another kind of Parquet, or rows that are not those of its pairs.
    """
    try:
        table = pq.read_table(path, columns=PAIR_RESULTS.names, partitioning=None)
        footer: dict[str, Any] = json.loads((table.schema.metadata or {})[_FOOTER_KEY])
        ties: dict[str, Ties] = footer["ties"]
        metadata = {name: RowMetadata.model_validate(footer["rows"][name]) for name in ties}
        of_all = {name: footer[name] for name in ("benchmark", "data_digest", "weighting")}
        num_pairs = footer["num_pairs"]
        parts = [table.slice(place * num_pairs, num_pairs) for place in range(len(ties))]
        keys = table.slice(0, num_pairs).select(_KEY_COLUMNS)
        is_whole = table.num_rows == num_pairs * len(ties) and all(
            part.select(_KEY_COLUMNS).equals(keys) and pc.all(pc.equal(part["row"], name)).as_py()
            for name, part in zip(ties, parts, strict=True)
        )
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        raise InputError(
            f"{path}: no results of a benchmark as `encore` writes them ({type(error).__name__})"
        ) from error
    if not is_whole:
        raise InputError(
            f"{path}: damaged, not {num_pairs} pairs for each row; run `encore benchmark` again"
        )
    rows = []
    for name, part in zip(ties, parts, strict=True):
        rewards = [part[column].to_numpy() for column in ("reward_chosen", "reward_rejected")]
        row = TableRow(
            name=name,
            ties=ties[name],
            credit_P=part["credit"].to_numpy(),
            reward_P2=None if part["reward_chosen"].null_count else np.stack(rewards, axis=1),
            metadata=metadata[name],
        )
        rows.append(row)
    columns = (keys[name].to_pylist() for name in _KEY_COLUMNS)
    return PairResults(**of_all, keys=list(zip(*columns, strict=True)), rows=tuple(rows))


def stored_rows(
    path: Path, *, pairs: BenchmarkPairs, name: str | None = None
) -> tuple[TableRow, ...]:
    """The rows of a file of results, such as a judge's, for a table on the same pairs.

    Notes and marks of a row begin with whose they are.

    Args:
        path: As `write_pair_results` wrote it.
        pairs: Of the benchmark.
        name: Of the row, beside the paper's method of that name; of several rows, what stands
            before the name of each. None: as in the file.

    Raises:
        InputError: No results, or results on other pairs.
    """
    results, benchmark = read_pair_results(path), pairs.benchmark
    there = (results.benchmark, results.data_digest, results.weighting)
    wanted = (benchmark.name, pairs.digest, benchmark.weighting)
    if there != wanted:
        found, own = (f"{one[0]} {one[1][:12]}, all {one[2]} alike" for one in (there, wanted))
        raise InputError(
            f"{path}: results on {found}, not on {own}; only results on the same pairs, counted "
            "alike, can be compared: run both on the same data"
        )
    order_P, is_alone = results.order_of(pairs.keys), len(results.rows) == 1
    own_mark = f"benchmark {benchmark.name}"  # every table on this benchmark is marked so itself
    rows = []
    for row in results.rows:
        whose = name or (row.name if is_alone else "")
        before = f"{whose}: " if whose else ""
        synthetic, notes = (
            tuple(before + one.removeprefix(before) for one in said if one != own_mark)
            for said in (row.metadata.synthetic, row.metadata.notes)
        )
        moved = replace(
            row.with_metadata(synthetic=synthetic, notes=notes),
            name=whose if is_alone else before + row.name,
            method=whose if is_alone else None,
            credit_P=row.credit_P[order_P],
            reward_P2=None if row.reward_P2 is None else row.reward_P2[order_P],
        )
        rows.append(moved)
    return tuple(rows)
