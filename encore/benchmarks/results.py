"""Per-pair results of a benchmark in Parquet: what every figure of a table can be recomputed from.

Grain: one row per (row, subset, row_id, pair_id), where ``row`` is a row of the results' table: a
scheme, a model, a judge.

Suffixes: P pairs, 2 responses (chosen, rejected).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from encore.benchmarks.comparison import Comparison, compare_credits
from encore.benchmarks.definition import Ties, Weighting
from encore.benchmarks.metrics import unit_credits, units_of
from encore.benchmarks.pairs import BenchmarkPairs
from encore.errors import InputError
from encore.files import atomic_path

#: The rewards are null where a judge compared the two responses without scoring either.
PAIR_RESULTS = pa.schema(
    [
        *(
            pa.field(name, pa.string(), nullable=False)
            for name in ("benchmark", "data_digest", "row", "subset", "pair_id", "row_id")
        ),
        pa.field("reward_chosen", pa.float64(), nullable=True),
        pa.field("reward_rejected", pa.float64(), nullable=True),
        pa.field("credit", pa.float64(), nullable=False),
    ]
)
_FOOTER_KEY = b"encore"
_KEY_COLUMNS = ["subset", "row_id", "pair_id"]
_FOOTER_FIELDS = ("benchmark", "data_digest", "is_partial", "weighting")

RowKind = Literal["scheme", "model", "judge", "paper-only"]
_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawSpread:
    """The headline over draws: what chance between draws does, not between pairs.

    Attributes:
        num_draws: How many.
        mean: Of the draws.
        low: Their quantile at 2.5 %.
        high: Their quantile at 97.5 %.
    """

    num_draws: int
    mean: float
    low: float
    high: float


class RowAbout(BaseModel):
    """What a row is beside its figures, so that a row read from a file says what it said first.

    Attributes:
        kind: What made it.
        params: The scheme's parameters.
        draws: Of a mean over draws: its pairs are neither right nor wrong.
        uses_labels: Whether weights were learnt from people's preferences on the training pairs.
        synthetic: What of it is synthetic, in words.
        notes: What a reader of its figures should know, a sentence each.
        num_cut_pairs: Pairs whose text was cut to the model's length; None where nobody said.
        judge: Of a judge's row: which.
        scheme: Of its weights; None where it has none, or nobody said.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: RowKind
    params: Mapping[str, int | float | str] = Field(default_factory=dict)
    draws: DrawSpread | None = None
    uses_labels: bool = False
    synthetic: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    num_cut_pairs: int | None = None
    judge: str | None = None
    scheme: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PairResults:
    """What one row of a table gave every pair.

    Attributes:
        name: Of the row: the scheme or model.
        ties: What a tie was worth to it.
        credit_P: 0 to 1.
        reward_P2: Chosen first, shape [P, 2]; None for a judge that compares.
        about: What the row is beside that; None where nobody said.
    """

    name: str
    ties: Ties
    credit_P: _Floats
    reward_P2: _Floats | None = None
    about: RowAbout | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StoredResults:
    """One row's results, as read from a file.

    Attributes:
        benchmark: Name of the benchmark.
        data_digest: Of its pairs (`BenchmarkPairs.digest`).
        is_partial: Whether pairs of the benchmark were missing.
        weighting: How the benchmark's headline is weighted.
        subset_P: Subset of each pair.
        row_id_P: Row of each pair.
        pair_id_P: Id of each pair.
        results: Name, credits and rewards.
    """

    benchmark: str
    data_digest: str
    is_partial: bool
    weighting: Weighting
    subset_P: tuple[str, ...]
    row_id_P: tuple[str, ...]
    pair_id_P: tuple[str, ...]
    results: PairResults

    @property
    def on(self) -> tuple[str, str, str]:
        """What results have to share to be compared: benchmark, digest of pairs, weighting."""
        return self.benchmark, self.data_digest, self.weighting

    def order_of(self, keys: Sequence[tuple[str, str, str]]) -> NDArray[np.int64]:
        """Where the pair of each (subset, row id, pair id) stands: files may differ in order."""
        own = zip(self.subset_P, self.row_id_P, self.pair_id_P, strict=True)
        place = {key: index for index, key in enumerate(own)}
        return np.array([place[key] for key in keys], dtype=np.int64)


def write_pair_results(
    path: Path, results: Sequence[PairResults], *, pairs: BenchmarkPairs
) -> Path:
    """Write the results of a table's rows to one Parquet file, whole or not at all.

    Args:
        path: The file; its folder must exist.
        results: In the table's order, each with a name of its own.
        pairs: What they are results on.

    Returns:
        ``path``.

    Raises:
        InputError: No results, two of one name, or credits of other pairs.
        OSError: As the file system reports it.
    """
    _check(results, num_pairs=pairs.num_pairs)
    benchmark = pairs.benchmark
    footer = {
        "benchmark": benchmark.name,
        "version": benchmark.version,
        "revision": benchmark.revision,
        "data_digest": pairs.digest,
        "num_pairs": pairs.num_pairs,
        "is_partial": pairs.is_partial,
        "weighting": benchmark.weighting,
        "ties": {one.name: one.ties for one in results},
        "rows": {one.name: one.about.model_dump(mode="json") for one in results if one.about},
    }
    schema = PAIR_RESULTS.with_metadata({_FOOTER_KEY: json.dumps(footer).encode()})
    subset_P, row_id_P, pair_id_P = zip(*pairs.keys, strict=True)
    with (
        atomic_path(path) as temporary,
        pq.ParquetWriter(temporary, schema, compression="zstd") as writer,
    ):
        for one in results:
            nulls = [None] * pairs.num_pairs
            chosen, rejected = (nulls, nulls) if one.reward_P2 is None else one.reward_P2.T
            columns = {
                "benchmark": pa.repeat(benchmark.name, pairs.num_pairs),
                "data_digest": pa.repeat(pairs.digest, pairs.num_pairs),
                "row": pa.repeat(one.name, pairs.num_pairs),
                "subset": subset_P,
                "pair_id": pair_id_P,
                "row_id": row_id_P,
                "reward_chosen": chosen,
                "reward_rejected": rejected,
                "credit": one.credit_P,
            }
            writer.write_table(pa.table(columns, schema=schema))
    return path


def read_pair_results(path: Path) -> tuple[StoredResults, ...]:
    """The results of every row in a file that `write_pair_results` wrote, in the table's order.

    Raises:
        InputError: No such file, another kind of Parquet, or rows that are not those of its pairs.
    """
    try:
        table = pq.read_table(path, partitioning=None)
        footer: dict[str, Any] = json.loads((table.schema.metadata or {})[_FOOTER_KEY])
        ties: dict[str, Ties] = footer["ties"]
        rows: dict[str, Any] = footer.get("rows", {})  # not in older files
        about = {name: RowAbout.model_validate(rows[name]) for name in rows}
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        raise InputError(
            f"{path}: no results of a benchmark ({type(error).__name__}); expected a file that "
            "`encore benchmark` wrote"
        ) from error
    if table.schema.names != PAIR_RESULTS.names:
        raise InputError(
            f"{path}: columns {', '.join(table.schema.names)}; expected those of results of a "
            f"benchmark: {', '.join(PAIR_RESULTS.names)}"
        )
    num_pairs: int = footer["num_pairs"]
    keys = table.slice(0, num_pairs).select(_KEY_COLUMNS)
    of_all: dict[str, Any] = {name: footer[name] for name in _FOOTER_FIELDS}
    of_all |= {f"{name}_P": tuple(keys[name].to_pylist()) for name in _KEY_COLUMNS}
    found = []
    for place, (name, policy) in enumerate(ties.items()):
        part = table.slice(place * num_pairs, num_pairs)
        is_its_own = (
            part.select(_KEY_COLUMNS).equals(keys) and pc.all(pc.equal(part["row"], name)).as_py()
        )
        if table.num_rows != num_pairs * len(ties) or not is_its_own:
            raise InputError(
                f"{path}: damaged: the lines of {name!r} are not one for each of its "
                f"{num_pairs} pairs; run `encore benchmark` again"
            )
        rewards = [part[column].to_numpy() for column in ("reward_chosen", "reward_rejected")]
        results = PairResults(
            name=name,
            ties=policy,
            credit_P=part["credit"].to_numpy(),
            reward_P2=None if part["reward_chosen"].null_count else np.stack(rewards, axis=1),
            about=about.get(name),
        )
        found.append(StoredResults(**of_all, results=results))
    return tuple(found)


def compare_stored(first: StoredResults, second: StoredResults, *, seed: int = 0) -> Comparison:
    """Compare two rows, of one file or of two, counted and weighted as the headline is.

    Raises:
        InputError: They are not results on the same pairs, weighted alike.
    """
    refuse_other_pairs(first.results.name, first.on, second.on)
    units = units_of(first.subset_P, first.row_id_P)
    keys = zip(first.subset_P, first.row_id_P, first.pair_id_P, strict=True)
    second_P = second.results.credit_P[second.order_of(list(keys))]
    return compare_credits(
        unit_credits(first.results.credit_P, units=units),
        unit_credits(second_P, units=units),
        subset_P=units.subset_U,
        weighting=first.weighting,
        seed=seed,
    )


def refuse_other_pairs(what: str, on: tuple[str, str, str], other: tuple[str, str, str]) -> None:
    """Refuse results on other pairs than others are on.

    Args:
        what: Whose results, or which file.
        on: Benchmark, digest of its pairs, weighting (`StoredResults.on`).
        other: The same of what they would be compared with.

    Raises:
        InputError: Another benchmark, other pairs, or another weighting.
    """
    if on[:2] != other[:2]:
        raise InputError(
            f"{what}: results on {on[0]} {on[1][:12]}, not on {other[0]} {other[1][:12]}; only "
            "results on the same pairs can be compared: run both on the same data"
        )
    if on[2] != other[2]:
        raise InputError(
            f"{what}: results that count all {on[2]} of {on[0]} alike, not all {other[2]}: two "
            "definitions of one name; run both with the same one"
        )


def _check(results: Sequence[PairResults], *, num_pairs: int) -> None:
    names = [one.name for one in results]
    if not names:
        raise InputError("no results to write; expected those of one row at least")
    for one in results:
        if names.count(one.name) > 1:
            raise InputError(f"results named {one.name!r} are there twice; give each its own name")
        rewards = np.empty((num_pairs, 2)) if one.reward_P2 is None else one.reward_P2
        if one.credit_P.shape != (num_pairs,) or rewards.shape != (num_pairs, 2):
            raise InputError(
                f"results {one.name!r}: credits of shape {one.credit_P.shape} and rewards of shape "
                f"{rewards.shape} for {num_pairs} pairs; expected one credit and two rewards each"
            )
