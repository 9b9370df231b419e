"""The queries people ask for by name: what their files say of them, and numpy's definitions."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter, defaultdict
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
import scipy.stats

from encore.query.query_files import QueryFile, query_files
from encore.query.study_tables import TABLE_DOCS
from encore.warehouse.connection import load_query
from encore.weighting.encore import entropy_weights
from tests.ratings_files import random_table, ratings_table
from tests.reference import Row, reference_analysis, reference_margin_sds, rows_of

# One source. Margins (chosen - rejected): pair p1: a +, b -, c 0; pair p2: a +, b +, c missing.
# Rule "silent" has no rating at all.
SMALL = [
    ("p1", "hh", "chosen", "a", 0.9),
    ("p1", "hh", "rejected", "a", 0.1),
    ("p1", "hh", "chosen", "b", 0.2),
    ("p1", "hh", "rejected", "b", 0.4),
    ("p1", "hh", "chosen", "c", 0.5),
    ("p1", "hh", "rejected", "c", 0.5),
    ("p2", "hh", "chosen", "a", 0.8),
    ("p2", "hh", "rejected", "a", 0.1),
    ("p2", "hh", "chosen", "b", 0.7),
    ("p2", "hh", "rejected", "b", 0.6),
    ("p2", "hh", "chosen", "c", 0.5),
    ("p2", "hh", "rejected", "c", None),
    ("p1", "hh", "chosen", "silent", None),
]


def run(name: str, **tables: pa.Table) -> list[dict[str, Any]]:
    with duckdb.connect() as connection:
        for table_name, table in tables.items():
            connection.register(table_name, table)
        return connection.sql(load_query(name)).to_arrow_table().to_pylist()


def weights_at(tau: object, ratings: pa.Table) -> list[dict[str, Any]]:
    with duckdb.connect() as connection:
        connection.register("ratings", ratings)
        connection.execute(load_query("weights_at"))
        return connection.sql(f"from weights_at({tau})").to_arrow_table().to_pylist()


def margins_of(rows: list[Row]) -> dict[tuple[str, str], dict[str, float]]:
    """chosen - rejected of each (source, pair) under each rule that rated both."""
    given = {(s, p, rule, response): x for p, s, response, rule, x in rows}
    margins: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for source, pair, rule, response in given:
        chosen = given.get((source, pair, rule, "chosen"))
        rejected = given.get((source, pair, rule, "rejected"))
        if response == "chosen" and chosen is not None and rejected is not None:
            margins[source, pair][rule] = chosen - rejected
    return margins


@pytest.fixture(params=range(3), scope="module")
def random_rows(request: pytest.FixtureRequest) -> tuple[pa.Table, list[Row]]:
    table = random_table(np.random.default_rng(2000 + request.param), max_rows=3000)
    return table, rows_of(table)


@pytest.mark.parametrize("file", query_files(), ids=lambda file: file.name)
def test_a_file_is_what_its_first_comment_says(file: QueryFile) -> None:
    assert file.question.endswith("?")
    assert file.grain.startswith("one row per ")
    assert set(file.reads) <= TABLE_DOCS.keys()
    assert file.name not in TABLE_DOCS
    creates = re.search(r"^create or replace macro (\w+)\((\w+)\) as table$", file.text, re.M)
    assert file.call == (f"{file.name}({creates[2]})" if creates else None)
    with duckdb.connect() as connection:
        for name in file.reads:
            connection.register(name, TABLE_DOCS[name].schema.empty_table())
        connection.execute(file.definition)
        shown = f"{file.name}(2)" if file.is_macro else file.name
        assert connection.sql(f"from {shown}").to_arrow_table().num_rows == 0


# --- rules ----------------------------------------------------------------------------------------


def test_the_histogram_agrees_with_numpy(random_rows: tuple[pa.Table, list[Row]]) -> None:
    table, rows = random_rows
    expected = {}
    for source in {*(row[1] for row in rows), None}:
        for rule in {row[3] for row in rows}:
            ratings = [
                x for _, s, _, r, x in rows if r == rule and source in (s, None) and x is not None
            ]
            levels, counts = np.unique(ratings, return_counts=True)
            for level, count in zip(levels.tolist(), counts.tolist(), strict=True):
                expected[source, rule, level] = (count, count / len(ratings))
    found = run("rule_histogram", ratings=table)
    assert {
        (row["source"], row["rule_id"], row["rating"]): (row["num_ratings"], row["share"])
        for row in found
    } == expected
    assert len(found) == len(expected)


def test_entropy_and_accuracy_stand_side_by_side(random_rows: tuple[pa.Table, list[Row]]) -> None:
    table, rows = random_rows
    expected = reference_analysis(rows, by_source=True)["rules"]
    found = run("entropy_accuracy", ratings=table)
    assert len(found) == len(expected)
    for row, reference in zip(found, expected, strict=True):
        assert row["source"] == (None if reference["source"] == "all" else reference["source"])
        for key in ("rule_id", "num_ratings", "num_levels", "num_pairs"):
            assert row[key] == reference[key]
        for key in ("entropy_nats", "coverage", "tie_rate"):
            assert row[key] == pytest.approx(reference[key], abs=1e-12)
        for policy, value in reference["accuracy"].items():
            assert row[f"{policy}_accuracy"] == pytest.approx(value, abs=1e-12)


@pytest.mark.parametrize("tau", [2, 1e-300, 1e300])
def test_weights_are_the_softmax_that_numpy_gives(
    random_rows: tuple[pa.Table, list[Row]], tau: float
) -> None:
    table, rows = random_rows
    found = weights_at(tau, table)
    rules = sorted({row[3] for row in rows})
    assert [row["rule_id"] for row in found] == rules
    entropies = []
    for rule in rules:
        _, counts = np.unique(
            [x for *_, r, x in rows if r == rule and x is not None], return_counts=True
        )
        entropies.append(scipy.stats.entropy(counts))
    weights = entropy_weights(np.array(entropies), tau=float(tau))
    sds = reference_margin_sds(rows)
    for row, entropy, weight in zip(found, entropies, weights, strict=True):
        assert row["entropy_nats"] == pytest.approx(entropy, abs=1e-12)
        assert row["weight"] == pytest.approx(weight, abs=1e-12)
        assert row["margin_sd"] == pytest.approx(sds[row["rule_id"]], abs=1e-12)
        assert row["effective_weight"] == pytest.approx(weight * sds[row["rule_id"]], abs=1e-12)
    assert math.fsum(row["weight"] for row in found) == pytest.approx(1, abs=1e-12)


def test_a_rule_without_ratings_is_null_and_takes_no_weight() -> None:
    found = run("entropy_accuracy", ratings=ratings_table(SMALL))
    silent = [row for row in found if row["rule_id"] == "silent"]
    assert [row["source"] for row in silent] == ["hh", None]
    for row in silent:
        assert (row["num_ratings"], row["num_pairs"], row["coverage"]) == (0, 0, 0.0)
        assert row["entropy_nats"] is row["half_accuracy"] is row["tie_rate"] is None
    weights = {row["rule_id"]: row for row in weights_at(2, ratings_table(SMALL))}
    assert weights.pop("silent")["weight"] is None
    assert math.fsum(row["weight"] for row in weights.values()) == pytest.approx(1, abs=1e-15)
    # Rule c has one margin and so no standard deviation.
    assert weights["c"]["margin_sd"] is weights["c"]["effective_weight"] is None


@pytest.mark.parametrize("tau", ["0", "-1", "'nan'::double", "'inf'::double", "null"])
def test_an_impossible_tau_is_an_error(tau: str) -> None:
    with pytest.raises(duckdb.Error, match="tau must be a finite number above 0"):
        weights_at(tau, ratings_table(SMALL))


# --- pairs ----------------------------------------------------------------------------------------


def test_disagreements_agree_with_numpy(random_rows: tuple[pa.Table, list[Row]]) -> None:
    table, rows = random_rows
    expected: Counter[tuple[Any, ...]] = Counter()
    for (source, _), margins in margins_of(rows).items():
        for one, other in itertools.combinations(sorted(margins), 2):
            product = np.sign(margins[one]) * np.sign(margins[other])
            both = margins[one] == margins[other] == 0
            kind = {1.0: "agreed", -1.0: "opposed"}.get(
                float(product), "both_tied" if both else "one_tied"
            )
            for where in (source, None):
                expected[where, one, other, kind] += 1
    found = run("rule_disagreements", ratings=table)
    kinds = ("agreed", "opposed", "both_tied", "one_tied")
    counted = {
        (row["source"], row["rule_id"], row["other_rule_id"], kind): row[f"num_{kind}"]
        for row in found
        for kind in kinds
    }
    assert {key: count for key, count in counted.items() if count} == dict(expected)
    for row in found:
        assert row["num_pairs"] == sum(row[f"num_{kind}"] for kind in kinds)
        decided = row["num_agreed"] + row["num_opposed"]
        share = row["num_opposed"] / decided if decided else None
        assert row["opposed_share"] == (None if share is None else pytest.approx(share))


def test_controversy_is_the_share_of_opposed_pairs_of_rules(
    random_rows: tuple[pa.Table, list[Row]],
) -> None:
    table, rows = random_rows
    expected = {}
    for key, margins in margins_of(rows).items():
        pairs = list(itertools.combinations(margins.values(), 2))
        opposed = sum(np.sign(one) * np.sign(other) < 0 for one, other in pairs)
        if opposed:
            spread = max(margins.values()) - min(margins.values())
            num_tied = sum(margin == 0 for margin in margins.values())
            expected[key] = (opposed / len(pairs), spread, len(margins), num_tied)
    found = run("controversial_pairs", ratings=table)
    assert len(found) == len(expected)
    for row in found:
        controversy, spread, *counts = expected[row["source"], row["pair_id"]]
        assert row["controversy"] == pytest.approx(controversy, abs=1e-12)
        assert row["margin_range"] == pytest.approx(spread, abs=1e-12)
        assert [row["num_rules"], row["num_tied"]] == counts
    order = [(-row["controversy"], -row["margin_range"]) for row in found]
    assert order == sorted(order)


# --- queries over all runs ------------------------------------------------------------------------


def all_ratings(*, num_runs: int) -> pa.Table:
    """The same responses rated by several runs, a tenth null with one of two reasons."""
    rng = np.random.default_rng(3)
    places = itertools.product(
        range(num_runs), range(12), ("hh", "pku"), ("chosen", "rejected"), ("a", "b", "constant")
    )
    rows = []
    for run_number, pair, source, response, rule in places:
        is_null = rng.random() < 0.1
        rating = 0.3 if rule == "constant" else float(rng.integers(0, 5) / 4)
        rows.append(
            {
                "pair_id": f"p{pair}",
                "source": source,
                "response": response,
                "rule_id": rule,
                "rating": None if is_null else rating,
                "null_reason": str(rng.choice(["empty", "long"])) if is_null else None,
                "judge": f"judge {run_number}",
                "run_key": f"run-{run_number}",
            }
        )
    return pa.Table.from_pylist(rows)


def test_null_ratings_are_counted_by_reason() -> None:
    table = all_ratings(num_runs=2)
    keys = ("run_key", "source", "rule_id", "null_reason")
    nulls = Counter(
        tuple(row[key] for key in keys) for row in table.to_pylist() if row["rating"] is None
    )
    found = run("null_ratings", all_ratings=table)
    assert {tuple(row[key] for key in keys): row["num_nulls"] for row in found} == dict(nulls)
    # 12 pairs of two responses each: 24 rows per run, source and rule.
    assert all(row["share"] == pytest.approx(row["num_nulls"] / 24) for row in found)


def test_judges_are_compared_on_what_both_rated() -> None:
    table = all_ratings(num_runs=3)
    rated: dict[tuple[str, str], dict[tuple[str, ...], float]] = defaultdict(dict)
    for row in table.to_pylist():
        if row["rating"] is not None:
            key = tuple(row[name] for name in ("source", "pair_id", "response"))
            rated[row["run_key"], row["rule_id"]][key] = row["rating"]
    found = run("judge_comparison", all_ratings=table)
    assert len(found) == 3 * 3  # pairs of three runs, three rules
    for row in found:
        one = rated[row["run_key"], row["rule_id"]]
        other = rated[row["other_run_key"], row["rule_id"]]
        shared = sorted(one.keys() & other.keys())
        x, y = np.array([one[key] for key in shared]), np.array([other[key] for key in shared])
        assert row["run_key"] < row["other_run_key"]
        assert row["judge"] == f"judge {row['run_key'][-1]}"
        assert row["num_ratings"] == len(shared)
        assert row["mean_rating"] == pytest.approx(x.mean(), abs=1e-12)
        assert row["other_mean_rating"] == pytest.approx(y.mean(), abs=1e-12)
        assert row["agreement"] == pytest.approx(np.mean(x == y), abs=1e-12)
        assert row["mean_absolute_difference"] == pytest.approx(np.abs(x - y).mean(), abs=1e-12)
        is_constant = row["rule_id"] == "constant"
        expected = None if is_constant else pytest.approx(np.corrcoef(x, y)[0, 1], abs=1e-9)
        assert row["rating_r"] == expected
    assert run("judge_comparison", all_ratings=all_ratings(num_runs=1)) == []


def test_shards_are_counted_by_state() -> None:
    runs = pa.table({"run_key": ["k", "new"], "judge": ["j", "j"]})
    states = ["done", "missing", "done", "damaged", "failed", "missing"]
    shards = pa.table(
        {
            "run_key": ["k"] * 6 + ["new"],
            "shard": [0, 1, 2, 3, 4, 5, 0],
            "state": [*states, "missing"],
            "num_ratings": pa.array([90, None, 95, None, None, None, None], pa.int64()),
            "num_nulls": pa.array([10, None, 5, None, None, None, None], pa.int64()),
        }
    )
    old, new = run("shard_status", runs=runs, shards=shards)
    names = ("num_shards", "num_done", "num_missing", "num_damaged", "num_failed")
    assert [old[name] for name in names] == [6, 2, 2, 1, 1]
    assert (old["num_ratings"], old["num_nulls"]) == (185, 15)
    assert old["open_shards"] == [1, 3, 4, 5]
    assert (new["num_done"], new["num_ratings"], new["open_shards"]) == (0, 0, [0])
