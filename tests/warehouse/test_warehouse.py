"""Ratings are read from files, folders and objects of every kind; invalid ones are refused."""

from __future__ import annotations

import gzip
import math
import os
import re
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from encore.analysis.analyze import Analysis, analyze
from encore.core.errors import InputError
from encore.warehouse import open_ratings, open_warehouse, read_pair_ratings
from tests.golden.command_line import run_process
from tests.worlds.ratings import random_table, ratings_table, table_of
from tests.worlds.studies import numbered_pairs, study_of

ROOT = Path(__file__).resolve().parents[2]
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


# --- reading --------------------------------------------------------------------------------------


RULES = ("be-kind", "avoid-harm", "privacy")
# 12 pairs under three rules, two ratings of them null: as a table, a data frame, and a data frame
# with a row a response and a column a rule.
RATING_2PR = np.random.default_rng(0).integers(0, 11, size=(2, 12, 3)) / 10
RATING_2PR[:, 0, 0] = np.nan
RATED = table_of(*RATING_2PR, rule_ids=RULES)
FRAME = RATED.to_pandas()
WIDE = FRAME.pivot(index=["pair_id", "source", "response"], columns="rule_id", values="rating")
WIDE = WIDE[[*RULES]].reset_index()


class LazyFrame:
    """Stand-in for a lazy data frame of Polars: it collects to what has Arrow's protocol alone."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def collect(self) -> Any:
        return type("DataFrame", (), {"__arrow_c_stream__": self._table.__arrow_c_stream__})()


class Dataset:
    """Stand-in for a data set of Hugging Face, which has no protocol of Arrow's."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def with_format(self, kind: str) -> pa.Table:
        assert kind == "arrow"
        return self

    def __getitem__(self, rows: slice) -> pa.Table:
        return self._table[rows.start : rows.stop]


def csv_file(path: Path, frame: pd.DataFrame, **options: Any) -> str:
    frame.to_csv(path, **{"index": False, **options})
    return str(path)


KINDS: dict[str, Any] = {
    "Parquet": lambda folder: str(write(RATED, folder / "r.parquet")),
    "folder": lambda folder: write(RATED, folder / "r.parquet").parent,
    "reader": lambda _: RATED.to_reader(),
    "pandas": lambda _: FRAME.assign(ratings="a column of this name"),
    "pandas with the pairs as index": lambda _: FRAME.set_index("pair_id"),
    "lazy": lambda _: LazyFrame(RATED),
    "data set": lambda _: Dataset(RATED),
    "dicts": lambda _: RATED.to_pylist(),
    "columns": lambda _: RATED.to_pydict(),
    "CSV": lambda folder: csv_file(folder / "r.csv", FRAME),
    "CSV with an index": lambda folder: csv_file(folder / "r.csv", FRAME, index=True),
    "CSV in a gzip": lambda folder: csv_file(folder / "r.csv.gz", FRAME),
    "CSV of a German spreadsheet": lambda folder: csv_file(
        folder / "r.csv", FRAME.iloc[:, ::-1], sep=";", decimal=",", encoding="utf-8-sig"
    ),
    "wide": lambda _: WIDE,
    "wide with an index": lambda _: WIDE.set_index(["pair_id", "response"]),
    "wide without source": lambda _: WIDE.drop(columns="source"),
    "wide CSV with an index": lambda folder: csv_file(folder / "w.csv", WIDE, index=True),
    "wide Parquet": lambda folder: write(pa.table(WIDE), folder / "w.parquet"),
}


@pytest.mark.services
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_input_gives_the_same_analysis(tmp_path, kind):
    expected, analysis = analyze(RATED), analyze(KINDS[kind](tmp_path))
    # A rule a column has the columns' order; without it rules are sorted.
    order = RULES if kind.startswith("wide") else tuple(sorted(RULES))
    assert tuple(rule.rule_id for rule in analysis.rules) == order
    assert {rule.rule_id: rule for rule in analysis.rules} == {r.rule_id: r for r in expected.rules}
    assert [rule.num_unparsed for rule in expected.rules] == [0, 2, 0]
    if not kind.startswith("wide"):
        assert analysis == expected


@pytest.mark.services
def test_ratings_of_any_number_type_and_integer_pair_ids_are_read(tmp_path, expected):
    integers = pa.array([1, 0] * 6)
    binary = analyze(with_column(TABLE, "rating", integers.cast(pa.float64())))
    kinds = (pa.float32(), pa.float16(), pa.int8(), pa.uint64())
    columns = [pa.array(integers.to_pylist(), kind) for kind in kinds]
    columns.append(pa.array([Decimal(1), Decimal(0)] * 6, pa.decimal128(3, 2)))
    for column in (*columns, integers.cast(pa.float64()).dictionary_encode()):
        table = with_column(TABLE, "rating", column)
        assert analyze(table) == binary
        assert analyze(write(table, tmp_path / "r.parquet")) == binary
    numbers = pa.array([int(pair_id[1:]) for pair_id in TABLE["pair_id"].to_pylist()])
    assert analyze(with_column(TABLE, "pair_id", numbers)) == expected


def test_integer_ratings_in_one_file_do_not_round_ratings_of_another(tmp_path):
    integers = with_column(TABLE, "rating", pa.array([1, 0] * 6)).slice(6)
    write(integers, tmp_path / "a.parquet")
    write(TABLE.slice(0, 6), tmp_path / "b.parquet")
    assert {rule.rule_id: rule.num_levels for rule in analyze(tmp_path).rules} == {"a": 5, "b": 2}


@pytest.mark.services
def test_a_file_name_with_pattern_characters_names_only_that_file(tmp_path, expected):
    decoy = with_column(TABLE, "rule_id", pa.array(["other"] * 12))
    write(decoy, tmp_path / "r1.parquet")
    write(decoy, tmp_path / "rx.parquet")
    for name in ("r[1].parquet", "r*.parquet", "r?.parquet", "it's.parquet"):
        assert analyze(write(TABLE, tmp_path / name)) == expected
    # Names of folders are no columns.
    write(TABLE, tmp_path / "inner" / "source=other" / "rating=1" / "r.parquet")
    assert analyze(tmp_path / "inner") == expected


def test_pairs_read_in_parts_equal_pairs_read_at_once():
    source = open_ratings(random_table(np.random.default_rng(50), max_rows=3000))
    with open_warehouse(source) as warehouse, open_warehouse(source, part_rows=200) as parts:
        assert len(list(parts.query_parts("rule_ids"))) > 1
        rule_ids = warehouse.rule_ids()[::-1]
        at_once = read_pair_ratings(warehouse, rule_ids=rule_ids)
        in_parts = read_pair_ratings(parts, rule_ids=rule_ids)
    for name in ("source_P", "pair_id_P", "chosen_PR", "rejected_PR"):
        np.testing.assert_array_equal(getattr(at_once, name), getattr(in_parts, name))
    keys = list(zip(at_once.source_P, at_once.pair_id_P, strict=True))
    assert keys == sorted(set(keys))


def test_duckdb_draws_no_progress_bar_on_standard_output(monkeypatch):
    connect = duckdb.connect

    def connect_in_a_notebook(**options: Any) -> duckdb.DuckDBPyConnection:
        return connect(**options).execute("set enable_progress_bar = true")

    monkeypatch.setattr(duckdb, "connect", connect_in_a_notebook)
    query = "select current_setting('enable_progress_bar') as draws_bar"
    with open_warehouse(open_ratings(TABLE)) as warehouse:
        monkeypatch.setattr("encore.warehouse.connection.load_query", lambda _: query)
        assert warehouse.query("rule_ids").to_pylist() == [{"draws_bar": False}]


#: Makes DuckDB take a process without a file for a kernel that has no ipywidgets.
KERNEL = """
import sys, types
IPython = types.ModuleType("IPython")
IPython.get_ipython = lambda: types.SimpleNamespace(config={"IPKernelApp": {}})
sys.modules["IPython"] = IPython
import duckdb
try:
    duckdb.connect().execute("set enable_progress_bar = false")
except duckdb.InvalidInputException:
    print("no bar here")
import encore
print(len(encore.analyze("ratings.csv").rules), encore.sql("study", "from pairs").num_rows)
"""


@pytest.mark.services
def test_ratings_are_analyzed_in_a_jupyter_kernel_without_widgets(tmp_path):
    study_of(numbered_pairs(4), tmp_path / "study")
    FRAME.to_csv(tmp_path / "ratings.csv")
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = run_process(sys.executable, "-c", KERNEL, cwd=tmp_path, env=environ)
    assert run.out.split("\n")[:2] == ["no bar here", "3 4"], run.err


@pytest.mark.services
def test_a_published_data_set_that_is_synthetic_stays_so(tmp_path):
    for name in ("data", "rules"):  # the rules are no ratings
        (tmp_path / name).mkdir()
    pq.write_table(RATED, tmp_path / "data" / "train-00000-of-00001.parquet")
    pq.write_table(pa.table({"rule_id": RULES}), tmp_path / "rules" / "train.parquet")
    for tag, parts in (("preference", ()), ("synthetic", (f"data set {tmp_path.name}",))):
        (tmp_path / "README.md").write_text(f"---\ntags:\n- {tag}\nconfigs:\n---\n")
        assert analyze(tmp_path).ratings.synthetic == parts
    assert repr(analyze(tmp_path)).splitlines()[0].endswith("; synthetic")


# --- several runs or judges -----------------------------------------------------------------------


def two_runs() -> pa.Table:
    """Return the ratings of run abc1 by judge small, and constant ratings of abd2 by large."""
    constant = with_column(TABLE, "rating", pa.array([0.5] * 12))
    rows = pa.concat_tables([TABLE, constant])
    rows = rows.append_column("run_key", pa.array(["abc1"] * 12 + ["abd2"] * 12))
    return rows.append_column("judge", pa.array(["small"] * 12 + ["large"] * 12))


@pytest.mark.services
def test_one_of_several_runs_or_judges_must_be_chosen(tmp_path):
    for dropped, chosen, problem in (
        ("judge", {}, r"--run: abc1, abd2"),
        ("judge", {"run": "ab"}, r"2 values of run_key"),
        ("judge", {"run": "x"}, r"no values of run_key match.*abc1, abd2"),
        ("run_key", {}, r"--judge-name: large, small"),
        ("run_key", {"judge": "sm"}, "judge match"),
        ("run_key", {"run": "abc"}, "no values of run_key"),
        ("judge", {"run": "abc", "judge": "small"}, "no values of judge"),
    ):
        table = two_runs().drop_columns([dropped])
        for ratings in (table, write(table, tmp_path / "r.parquet")):
            with pytest.raises(InputError, match=problem):
                analyze(open_ratings(ratings, **chosen))


def test_a_prefix_of_the_run_key_or_a_judge_selects_the_rows(expected):
    assert analyze(open_ratings(two_runs(), run="abc")) == expected
    assert analyze(open_ratings(two_runs(), run="abd")).rules[0].num_levels == 1
    assert analyze(open_ratings(two_runs().drop_columns(["run_key"]), judge="small")) == expected


# --- refusals -------------------------------------------------------------------------------------


def refusal(ratings: Any) -> str:
    with pytest.raises(InputError) as caught:
        analyze(ratings)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_what_cannot_be_read_is_named_with_column_row_and_value(tmp_path):
    mixed = FRAME.astype({"rating": object})
    mixed.loc[4, "rating"] = "n/a"
    high = gzip.compress(FRAME.replace({0.1: "high"}).to_csv(index=False).encode())
    first_high = int(np.flatnonzero(FRAME["rating"] == 0.1)[0]) + 2  # row 1 is the header
    (tmp_path / "high.csv.gz").write_bytes(high)
    (tmp_path / "cells.csv").write_text("pair_id,source\na,b,c\n")
    for ratings, problem in (
        (
            FRAME.rename(columns={"source": "dataset"}),
            "column source is missing.*dataset to source",
        ),
        (mixed, "column rating, row 5: 'n/a' is of another type than "),
        (WIDE.assign(note="Hello"), "column note is .*string; expected numbers"),
        (tmp_path / "high.csv.gz", f"column rating, Row #{first_high}: .*'high'"),
        (tmp_path / "cells.csv", "Row #2: Expected 2 columns, got 3"),
        (tmp_path / "none.csv", "none.csv: no such file"),
        ({"rating": 3}, "column rating, "),
        (
            type("DatasetDict", (dict,), {"with_format": 1})(train=1),
            r"DatasetDict of splits \(train",
        ),
        ([1, 2], "cannot read a builtins.list as a table"),
        (42, "int"),
        (TABLE.slice(0, 0), "0 rows"),
        (tmp_path, "no Parquet file"),
    ):
        assert re.search(problem, refusal(ratings))
    path = tmp_path / "broken" / "bad.parquet"
    valid = write(TABLE, path.with_name("whole.parquet")).read_bytes()
    ends_only = valid[:4] + b"\xff" * (len(valid) - 8) + valid[-4:]
    for content in (b"", b"pair_id,source", valid[: len(valid) // 2], ends_only):
        path.write_bytes(content)
        assert "cannot be read as a Parquet file" in refusal(path)
    assert str(path) in refusal(path.parent)  # of several files, the broken one is named


WRONG_COLUMNS = [
    (
        TABLE.rename_columns(["pair", *TABLE.column_names[1:]]),
        "pair_id is missing.*one has pair, source",
    ),
    (TABLE.append_column("Rating", TABLE["rating"]), "more than once"),
    *(
        (with_column(TABLE, name, values), f"column {name} is {kind}.*; expected")
        for name, kind, values in (
            ("rating", "string", pa.array(["0.5"] * 12)),
            ("rating", "bool", pa.array([True] * 12)),
            ("rating", "list", pa.array([[0.5]] * 12)),
            ("response", "int64", pa.array([1] * 12)),
            ("pair_id", "double", pa.array([0.5] * 12)),
            ("rule_id", "binary", pa.array([b"r"] * 12)),
        )
    ),
]


@pytest.mark.parametrize(
    ("table", "problem"), WRONG_COLUMNS, ids=[problem for _, problem in WRONG_COLUMNS]
)
def test_a_wrong_column_is_named_with_what_was_expected(tmp_path, table, problem):
    path = write(table, tmp_path / "r.parquet")
    assert re.search(problem, refusal(table))
    assert re.search(f"{path}.*{problem}", refusal(path))


# A file's statistics do not count NaN: a row group of 0.1 to 0.7 and one NaN says "0.1 to 0.7".
WRONG_ROWS = [
    *(
        (("pair-7", "hh", "chosen", "rule-x", x), rf"not in \[0, 1\].*pair-7.*rule-x.*{x!r}")
        for x in (1.5, -0.1, 1.0000001, math.inf, -math.inf, math.nan, 80.0)
    ),
    ((None, "hh", "chosen", "r", 0.5), "pair_id is null"),
    (("p", None, "chosen", "r", 0.5), "source is null"),
    (("p", "hh", "chosen", None, 0.5), "rule_id is null"),
    (("p", "hh", None, "r", 0.5), "response is null"),
    *(
        (("p", "hh", x, "r", 0.5), 'response is neither.*call every response "chosen"')
        for x in ("", "A", "Chosen")
    ),
]


@pytest.mark.parametrize("use_dictionary", [True, False])
@pytest.mark.parametrize(("row", "problem"), WRONG_ROWS)
def test_a_row_that_breaks_the_contract_is_named_with_its_file(
    tmp_path, row, problem, use_dictionary
):
    table = ratings_table([*ROWS, row])
    write(TABLE, tmp_path / "a.parquet")
    pq.write_table(table, tmp_path / "b.parquet", use_dictionary=use_dictionary)
    assert re.search(problem, refusal(table))
    assert re.search(rf"b\.parquet: .*{problem}", refusal(tmp_path))


def test_equal_pair_ids_of_two_sources_are_two_pairs():
    table = pa.concat_tables([TABLE, with_column(TABLE, "source", pa.array(["pku"] * 12))])
    assert [(rule.num_pairs, rule.num_pairs_total) for rule in analyze(table).rules] == [(6, 6)] * 2
