"""Every file in `sql/` gives the figures of numpy, pandas or a calculation by hand."""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
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


def margins_of(rows: list[Row]) -> dict[tuple[str, str], dict[str, float]]:
    """Return chosen - rejected by (source, pair) and by rule, if the rule rated both responses."""
    ratings = {(s, p, rule, response): x for p, s, response, rule, x in rows}
    margins: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for (source, pair, rule, response), chosen in ratings.items():
        rejected = ratings.get((source, pair, rule, "rejected"))
        if response == "chosen" and chosen is not None and rejected is not None:
            margins[source, pair][rule] = chosen - rejected
    return margins


@pytest.mark.parametrize("name", QUERIES)
def test_a_query_of_no_rows_is_empty(name):
    assert run(name, ratings=ratings_table([])) == []


def test_the_histogram_agrees_with_numpy(random_rows):
    table, rows = random_rows
    counts = Counter(
        (where, r, x) for _, s, _, r, x in rows if x is not None for where in (s, None)
    )
    totals: Counter[Any] = Counter()
    for (where, rule, _), count in counts.items():
        totals[where, rule] += count
    histogram = run("rule_histogram", ratings=table)
    assert len(histogram) == len(counts)
    for row in histogram:
        key = (row["source"], row["rule_id"], row["rating"])
        assert row["num_ratings"] == counts[key]
        assert row["share"] == pytest.approx(counts[key] / totals[key[:2]], abs=1e-15)


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


def test_disagreements_agree_with_numpy(random_rows):
    table, rows = random_rows
    expected: Counter[tuple[Any, ...]] = Counter()
    for (source, _), margins in margins_of(rows).items():
        for rule_ids in itertools.combinations(sorted(margins), 2):
            first, second = (np.sign(margins[rule_id]) for rule_id in rule_ids)
            tie = "both_tied" if first == second == 0 else "one_tied"
            kind = {1.0: "agreed", -1.0: "opposed"}.get(float(first * second), tie)
            for where in (source, None):
                expected[where, *rule_ids, kind] += 1
    disagreements = run("rule_disagreements", ratings=table)
    kinds = ("agreed", "opposed", "both_tied", "one_tied")
    counted = {
        (row["source"], row["rule_id"], row["other_rule_id"], kind): row[f"num_{kind}"]
        for row in disagreements
        for kind in kinds
    }
    assert {key: count for key, count in counted.items() if count} == dict(expected)
    for row in disagreements:
        assert row["num_pairs"] == sum(row[f"num_{kind}"] for kind in kinds)
        untied = row["num_agreed"] + row["num_opposed"]
        share = row["num_opposed"] / untied if untied else None
        assert row["opposed_share"] == (share if share is None else pytest.approx(share))


def test_controversy_is_the_share_of_opposed_pairs_of_rules(random_rows):
    table, rows = random_rows
    expected = {}
    for key, margins in margins_of(rows).items():
        pairs = list(itertools.combinations(margins.values(), 2))
        if opposed := sum(first * second < 0 for first, second in pairs):
            tied = sum(margin == 0 for margin in margins.values())
            spread = max(margins.values()) - min(margins.values())
            expected[key] = (opposed / len(pairs), spread, len(margins), tied)
    controversial = run("controversial_pairs", ratings=table)
    assert len(controversial) == len(expected)
    names = ("controversy", "margin_range", "num_rules", "num_tied")
    for row in controversial:
        values = expected[row["source"], row["pair_id"]]
        assert [row[name] for name in names] == pytest.approx(values, abs=1e-12)
    order = [(-row["controversy"], -row["margin_range"]) for row in controversial]
    assert order == sorted(order)


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


def test_null_ratings_are_counted_by_reason(all_ratings):
    keys = ("run_key", "source", "rule_id", "null_reason")
    nulls = Counter(
        tuple(row[key] for key in keys) for row in all_ratings.to_pylist() if row["rating"] is None
    )
    counts = run("null_ratings", all_ratings=all_ratings)
    assert {tuple(row[key] for key in keys): row["num_nulls"] for row in counts} == dict(nulls)
    # 12 pairs of two responses each: 24 rows per run, source and rule.
    assert all(row["share"] == pytest.approx(row["num_nulls"] / 24) for row in counts)


def test_judges_are_compared_on_responses_that_both_rated(all_ratings):
    rated = all_ratings.to_pandas().dropna(subset="rating")
    keys = ["rule_id", "source", "pair_id", "response"]
    twice = rated.merge(rated, on=keys, suffixes=("", "_other"))
    shared = dict(list(twice.groupby(["run_key", "run_key_other", "rule_id"])))
    comparison = run("judge_comparison", all_ratings=all_ratings)
    assert len(comparison) == 3 * 3  # three pairs of runs, three rules
    for row in comparison:
        responses = shared[row["run_key"], row["other_run_key"], row["rule_id"]]
        x, y = responses["rating"], responses["rating_other"]
        assert row["run_key"] < row["other_run_key"]
        assert row["judge"] == f"judge {row['run_key'][-1]}"
        assert row["num_ratings"] == len(responses)
        expected = {
            "mean_rating": x.mean(),
            "other_mean_rating": y.mean(),
            "agreement": np.mean(x == y),
            "mean_absolute_difference": np.abs(x - y).mean(),
        }
        assert {name: row[name] for name in expected} == pytest.approx(expected, abs=1e-12)
        r = None if row["rule_id"] == "constant" else pytest.approx(np.corrcoef(x, y)[0, 1])
        assert row["rating_r"] == r


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


def test_shards_are_counted_by_state():
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
