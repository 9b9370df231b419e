"""Every file in `sql/` runs as it stands and says what numpy says."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from encore.query.query_files import query_files
from encore.warehouse.connection import load_query
from tests.ratings_files import random_table, ratings_table
from tests.reference import (
    Row,
    kde_entropy,
    reference_analysis,
    reference_margin_sds,
    reference_signs,
    rows_of,
)

SQL = Path(__file__).resolve().parents[2] / "sql"
FILES = sorted(path.stem for path in SQL.glob("*.sql"))
#: The queries of which the five columns of a ratings table are enough.
QUERIES = [file.name for file in query_files() if file.reads == ("ratings",) and not file.is_macro]

# One source, two rules. Rule a: chosen 0.9 beats 0.1, ties at 0.5, loses 0.1 : 0.9; one null.
SMALL = [
    ("p1", "hh", "chosen", "a", 0.9),
    ("p1", "hh", "rejected", "a", 0.1),
    ("p2", "hh", "chosen", "a", 0.5),
    ("p2", "hh", "rejected", "a", 0.5),
    ("p3", "hh", "chosen", "a", 0.1),
    ("p3", "hh", "rejected", "a", 0.9),
    ("p4", "hh", "chosen", "a", None),
    ("p4", "hh", "rejected", "a", 0.9),
    ("p1", "hh", "chosen", "b", 1.0),
    ("p1", "hh", "rejected", "b", 0.0),
]


def run(name: str, ratings: pa.Table) -> list[dict[str, Any]]:
    with duckdb.connect() as connection:
        connection.register("ratings", ratings)
        return connection.sql(load_query(name)).to_arrow_table().to_pylist()


@pytest.fixture(params=range(3), scope="module")
def random_rows(request: pytest.FixtureRequest) -> tuple[pa.Table, list[Row]]:
    table = random_table(np.random.default_rng(1000 + request.param), max_rows=3000)
    return table, rows_of(table)


@pytest.mark.parametrize("name", FILES)
def test_the_first_comment_names_the_grain(name: str) -> None:
    comment = re.match(r"(--.*\n)+", load_query(name))
    assert comment is not None
    assert "Grain: " in comment[0].replace("\n-- ", " ")


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_one_statement_in_lower_case(name: str) -> None:
    text = re.sub(r"--.*", "", load_query(name))
    assert ";" not in text
    assert re.sub(r"'[^']*'", "", text) == re.sub(r"'[^']*'", "", text).lower()


@pytest.mark.parametrize("name", QUERIES)
def test_a_query_runs_as_it_stands_on_a_view_of_five_columns(name: str) -> None:
    with duckdb.connect() as connection:
        connection.register("table_of_ratings", ratings_table(SMALL))
        connection.execute("create view ratings as select * from table_of_ratings")
        connection.sql(load_query(name)).to_arrow_table()


@pytest.mark.parametrize("name", QUERIES)
def test_a_query_of_no_rows_is_empty(name: str) -> None:
    assert run(name, ratings_table([])) == []


def test_an_unknown_query_is_named() -> None:
    with pytest.raises(FileNotFoundError, match=r"no such|'nonsense'"):
        load_query("nonsense")


def test_entropy_of_a_small_table_is_what_hand_gives() -> None:
    rows = {(r["source"], r["rule_id"]): r for r in run("rule_statistics", ratings_table(SMALL))}
    a = rows["hh", "a"]
    # Rule a: 7 ratings, levels 0.1 (2x), 0.5 (2x), 0.9 (3x): H = 2*(2/7)ln(7/2) + (3/7)ln(7/3).
    expected = 4 / 7 * math.log(7 / 2) + 3 / 7 * math.log(7 / 3)
    assert a["entropy_nats"] == pytest.approx(expected, abs=1e-15)
    assert (a["num_ratings"], a["num_unparsed"], a["num_levels"]) == (7, 1, 3)
    # One source only: pooled rows say the same.
    assert rows[None, "a"]["entropy_nats"] == a["entropy_nats"]
    # Rule b: two levels once each: ln 2.
    assert rows["hh", "b"]["entropy_nats"] == pytest.approx(math.log(2), abs=1e-15)


def test_a_rule_of_nulls_has_no_entropy_and_a_constant_one_has_exactly_none() -> None:
    rows = [(f"p{i}", "s", "chosen", rule, x) for i in range(3) for rule, x in [("k", 0.3)]]
    rows += [("p1", "s", "chosen", "n", None)]
    found = {r["rule_id"]: r for r in run("rule_statistics", ratings_table(rows)) if r["source"]}
    assert found["n"]["entropy_nats"] is None
    assert (found["n"]["num_ratings"], found["n"]["num_unparsed"]) == (0, 1)
    assert found["k"]["entropy_nats"] == 0.0


def test_minus_zero_is_zero() -> None:
    rows = [("p1", "s", "chosen", "r", 0.0), ("p1", "s", "rejected", "r", -0.0)]
    assert run("rule_statistics", ratings_table(rows))[0]["num_levels"] == 1
    assert run("pair_patterns", ratings_table(rows))[0]["ties"] == "1"


def test_rule_statistics_agree_with_numpy(random_rows: tuple[pa.Table, list[Row]]) -> None:
    table, rows = random_rows
    expected = reference_analysis(rows, by_source=True)["rules"]
    found = run("rule_statistics", table)
    assert len(found) == len(expected)
    for row, reference in zip(found, expected, strict=True):
        assert row["source"] == (None if reference["source"] == "all" else reference["source"])
        for key in ("rule_id", "num_ratings", "num_unparsed", "num_levels"):
            assert row[key] == reference[key]
        assert row["entropy_nats"] == pytest.approx(reference["entropy_nats"], abs=1e-12)


def test_density_cells_hold_every_rating_once(random_rows: tuple[pa.Table, list[Row]]) -> None:
    table, rows = random_rows
    pooled = [row for row in run("rule_density_cells", table) if row["source"] is None]
    for rule_id in {row["rule_id"] for row in pooled}:
        ratings = np.array([x for *_, rule, x in rows if rule == rule_id and x is not None])
        cells = [row for row in pooled if row["rule_id"] == rule_id]
        count = np.array([cell["num_ratings"] for cell in cells])
        position = np.array([cell["position"] for cell in cells])
        variance = np.array([cell["variance"] for cell in cells])
        bandwidth = cells[0]["bandwidth"]
        assert count.sum() == len(ratings)
        assert bandwidth == pytest.approx(np.std(ratings, ddof=1) * len(ratings) ** -0.2, rel=1e-12)
        # Mean and variance survive the gathering: within plus between cells.
        mean = ratings.min() + bandwidth * np.average(position, weights=count)
        assert mean == pytest.approx(ratings.mean(), abs=1e-12)
        between = np.average((position - np.average(position, weights=count)) ** 2, weights=count)
        total = bandwidth**2 * (between + np.average(variance, weights=count))
        assert total == pytest.approx(ratings.var(), rel=1e-9)
    constant = {rule for *_, rule, x in rows if x is not None} - {r["rule_id"] for r in pooled}
    for rule_id in constant:
        assert (
            kde_entropy(np.array([x for *_, r, x in rows if r == rule_id and x is not None]))
            is None
        )


def test_accuracies_of_a_small_table_are_what_hand_gives() -> None:
    a, b = run("rule_accuracy", ratings_table(SMALL))
    # Rule a over p1 (win), p2 (tie), p3 (loss); p4 lacks a rating.
    assert a["num_pairs"] == 3
    assert a["strict_accuracy"] == pytest.approx(1 / 3)
    assert a["inclusive_accuracy"] == pytest.approx(2 / 3)
    assert a["half_accuracy"] == pytest.approx(1 / 2)
    assert a["untied_accuracy"] == pytest.approx(1 / 2)
    assert a["tie_rate"] == pytest.approx(1 / 3)
    # Margins 0.8, 0, -0.8: mean 0, sd = sqrt(2 * 0.64 / 2) = 0.8.
    assert a["sd_margin"] == pytest.approx(0.8)
    assert (b["num_pairs"], b["sd_margin"]) == (1, None)


def test_rule_accuracy_agrees_with_numpy(random_rows: tuple[pa.Table, list[Row]]) -> None:
    table, rows = random_rows
    expected = [
        r for r in reference_analysis(rows, by_source=True)["rules"] if r["source"] != "all"
    ]
    for row, reference in zip(run("rule_accuracy", table), expected, strict=True):
        assert (row["source"], row["rule_id"]) == (reference["source"], reference["rule_id"])
        for policy, value in reference["accuracy"].items():
            assert row[f"{policy}_accuracy"] == pytest.approx(value, abs=1e-12)
        assert row["tie_rate"] == pytest.approx(reference["tie_rate"], abs=1e-12)
        own = [r for r in rows if (r[1], r[3]) == (row["source"], row["rule_id"])]
        if row["num_pairs"] > 1:
            expected_sd = reference_margin_sds(own)[row["rule_id"]]
            assert row["sd_margin"] == pytest.approx(expected_sd, abs=1e-12)


def test_pair_patterns_agree_with_numpy(random_rows: tuple[pa.Table, list[Row]]) -> None:
    table, rows = random_rows
    rule_ids = [row["rule_id"] for row in run("rule_ids", table)]
    assert rule_ids == sorted({row[3] for row in rows})
    patterns = run("pair_patterns", table)
    sign_PR = np.array(
        [
            [int(win) - int(loss) for win, loss in zip(row["wins"], row["losses"], strict=True)]
            for row in patterns
            for _ in range(row["num_pairs"])
        ]
    )
    reference = reference_signs(rows, rule_ids)
    assert sorted(map(tuple, sign_PR)) == sorted(map(tuple, reference))
    assert {row["num_repeats"] for row in patterns} == {0}


def test_patterns_of_more_rules_than_a_machine_word_has_bits() -> None:
    # 150 rules; rule k wins for even k, ties for odd k.
    rows = [
        ("p", "s", response, f"rule-{k:03d}", 0.5 + 0.5 * (response == "chosen" and k % 2 == 0))
        for k in range(150)
        for response in ("chosen", "rejected")
    ]
    (pattern,) = run("pair_patterns", ratings_table(rows))
    assert pattern["wins"] == "10" * 75
    assert pattern["ties"] == "01" * 75
    assert pattern["losses"] == "0" * 150


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ((None, "s", "chosen", "r", 0.5), "pair_id is null"),
        (("p", None, "chosen", "r", 0.5), "source is null"),
        (("p", "s", None, "r", 0.5), "response is null"),
        (("p", "s", "chosen", None, 0.5), "rule_id is null"),
        (("p", "s", "Chosen", "r", 0.5), "neither"),
        (("p", "s", "chosen", "r", 1.0000001), "not in"),
        (("p", "s", "chosen", "r", -1e-9), "not in"),
        (("p", "s", "chosen", "r", math.nan), "not in"),
        (("p", "s", "chosen", "r", math.inf), "not in"),
        (("p", "s", "chosen", "r", -math.inf), "not in"),
    ],
)
def test_rows_that_break_the_contract_are_found(row: Row, problem: str) -> None:
    (found,) = run("invalid_ratings", ratings_table([*SMALL, row]))
    assert problem in found["problem"]


def test_a_null_rating_and_the_ends_of_the_scale_are_valid() -> None:
    rows = [("p", "s", "chosen", "r", x) for x in (None, 0.0, 1.0)]
    assert run("invalid_ratings", ratings_table(rows)) == []


def test_repeats_are_found_by_both_queries() -> None:
    repeated = ratings_table([*SMALL, ("p1", "hh", "chosen", "a", None)])
    (found,) = run("repeated_ratings", repeated)
    assert (found["pair_id"], found["response"], found["num_rows"]) == ("p1", "chosen", 2)
    assert sum(row["num_repeats"] for row in run("pair_patterns", repeated)) == 1
