"""Results of a benchmark per pair, in Parquet. Every figure of a table can be recomputed from them.

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
from encore.benchmarks.definition import Scoring, Ties, Weighting
from encore.benchmarks.metrics import Units, units_of_keys
from encore.benchmarks.table_rows import RowMetadata, TableRow
from encore.core.errors import InputError
from encore.core.files import atomic_path
from encore.data.schemas import text_columns

#: Rewards are null if a judge compared the two responses without scoring them. Rewards and credit
#: are null if the model's chat template refuses the pair. Pairs of one ``prompt_id``, a digest of
#: the prompt, belong together.
PAIR_RESULTS = pa.schema(
    [
        *text_columns("benchmark", "data_digest", "row", "subset", "pair_id", "row_id"),
        pa.field("reward_chosen", pa.float64(), nullable=True),
        pa.field("reward_rejected", pa.float64(), nullable=True),
        pa.field("credit", pa.float64(), nullable=True),
        pa.field("prompt_id", pa.string(), nullable=True),
    ]
)
_FOOTER_KEY = b"encore"
_KEY_COLUMNS = ["subset", "row_id", "pair_id"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PairResults:
    """Content of a file of results.

    Attributes:
        benchmark: Name of the benchmark.
        data_digest: Digest of the benchmark's pairs (`BenchmarkPairs.digest`).
        weighting: Weighting of the benchmark's headline.
        scoring: Scoring of subsets whose rows are not choices.
        keys: Subset, row id and pair id of each pair, in the order of the credits.
        prompt_ids: Digest of the prompt of each pair.
        rows: Rows in the table's order.
    """

    benchmark: str
    data_digest: str
    weighting: Weighting
    scoring: dict[str, Scoring]
    keys: list[tuple[str, str, str]]
    prompt_ids: list[str | None]
    rows: tuple[TableRow, ...]

    @property
    def units(self) -> Units:
        """Return the units of the pairs, in the order of ``keys``."""
        return units_of_keys(self.keys, prompt_ids=self.prompt_ids, scoring=self.scoring)

    def order_of(self, keys: Sequence[tuple[str, str, str]]) -> list[int]:
        """Return the index of the pair of each key: files may differ in order."""
        index_by_key = {key: index for index, key in enumerate(self.keys)}
        return [index_by_key[key] for key in keys]


def write_pair_results(path: Path, rows: Sequence[TableRow], *, pairs: BenchmarkPairs) -> Path:
    """Write the rewards and credits of a table's rows per pair to one Parquet file, and return it.

    The file appears whole or not at all.

    Args:
        path: Path of the file. Its folder must exist.
        rows: Rows in the table's order, with unique names.
        pairs: Pairs of the benchmark.

    Raises:
        OSError: The file cannot be written.
    """
    benchmark = pairs.benchmark
    footer = {
        "benchmark": benchmark.name,
        **benchmark.model_dump(include={"version", "revision", "weighting"}),
        "data_digest": pairs.digest,
        "num_pairs": pairs.num_pairs,
        "is_partial": pairs.is_partial,
        "scoring": benchmark.scoring,
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
            reward_2P = (nulls, nulls) if row.reward_P2 is None else row.reward_P2.T
            chosen, rejected, credit = (
                pa.array(values, pa.float64(), from_pandas=True)  # NaN becomes null
                for values in (*reward_2P, row.credit_P)
            )
            columns = {
                "benchmark": [benchmark.name] * pairs.num_pairs,
                "data_digest": [pairs.digest] * pairs.num_pairs,
                "row": [row.name] * pairs.num_pairs,
                **keys,
                "reward_chosen": chosen,
                "reward_rejected": rejected,
                "credit": credit,
                "prompt_id": pairs.prompt_ids,
            }
            writer.write_table(pa.table(columns, schema=schema))
    return path


def read_pair_results(path: Path) -> PairResults:
    """Read a file of `write_pair_results`.

    Raises:
        InputError: The file is missing or of another kind, or rows of it are missing or moved.
    """
    try:
        table = pq.read_table(path, partitioning=None).select(PAIR_RESULTS.names)
        footer: dict[str, Any] = json.loads((table.schema.metadata or {})[_FOOTER_KEY])
        ties: dict[str, Ties] = footer["ties"]
        metadata = {name: RowMetadata.model_validate(footer["rows"][name]) for name in ties}
        shared = {
            name: footer[name] for name in ("benchmark", "data_digest", "weighting", "scoring")
        }
        num_pairs = footer["num_pairs"]
        parts = [table.slice(index * num_pairs, num_pairs) for index in range(len(ties))]
        keys = table.slice(0, num_pairs).select(_KEY_COLUMNS)
        is_whole = table.num_rows == num_pairs * len(ties) and all(
            part.select(_KEY_COLUMNS).equals(keys) and pc.all(pc.equal(part["row"], name)).as_py()
            for name, part in zip(ties, parts, strict=True)
        )
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        raise InputError(
            f"{path}: not a file of benchmark results of `encore` ({type(error).__name__})"
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
            reward_P2=np.stack(rewards, axis=1)
            if part["reward_chosen"].null_count < len(part)
            else None,
            metadata=metadata[name],
        )
        rows.append(row)
    columns = (keys[name].to_pylist() for name in _KEY_COLUMNS)
    return PairResults(
        **shared,
        keys=list(zip(*columns, strict=True)),
        prompt_ids=table["prompt_id"].to_pylist()[:num_pairs],
        rows=tuple(rows),
    )


def stored_rows(
    path: Path, *, pairs: BenchmarkPairs, name: str | None = None
) -> tuple[TableRow, ...]:
    """Read the rows of a file of results, such as a judge's, for a table on the same pairs.

    The notes and synthetic labels of a row begin with the name of the row.

    Args:
        path: File of `write_pair_results`.
        pairs: Pairs of the benchmark.
        name: Name of the row; the paper's method of that name stands beside it. If the file has
            several rows, a prefix of their names. None: names as in the file.

    Raises:
        InputError: The file holds no results, or results on other pairs.
    """
    results, benchmark = read_pair_results(path), pairs.benchmark
    definition_of_file = (results.benchmark, results.data_digest, results.weighting)
    definition = (benchmark.name, pairs.digest, benchmark.weighting)
    if definition_of_file != definition:
        stored, expected = (
            f"{name} {digest[:12]}, all {weighting} alike"
            for name, digest, weighting in (definition_of_file, definition)
        )
        raise InputError(
            f"{path}: results on {stored}, not on {expected}; only results on the same pairs, "
            "counted alike, can be compared: run both on the same data"
        )
    order_P, is_only_row = results.order_of(pairs.keys), len(results.rows) == 1
    benchmark_label = f"benchmark {benchmark.name}"  # the table on this benchmark has it already
    rows = []
    for row in results.rows:
        owner = name or (row.name if is_only_row else "")
        prefix = f"{owner}: " if owner else ""
        synthetic, notes = (
            tuple(prefix + text.removeprefix(prefix) for text in texts if text != benchmark_label)
            for texts in (row.metadata.synthetic, row.metadata.notes)
        )
        reordered = replace(
            row.with_metadata(synthetic=synthetic, notes=notes),
            name=owner if is_only_row else prefix + row.name,
            method=owner if is_only_row else None,
            credit_P=row.credit_P[order_P],
            reward_P2=None if row.reward_P2 is None else row.reward_P2[order_P],
        )
        rows.append(reordered)
    return tuple(rows)
