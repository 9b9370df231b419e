"""Ratings in every kind of file and object give the same analysis; what is wrong is named."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from encore.analysis.analyze import analyze
from encore.core.errors import InputError
from tests.worlds.ratings import table_of

_RULES = ("be-kind", "avoid-harm", "privacy")


def _table() -> pa.Table:
    """Return the ratings of 12 pairs under three rules, two of them null."""
    rating_2PR = np.random.default_rng(0).integers(0, 11, size=(2, 12, 3)) / 10
    rating_2PR[:, 0, 0] = np.nan
    return table_of(*rating_2PR, rule_ids=_RULES)


def _wide() -> pd.DataFrame:
    """Return the same ratings with a row a response and a column a rule."""
    keys = ["pair_id", "source", "response"]
    frame = _table().to_pandas().pivot(index=keys, columns="rule_id", values="rating")
    return frame[[*_RULES]].reset_index()


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


def _written(path: Path, frame: pd.DataFrame, **options: Any) -> str:
    frame.to_csv(path, **{"index": False, **options})
    return str(path)


_KINDS: dict[str, Any] = {
    "pandas": lambda _: _table().to_pandas().assign(ratings="a column of this name"),
    "pandas with the pairs as index": lambda _: _table().to_pandas().set_index("pair_id"),
    "lazy": lambda _: LazyFrame(_table()),
    "data set": lambda _: Dataset(_table()),
    "dicts": lambda _: _table().to_pylist(),
    "columns": lambda _: _table().to_pydict(),
    "CSV": lambda d: _written(d / "r.csv", _table().to_pandas()),
    "CSV with an index": lambda d: _written(d / "r.csv", _table().to_pandas(), index=True),
    "CSV in a gzip": lambda d: _written(d / "r.csv.gz", _table().to_pandas()),
    "CSV of a German spreadsheet": lambda d: _written(
        d / "r.csv", _table().to_pandas().iloc[:, ::-1], sep=";", decimal=",", encoding="utf-8-sig"
    ),
    "wide": lambda _: _wide(),
    "wide with an index": lambda _: _wide().set_index(["pair_id", "response"]),
    "wide without source": lambda _: _wide().drop(columns="source"),
    "wide CSV with an index": lambda d: _written(d / "w.csv", _wide(), index=True),
    "wide Parquet": lambda d: pq.write_table(pa.table(_wide()), d / "w.parquet") or d / "w.parquet",
}


@pytest.mark.parametrize("kind", _KINDS)
def test_every_kind_of_input_gives_the_same_analysis(tmp_path, kind):
    expected, analysis = analyze(_table()), analyze(_KINDS[kind](tmp_path))
    # A rule a column has the columns' order; without it rules are sorted.
    order = _RULES if kind.startswith("wide") else tuple(sorted(_RULES))
    assert tuple(rule.rule_id for rule in analysis.rules) == order
    assert {rule.rule_id: rule for rule in analysis.rules} == {r.rule_id: r for r in expected.rules}
    assert [rule.num_unparsed for rule in expected.rules] == [0, 2, 0]


def test_what_cannot_be_read_is_named_with_column_row_and_value(tmp_path):
    frame = _table().to_pandas()
    mixed = frame.astype({"rating": object})
    mixed.loc[4, "rating"] = "n/a"
    high = gzip.compress(frame.replace({0.1: "high"}).to_csv(index=False).encode())
    first_high = int(np.flatnonzero(frame["rating"] == 0.1)[0]) + 2  # row 1 is the header
    (tmp_path / "high.csv.gz").write_bytes(high)
    (tmp_path / "cells.csv").write_text("pair_id,source\na,b,c\n")
    for ratings, problem in (
        (frame.drop(columns="source"), "column source is missing"),
        (mixed, "column rating, row 5: 'n/a' is of another type than "),
        (_wide().assign(prompt="Hello"), "column prompt is .*string; expected numbers"),
        (tmp_path / "high.csv.gz", f"column rating, Row #{first_high}: .*'high'"),
        (tmp_path / "cells.csv", "Row #2: Expected 2 columns, got 3"),
        (tmp_path / "none.csv", "none.csv: no such file"),
        ({"rating": 3}, "column rating, "),
        (
            type("DatasetDict", (dict,), {"with_format": 1})(train=1),
            r"DatasetDict of splits \(train",
        ),
        ([1, 2], "cannot read a builtins.list as a table"),
    ):
        with pytest.raises(InputError, match=problem):
            analyze(ratings)


def test_a_published_data_set_that_is_synthetic_stays_so(tmp_path):
    for name in ("data", "rules"):  # the rules are no ratings
        (tmp_path / name).mkdir()
    pq.write_table(_table(), tmp_path / "data" / "train-00000-of-00001.parquet")
    pq.write_table(pa.table({"rule_id": _RULES}), tmp_path / "rules" / "train.parquet")
    for tag, parts in (("preference", ()), ("synthetic", (f"data set {tmp_path.name}",))):
        (tmp_path / "README.md").write_text(f"---\ntags:\n- {tag}\nconfigs:\n---\n")
        assert analyze(tmp_path).ratings.synthetic == parts
    assert repr(analyze(tmp_path)).splitlines()[0].endswith("; synthetic")
