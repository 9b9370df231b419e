"""What counts as ratings: files, folders, tables, types; and what is refused, with its line."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from encore.analysis.analyze import Analysis, analyze, read_statistics
from encore.analysis.statistics import rating_statistics
from encore.errors import InputError
from encore.warehouse import Warehouse, open_ratings
from tests.ratings_files import random_table, ratings_table

# Two rules over three pairs; rule a: win, tie, loss.
ROWS = [
    (f"p{i}", "hh", response, rule, x)
    for rule, ratings in (("a", ((0.9, 0.1), (0.5, 0.5), (0.0, 1.0))), ("b", ((1, 0),) * 3))
    for i, pair in enumerate(ratings)
    for response, x in zip(("chosen", "rejected"), pair, strict=True)
]
TABLE = ratings_table(ROWS)


def with_column(table: pa.Table, name: str, values: Any) -> pa.Table:
    return table.set_column(table.schema.get_field_index(name), name, values)


def write(table: pa.Table, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)
    return path


@pytest.fixture(scope="module")
def expected() -> Analysis:
    return analyze(TABLE)


# --- what is read ---------------------------------------------------------------------------------


def test_a_file_a_folder_a_table_and_a_data_frame_say_the_same(
    tmp_path: Path, expected: Analysis
) -> None:
    path = write(TABLE, tmp_path / "ratings.parquet")
    for ratings in (path, str(path), tmp_path, TABLE, TABLE.to_pandas(), TABLE.to_reader()):
        assert analyze(ratings) == expected


def test_any_other_object_is_refused() -> None:
    with pytest.raises(InputError, match="int"):
        analyze(42)


@pytest.mark.parametrize(
    "rating",
    [
        pa.float32(),
        pa.float16(),
        pa.int8(),
        pa.uint64(),
        pa.decimal128(3, 2),
        pa.dictionary(pa.int8(), pa.float64()),
    ],
    ids=str,
)
def test_ratings_may_be_any_number(tmp_path: Path, rating: pa.DataType) -> None:
    binary = with_column(TABLE, "rating", pa.array([1.0, 0.0] * 6))
    values: list[Any] = [Decimal(1), Decimal(0)] * 6 if pa.types.is_decimal(rating) else [1, 0] * 6
    if pa.types.is_dictionary(rating):
        column = pa.array([1.0, 0.0] * 6).dictionary_encode()
    else:
        column = pa.array(values, rating)
    table = with_column(TABLE, "rating", column)
    assert analyze(table) == analyze(binary)
    assert analyze(write(table, tmp_path / "r.parquet")) == analyze(binary)


@pytest.mark.parametrize("text", [pa.large_string(), pa.string_view(), "dictionary"], ids=str)
def test_ids_may_be_any_text(tmp_path: Path, text: Any, expected: Analysis) -> None:
    table = TABLE
    for name in ("pair_id", "source", "response", "rule_id"):
        column = table[name]
        plain = column.dictionary_encode() if text == "dictionary" else column.cast(text)
        table = with_column(table, name, plain)
    assert analyze(table) == expected
    assert analyze(write(table, tmp_path / "r.parquet")) == expected


def test_pair_ids_may_be_whole_numbers(expected: Analysis) -> None:
    numbers = pa.array([int(pair_id[1:]) for pair_id in TABLE["pair_id"].to_pylist()])
    assert analyze(with_column(TABLE, "pair_id", numbers)) == expected


def test_whole_number_ratings_of_a_first_file_do_not_round_those_of_the_next(
    tmp_path: Path,
) -> None:
    whole = with_column(TABLE, "rating", pa.array([1, 0] * 6)).slice(6)
    write(whole, tmp_path / "a.parquet")
    write(TABLE.slice(0, 6), tmp_path / "b.parquet")
    assert {rule.rule_id: rule.num_levels for rule in analyze(tmp_path).rules} == {"a": 5, "b": 2}


def test_columns_of_other_files_do_no_harm(tmp_path: Path, expected: Analysis) -> None:
    write(TABLE.slice(0, 5), tmp_path / "a.parquet")
    extra = TABLE.slice(5).append_column("note", pa.array([["x"]] * 7))
    write(extra.select(extra.column_names[::-1]), tmp_path / "b.parquet")
    assert analyze(tmp_path) == expected


def test_hidden_temporary_and_other_files_are_never_read(
    tmp_path: Path, expected: Analysis
) -> None:
    write(TABLE, tmp_path / "sub" / "ratings.parquet")
    other = with_column(TABLE, "rule_id", pa.array(["other"] * 12))
    for name in (
        ".a.parquet",
        "_tmp.parquet",
        ".hidden/b.parquet",
        "_x/b.parquet",
        "c.parquet.tmp",
    ):
        write(other, tmp_path / name)
    (tmp_path / "d.parquet").mkdir()
    assert analyze(tmp_path) == expected


def test_a_name_that_looks_like_a_pattern_means_that_file_only(
    tmp_path: Path, expected: Analysis
) -> None:
    other = with_column(TABLE, "rule_id", pa.array(["other"] * 12))
    write(other, tmp_path / "r1.parquet")
    write(other, tmp_path / "rx.parquet")
    for name in ("r[1].parquet", "r*.parquet", "r?.parquet", "it's.parquet"):
        assert analyze(write(TABLE, tmp_path / name)) == expected


def test_folder_names_are_no_columns(tmp_path: Path, expected: Analysis) -> None:
    write(TABLE, tmp_path / "source=other" / "rating=1" / "r.parquet")
    assert analyze(tmp_path) == expected


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("straddle", [False, True])
def test_cutting_rows_into_parts_changes_no_statistic(
    tmp_path: Path, seed: int, straddle: bool
) -> None:
    table = random_table(np.random.default_rng(50 + seed), max_rows=3000)
    if not straddle:
        table = table.sort_by("pair_id")
    keys = table["pair_id"].to_pylist()
    cuts = [i for i in range(1, len(keys)) if straddle or keys[i] != keys[i - 1]][::97]
    for i, (start, stop) in enumerate(zip([0, *cuts], [*cuts, len(keys)], strict=True)):
        write(table.slice(start, stop - start), tmp_path / f"{i}.parquet")
    for ratings in (tmp_path, table):
        source = open_ratings(ratings)
        with Warehouse(source) as whole, Warehouse(source, part_rows=200) as parts:
            assert len(list(parts.query_parts("rule_ids"))) > 1
            whole_statistics, part_statistics = rating_statistics(whole), rating_statistics(parts)
        for one, other in zip(whole_statistics, part_statistics, strict=True):
            assert one.rules == other.rules
            assert one.outcomes.num_pairs == other.outcomes.num_pairs
            np.testing.assert_array_equal(one.outcomes.sign_gram_RR, other.outcomes.sign_gram_RR)


def test_threads_and_memory_are_settings(
    monkeypatch: pytest.MonkeyPatch, expected: Analysis
) -> None:
    monkeypatch.setenv("ENCORE_DUCKDB_THREADS", "1")
    monkeypatch.setenv("ENCORE_DUCKDB_MEMORY_LIMIT", "200MB")
    assert analyze(TABLE) == expected


# --- several runs or judges -----------------------------------------------------------------------


def two_runs() -> pa.Table:
    first = TABLE.append_column("run_key", pa.array(["abc1"] * 12))
    second = with_column(TABLE, "rating", pa.array([0.5] * 12))
    second = second.append_column("run_key", pa.array(["abd2"] * 12))
    both = pa.concat_tables([first, second])
    return both.append_column("judge", pa.array(["small"] * 12 + ["large"] * 12))


def test_several_runs_are_an_error_that_lists_them(tmp_path: Path) -> None:
    for ratings in (two_runs(), write(two_runs(), tmp_path / "r.parquet")):
        with pytest.raises(InputError, match=r"--run: abc1, abd2"):
            analyze(ratings)
    with pytest.raises(InputError, match=r"2 values of run_key"):
        analyze(open_ratings(two_runs(), run="ab"))
    with pytest.raises(InputError, match=r"no values of run_key match.*abc1, abd2"):
        analyze(open_ratings(two_runs(), run="x"))


def test_a_prefix_of_the_key_chooses_a_run(expected: Analysis) -> None:
    assert analyze(open_ratings(two_runs(), run="abc")) == expected
    assert analyze(open_ratings(two_runs(), run="abd")).rules[0].num_levels == 1


def test_several_judges_are_an_error_unless_one_is_chosen(expected: Analysis) -> None:
    judged = two_runs().drop_columns(["run_key"])
    with pytest.raises(InputError, match=r"--judge: large, small"):
        analyze(judged)
    assert analyze(open_ratings(judged, judge="small")) == expected
    with pytest.raises(InputError, match="judge match"):
        analyze(open_ratings(judged, judge="sm"))


def test_rows_without_a_run_key_are_a_run_of_their_own(tmp_path: Path) -> None:
    write(two_runs().slice(0, 12), tmp_path / "a.parquet")
    write(with_column(TABLE, "source", pa.array(["x"] * 12)), tmp_path / "b.parquet")
    with pytest.raises(InputError, match="abc1, None"):
        analyze(tmp_path)


def test_a_run_or_judge_cannot_be_chosen_where_there_is_no_such_column() -> None:
    with pytest.raises(InputError, match="no column run_key"):
        analyze(open_ratings(TABLE, run="abc"))
    with pytest.raises(InputError, match="no column judge"):
        analyze(open_ratings(TABLE, judge="small"))


# --- what is refused ------------------------------------------------------------------------------


def refusal(ratings: Any) -> str:
    with pytest.raises(InputError) as caught:
        analyze(ratings)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_a_folder_without_parquet(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x")
    assert "no Parquet file" in refusal(tmp_path)


def test_files_that_are_no_parquet_or_broken(tmp_path: Path) -> None:
    path = tmp_path / "bad.parquet"
    path.touch()
    assert "cannot be read as a Parquet file" in refusal(path)
    path.write_text("pair_id,source")
    assert "cannot be read as a Parquet file" in refusal(path)
    whole = write(TABLE, tmp_path / "whole.parquet").read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert "cannot be read as a Parquet file" in refusal(path)
    path.write_bytes(whole[:4] + b"\xff" * (len(whole) - 8) + whole[-4:])
    assert "cannot be read as a Parquet file" in refusal(path)
    assert str(path) in refusal(tmp_path)  # of several files, the broken one is named


def test_a_missing_column_is_named_with_what_was_found(tmp_path: Path) -> None:
    path = write(
        TABLE.rename_columns(["pair", "source", "response", "rule_id", "rating"]),
        tmp_path / "r.parquet",
    )
    message = refusal(path)
    assert "column pair_id is missing" in message
    assert "this one has pair, source" in message
    assert str(path) in message


def test_names_that_differ_in_case_only() -> None:
    assert "more than once" in refusal(TABLE.append_column("Rating", TABLE["rating"]))


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("rating", pa.array(["0.5"] * 12)),
        ("rating", pa.array([True] * 12)),
        ("rating", pa.array([[0.5]] * 12)),
        ("response", pa.array([1] * 12)),
        ("pair_id", pa.array([0.5] * 12)),
        ("rule_id", pa.array([b"r"] * 12)),
    ],
)
def test_a_wrong_type_is_named(tmp_path: Path, name: str, values: pa.Array) -> None:
    table = with_column(TABLE, name, values)
    for ratings in (table, write(table, tmp_path / "r.parquet")):
        kind = str(values.type).partition("<")[0]  # Parquet names a list's items in its own way
        assert re.search(rf"column {name} is {kind}.*; expected", refusal(ratings))


@pytest.mark.parametrize("value", [1.5, -0.1, math.inf, -math.inf, math.nan, 80.0])
def test_a_rating_outside_the_scale_names_value_rule_pair_and_file(
    tmp_path: Path, value: float
) -> None:
    write(TABLE, tmp_path / "a.parquet")
    bad = ratings_table([("pair-7", "hh", "chosen", "rule-x", value)])
    write(bad, tmp_path / "b.parquet")
    message = refusal(tmp_path)
    for part in (repr(value), "rule-x", "pair-7", "b.parquet", "[0, 1]"):
        assert part in message


@pytest.mark.parametrize("column", ["pair_id", "source", "response", "rule_id"])
def test_a_null_id_is_refused(tmp_path: Path, column: str) -> None:
    values = TABLE[column].to_pylist()
    table = with_column(TABLE, column, pa.array([*values[:-1], None]))
    write(TABLE, tmp_path / "a.parquet")
    write(table, tmp_path / "b.parquet")
    assert f"{column} is null" in refusal(table)
    assert "b.parquet" in refusal(tmp_path)


def test_pair_ids_are_of_their_source() -> None:
    both = pa.concat_tables([TABLE, with_column(TABLE, "source", pa.array(["pku"] * 12))])
    *_, pooled = read_statistics(open_ratings(both))
    assert pooled.outcomes.num_pairs == 6
    assert [rule.num_pairs for rule in pooled.rules] == [6, 6]
