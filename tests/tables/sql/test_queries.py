"""Every file in `sql/` gives the figures of numpy, pandas or a calculation by hand."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from encore.tables.query_files import query_files
from encore.warehouse.queries import definition, queries_read
from tests.reference import Row, rows_of
from tests.worlds.ratings import random_table, ratings_table

#: The queries that need only the five columns of a ratings table.
QUERIES = [
    file.name for file in query_files() if file.reads == ("ratings",) and file.kind == "query"
]

# One source, three rules. Rule a: chosen 0.9 beats 0.1, ties at 0.5, loses 0.1 : 0.9; one null.
# Rule b: a loss on p1 and a win on p2. Rule c: constant, without a rating of one response of p2.
SMALL = [
    (pair, "hh", response, rule, x)
    for rule, ratings_by_pair in {
        "a": {"p1": (0.9, 0.1), "p2": (0.5, 0.5), "p3": (0.1, 0.9), "p4": (None, 0.9)},
        "b": {"p1": (0.2, 0.4), "p2": (0.7, 0.6)},
        "c": {"p1": (0.5, 0.5), "p2": (0.5, None)},
    }.items()
    for pair, ratings in ratings_by_pair.items()
    for response, x in zip(("chosen", "rejected"), ratings, strict=True)
]


def run(name: str, call: str | None = None, **tables: pa.Table) -> list[dict[str, Any]]:
    """Return the rows of a query, or of a call of a macro."""
    with duckdb.connect() as connection:
        for view, table in tables.items():
            connection.register(view, table)
        for view in (*queries_read(name), name):
            connection.execute(definition(view))
        return connection.sql(f"from {call or name}").to_arrow_table().to_pylist()


def weights_at(tau: object, ratings: pa.Table) -> list[dict[str, Any]]:
    return run("weights_at", f"weights_at({tau})", ratings=ratings)


@pytest.fixture(params=range(3), scope="module")
def random_rows(request: pytest.FixtureRequest) -> tuple[pa.Table, list[Row]]:
    table = random_table(np.random.default_rng(1000 + request.param), max_rows=3000)
    return table, rows_of(table)


@pytest.mark.parametrize("name", QUERIES)
def test_a_query_of_no_rows_is_empty(name):
    assert run(name, ratings=ratings_table([])) == []


def test_levels_are_counted_as_by_numpy(random_rows):
    table, rows = random_rows
    counts = Counter((where, r, x) for _, s, _, r, x in rows for where in (s, None))
    levels = run("rating_levels", ratings=table)
    assert {tuple(row.values())[:3]: row["num_rows"] for row in levels} == dict(counts)


def test_weights_are_the_softmax_of_entropy_and_effects_their_spread():
    # Rule a: 7 ratings, levels 0.1 (2x), 0.5 (2x), 0.9 (3x). Rule b: 4 levels once each, ln 4.
    # Rule c: constant, 0. Rule silent has no weight and takes none.
    table = ratings_table([*SMALL, ("p1", "hh", "chosen", "silent", None)])
    entropies = [4 / 7 * math.log(7 / 2) + 3 / 7 * math.log(7 / 3), math.log(4), 0.0]
    for tau in (2, 0.5, 1e-300, 1e300):
        mass = np.exp(-np.array(entropies) / tau)
        a, b, c, silent = weights_at(tau, table)
        weights = [row["weight"] for row in (a, b, c)]
        assert weights == pytest.approx(mass / mass.sum(), abs=1e-15)
        # Margins of b: -0.2 and 0.1: sd = 0.3 / sqrt 2. Rule c has one margin and so no sd.
        assert b["margin_sd"] == pytest.approx(0.3 / math.sqrt(2), abs=1e-12)
        assert b["effective_weight"] == pytest.approx(weights[1] * b["margin_sd"], abs=1e-15)
        assert c["margin_sd"] is c["effective_weight"] is silent["weight"] is None


@pytest.mark.parametrize("tau", ["0", "-1", "'nan'::double", "'inf'::double", "null"])
def test_an_impossible_tau_is_an_error(tau):
    with pytest.raises(duckdb.Error, match="tau must be a finite number above 0"):
        weights_at(tau, ratings_table(SMALL))


#: Pairs of one rule or head: two wins, a tie, a loss, and one pair with a missing score.
OUTCOMES = {"w1": (0.9, 0.1), "w2": (0.7, 0.6), "t": (0.5, 0.5), "l": (0.1, 0.9), "m": (0.4, None)}
# A tie counts one half: (2 + 1/2) / 4; as a miss: 2 / 4; not at all: 2 / 3; as a hit: 3 / 4.
ACCURACIES = {"half": 2.5 / 4, "strict": 2 / 4, "untied": 2 / 3, "inclusive": 3 / 4}


def outcome_rows(source: str) -> list[Row]:
    return [
        (pair_id, source, response, "a", score)
        for pair_id, scores in OUTCOMES.items()
        for response, score in zip(("chosen", "rejected"), scores, strict=True)
    ]


@pytest.mark.parametrize("name", ["rule_accuracy", "entropy_accuracy"])
def test_rules_have_the_accuracies_of_each_tie_policy(name):
    # The same ids in two sources are other pairs.
    rows = run(name, ratings=ratings_table([*outcome_rows("hh"), *outcome_rows("pku")]))
    num_pairs_by_source = {"hh": 4, "pku": 4, None: 8}
    assert {row["source"] for row in rows} >= {"hh", "pku"}
    for row in rows:
        assert row["num_pairs"] == num_pairs_by_source[row["source"]]
        assert row["tie_rate"] == 1 / 4
        accuracies = {policy: row[f"{policy}_accuracy"] for policy in ACCURACIES}
        assert accuracies == pytest.approx(ACCURACIES)


def test_a_tie_of_a_head_counts_one_half_or_as_a_miss():
    columns = ("pair_id", "source", "response", "head_id", "score")
    scores = pa.Table.from_pylist(
        [
            {"score_key": "k", "model": "m", **dict(zip(columns, row, strict=True))}
            for source in ("hh", "pku")
            for row in outcome_rows(source)
        ]
    )
    rows = run("head_accuracy", head_scores=scores)
    assert [row["source"] for row in rows] == ["hh", "pku"]
    for row in rows:
        assert (row["num_pairs"], row["num_ties"]) == (4, 1)
        assert row["half_accuracy"] == pytest.approx(ACCURACIES["half"])
        assert row["strict_accuracy"] == pytest.approx(ACCURACIES["strict"])
        # Margins 0.8, 0.1, 0 and -0.8.
        assert row["mean_margin"] == pytest.approx(0.1 / 4)


# --- pairs ----------------------------------------------------------------------------------------


def test_nulls_and_the_ends_of_the_scale_are_valid_and_repeated_ratings_are_listed():
    rows = [("p", "s", "chosen", "r", x) for x in (None, 0.0, 1.0)]
    assert run("invalid_ratings", ratings=ratings_table(rows)) == []
    repeated = ratings_table([*SMALL, ("p1", "hh", "chosen", "a", None)])
    (row,) = run("repeated_ratings", ratings=repeated)
    assert (row["pair_id"], row["response"], row["num_rows"]) == ("p1", "chosen", 2)
    for name in ("pair_patterns", "pair_ratings"):
        assert sum(row["num_repeats"] for row in run(name, ratings=repeated)) == 1


# --- over all runs --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def all_ratings() -> pa.Table:
    """Return ratings of the same responses by three runs, a tenth of them null."""
    rng = np.random.default_rng(4)
    rows = []
    for run_number, pair, source, response, rule in itertools.product(
        range(3), range(12), ("hh", "pku"), ("chosen", "rejected"), ("a", "b", "constant")
    ):
        is_null = rng.random() < 0.1
        rating = 0.5 if rule == "constant" else float(rng.integers(0, 5)) / 4
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


def test_ties_are_counted_by_run_and_rule(all_ratings):
    rated = all_ratings.to_pandas()
    rated["expected_rating"] = rated["rating"].where(rated["run_key"] == "run-1")
    run_keys = [f"run-{number}" for number in range(3)]
    runs = {"run_key": run_keys, "judge": run_keys, "layout": ["paper"] * 3, "decode": ["text"] * 3}
    tie_rates = run("tie_rates", all_ratings=pa.Table.from_pandas(rated), runs=pa.table(runs))
    keys = ["run_key", "rule_id"]
    pairs = rated.pivot(index=[*keys, "source", "pair_id"], columns="response")["rating"].dropna()
    ties = (pairs["chosen"] == pairs["rejected"]).groupby(keys)
    assert len(tie_rates) == 9
    for row in tie_rates:
        key = row["run_key"], row["rule_id"]
        assert row["num_pairs"] == ties.size()[key]
        assert row["tie_rate"] == pytest.approx(ties.mean()[key])
        expected = pytest.approx(row["tie_rate"]) if row["run_key"] == "run-1" else None
        assert row["expected_tie_rate"] == expected
