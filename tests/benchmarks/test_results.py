"""Per-pair results on disk: what is written comes back, and two files can be compared."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from encore.benchmarks.comparison import compare_credits
from encore.benchmarks.metrics import credit_of, unit_credits, units_of_pairs
from encore.benchmarks.pairs import BenchmarkPairs, read_benchmark_pairs
from encore.benchmarks.results import (
    PAIR_RESULTS,
    DrawSpread,
    PairResults,
    RowAbout,
    compare_stored,
    read_pair_results,
    write_pair_results,
)
from encore.errors import InputError
from tests.benchmarks.rewardbench_rows import (
    BEST_OF_4,
    best_of_row,
    pairs_of,
    row_of,
    small,
    written,
)

ROWS = [row_of(n, subset) for subset in ("refuse", "respond") for n in range(6)]


@pytest.fixture
def pairs(tmp_path: Path) -> BenchmarkPairs:
    return pairs_of(tmp_path, ROWS)


def model_results(name: str, pairs: BenchmarkPairs, *, seed: int) -> PairResults:
    reward_P2 = np.random.default_rng(seed).integers(0, 4, size=(pairs.num_pairs, 2)) / 4
    credit_P = credit_of(reward_P2[:, 0] - reward_P2[:, 1], ties="loss")
    return PairResults(name=name, ties="loss", credit_P=credit_P, reward_P2=reward_P2)


def judge_results(name: str, pairs: BenchmarkPairs) -> PairResults:
    return PairResults(name=name, ties="half", credit_P=np.full(pairs.num_pairs, 0.5))


def test_what_is_written_comes_back_in_order(tmp_path: Path, pairs: BenchmarkPairs) -> None:
    results = [model_results("uniform", pairs, seed=0), judge_results("a judge", pairs)]
    path = write_pair_results(tmp_path / "results.parquet", results, pairs=pairs)
    uniform, judge = read_pair_results(path)
    assert (uniform.results.name, uniform.results.ties) == ("uniform", "loss")
    assert (judge.results.name, judge.results.ties) == ("a judge", "half")
    np.testing.assert_array_equal(uniform.results.credit_P, results[0].credit_P)
    assert uniform.results.reward_P2 is not None
    np.testing.assert_array_equal(uniform.results.reward_P2, results[0].reward_P2)
    assert judge.results.reward_P2 is None
    assert uniform.subset_P == pairs.subset_P
    assert uniform.row_id_P == pairs.row_id_P
    assert uniform.pair_id_P == tuple(pair.pair_id for pair in pairs.pairs)
    assert (uniform.benchmark, uniform.data_digest) == ("generic", pairs.digest)
    assert (uniform.is_partial, uniform.weighting) == (False, "examples")


def test_any_reader_of_parquet_finds_a_row_per_pair(tmp_path: Path, pairs: BenchmarkPairs) -> None:
    results = [model_results("uniform", pairs, seed=0), judge_results("a judge", pairs)]
    path = write_pair_results(tmp_path / "results.parquet", results, pairs=pairs)
    table = pq.read_table(path)
    assert table.schema.equals(PAIR_RESULTS)
    assert table.num_rows == 2 * 12
    first = table.slice(0, 1).to_pylist()[0]
    assert results[0].reward_P2 is not None
    assert first == {
        "benchmark": "generic",
        "data_digest": pairs.digest,
        "row": "uniform",
        "subset": "refuse",
        "pair_id": pairs.pairs[0].pair_id,
        "row_id": "0",
        "reward_chosen": results[0].reward_P2[0, 0],
        "reward_rejected": results[0].reward_P2[0, 1],
        "credit": results[0].credit_P[0],
    }
    assert table.slice(12)["reward_chosen"].null_count == 12


def test_choices_are_compared_as_choices_from_the_file_too(tmp_path: Path) -> None:
    benchmark = BEST_OF_4.model_copy(update={"subsets": ()})
    pairs = pairs_of(tmp_path, [best_of_row(str(n)) for n in range(5)], benchmark=benchmark)
    results = [model_results(name, pairs, seed=seed) for seed, name in enumerate(("one", "two"))]
    path = write_pair_results(tmp_path / "results.parquet", results, pairs=pairs)
    comparison = compare_stored(*read_pair_results(path))
    assert comparison.num_pairs == 5
    units = units_of_pairs(pairs)
    found = [unit_credits(one.credit_P, units=units) for one in results]
    assert comparison == compare_credits(*found, subset_P=units.subset_U)


def test_files_of_the_same_data_in_another_order_are_compared_pair_by_pair(tmp_path: Path) -> None:
    stored = []
    for name, rows in (("forward", ROWS), ("backward", ROWS[::-1])):
        pairs = pairs_of(tmp_path, rows)
        # Right on the even ids: the same pairs whatever their order.
        credit_P = np.array([float(int(row_id) % 2 == 0) for row_id in pairs.row_id_P])
        results = [PairResults(name=name, ties="loss", credit_P=credit_P)]
        path = write_pair_results(tmp_path / f"{name}.parquet", results, pairs=pairs)
        stored.extend(read_pair_results(path))
    comparison = compare_stored(*stored)
    assert (comparison.num_only_first, comparison.num_only_second) == (0, 0)


def test_results_on_other_data_are_not_compared(tmp_path: Path) -> None:
    stored = []
    for name, rows in (("whole", ROWS), ("part", ROWS[:-1])):
        pairs = pairs_of(tmp_path, rows)
        path = tmp_path / f"{name}.parquet"
        write_pair_results(path, [judge_results(name, pairs)], pairs=pairs)
        stored.extend(read_pair_results(path))
    with pytest.raises(InputError, match=r"whole: results on generic .*only results on the same"):
        compare_stored(*stored)


def test_a_partial_benchmark_is_marked_in_its_file(tmp_path: Path) -> None:
    data = written(tmp_path / "rows.jsonl", ROWS)
    pairs = read_benchmark_pairs(small(), data=data, allow_partial=True)
    path = tmp_path / "results.parquet"
    write_pair_results(path, [judge_results("a judge", pairs)], pairs=pairs)
    (judge,) = read_pair_results(path)
    assert judge.is_partial


def test_a_write_that_fails_leaves_what_was_there(
    tmp_path: Path, pairs: BenchmarkPairs, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    path = write_pair_results(folder / "r.parquet", [judge_results("old", pairs)], pairs=pairs)
    before = path.read_bytes()
    whole = pq.ParquetWriter.write_table

    def full_disk(writer: pq.ParquetWriter, table: pa.Table, *rest: Any) -> None:
        if table["row"][0].as_py() == "second":
            raise OSError(28, "No space left on device")
        whole(writer, table, *rest)

    monkeypatch.setattr(pq.ParquetWriter, "write_table", full_disk)
    both = [judge_results("first", pairs), judge_results("second", pairs)]
    with pytest.raises(OSError, match="No space left"):
        write_pair_results(path, both, pairs=pairs)
    assert path.read_bytes() == before
    assert [entry.name for entry in folder.iterdir()] == ["r.parquet"]


def test_lines_that_were_taken_out_are_noticed(tmp_path: Path, pairs: BenchmarkPairs) -> None:
    results = [judge_results("one", pairs), judge_results("two", pairs)]
    path = write_pair_results(tmp_path / "results.parquet", results, pairs=pairs)
    table = pq.read_table(path)
    shuffled = table.take(pa.array([1, 0, *range(2, 24)]))
    for changed in (table.slice(0, 22), table.slice(2), table.slice(0, 12), shuffled):
        pq.write_table(changed, path)
        with pytest.raises(InputError, match=r"results.parquet: damaged.*run `encore benchmark`"):
            read_pair_results(path)


def test_another_kind_of_file_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "other.parquet"
    pq.write_table(pa.table({"x": [1]}), other)
    text = tmp_path / "text.parquet"
    text.write_text("no Parquet")
    for path in (other, text, tmp_path / "missing.parquet"):
        with pytest.raises(InputError, match=rf"{path.name}: no results of a benchmark"):
            read_pair_results(path)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"name": "uniform"}, "'uniform' are there twice"),
        ({"credit_P": np.ones(3)}, r"credits of shape \(3,\) .* for 12 pairs"),
        ({"reward_P2": np.ones((12, 3))}, r"rewards of shape \(12, 3\)"),
    ],
)
def test_results_that_do_not_fit_are_refused(
    tmp_path: Path, pairs: BenchmarkPairs, changed: dict[str, Any], message: str
) -> None:
    second = {"name": "other", "ties": "loss", "credit_P": np.ones(12), **changed}
    results = [model_results("uniform", pairs, seed=0), PairResults(**second)]
    with pytest.raises(InputError, match=message):
        write_pair_results(tmp_path / "results.parquet", results, pairs=pairs)


def test_no_results_are_no_file(tmp_path: Path, pairs: BenchmarkPairs) -> None:
    with pytest.raises(InputError, match="no results to write"):
        write_pair_results(tmp_path / "results.parquet", [], pairs=pairs)


def test_results_of_two_weightings_are_not_compared(tmp_path: Path, pairs: BenchmarkPairs) -> None:
    stored = []
    for weighting in ("examples", "subsets"):
        benchmark = pairs.benchmark.model_copy(update={"weighting": weighting})
        path = tmp_path / f"{weighting}.parquet"
        weighted = replace(pairs, benchmark=benchmark)
        write_pair_results(path, [model_results(weighting, pairs, seed=0)], pairs=weighted)
        stored.extend(read_pair_results(path))
    with pytest.raises(InputError, match=r"count all examples of .* alike, not all subsets"):
        compare_stored(*stored)


def test_what_a_row_is_comes_back(tmp_path: Path, pairs: BenchmarkPairs) -> None:
    about = RowAbout(
        kind="scheme",
        params={"k": 5, "tau": 0.5, "rule": "be-kind"},
        draws=DrawSpread(num_draws=3, mean=0.5, low=0.4, high=0.6),
        uses_labels=True,
        synthetic=("one",),
        notes=("two",),
    )
    results = [replace(judge_results("a", pairs), about=about), judge_results("b", pairs)]
    path = write_pair_results(tmp_path / "results.parquet", results, pairs=pairs)
    assert [one.results.about for one in read_pair_results(path)] == [about, None]
