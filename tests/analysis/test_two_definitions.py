"""Statistics and ENCORE's weights agree with a separate numpy implementation to 1e-9."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from encore.analysis.analyze import analyze
from encore.analysis.level_codes import LevelCodes, rule_entropies
from encore.analysis.statistics import TIE_POLICIES, Accuracy
from encore.weighting.scheme_options import SchemeOptions
from encore.weighting.weigh import weigh_rules, weights
from tests.golden.command_line import encore
from tests.reference import reference_analysis, reference_margin_sds, reference_weights, rows_of
from tests.worlds.ratings import random_table, table_of, write_odd_files
from tests.worlds.studies import rules_of, write_rating_run

pytestmark = pytest.mark.services

OUTCOMES = ("num_pairs", "tie_rate", *(f"{policy}_accuracy" for policy in TIE_POLICIES))
#: Queries that have figures of an analysis, and which.
QUERIES = {
    "rule_statistics": ("entropy_nats", "num_levels", "num_ratings", "num_unparsed", "top_level"),
    "entropy_accuracy": ("entropy_nats", "num_levels", "num_ratings", "coverage", *OUTCOMES),
    "rule_outcomes": OUTCOMES,
    "rule_accuracy": OUTCOMES,
    "weights_at(2)": ("entropy_nats",),
    "tie_rates": ("num_pairs", "tie_rate"),
}


def assert_agrees(figure: Any, expected: Any, path: str, tolerance: float = 1e-9) -> None:
    if isinstance(expected, dict):
        for key, value in expected.items():
            assert_agrees(figure[key], value, f"{path}.{key}", tolerance)
    elif isinstance(expected, float):
        assert figure == pytest.approx(expected, rel=tolerance, abs=tolerance), path
    else:
        assert figure == expected, path


# Of 200 random studies ten run by default, the rest with the long counts.
@pytest.mark.parametrize(
    "seed", [*range(10), *(pytest.param(n, marks=pytest.mark.full) for n in range(10, 210))]
)
def test_random_ratings_in_odd_files_give_what_numpy_gives(seed, tmp_path):
    rng = np.random.default_rng(seed)
    table = random_table(rng, max_rows=200_000 if seed and seed % 10 == 0 else 3_000)
    write_odd_files(table, tmp_path, rng)
    rows, by_source = rows_of(table), bool(seed % 2)
    analysis = analyze(tmp_path, by_source=by_source).as_dict()
    expected = reference_analysis(rows, by_source=by_source)
    for rule, reference in zip(analysis["rules"], expected["rules"], strict=True):
        assert_agrees(rule, reference, f"{reference['source']}/{reference['rule_id']}")
    for row, reference in zip(analysis["correlation"], expected["correlation"], strict=True):
        assert (row["null_low"] is None) == (reference["pearson_r"] is None)
        p_value = reference.pop("p_value")
        # Entropies of densities are integrals to 1e-9: their r, and with it p, are less sure.
        tolerance = 1e-8 if reference["entropy"] == "differential" else 1e-9
        assert_agrees(row, reference, f"{reference['source']}/{reference['entropy']}", tolerance)
        # At r = 1 over three rules p is sqrt(2 (1 - r)) times a factor: 1e-8 for the last bit of r.
        is_perfect = reference["pearson_r"] is not None and 1 - abs(reference["pearson_r"]) < 1e-12
        assert row["p_value"] == pytest.approx(p_value, abs=1e-6 if is_perfect else tolerance)
    tau = float(rng.choice([0.05, 0.5, 2.0, 30.0]))
    vector = weights(tmp_path, tau=tau)
    by_rule = dict(zip(vector.rule_ids, vector.weights, strict=True))
    assert by_rule == pytest.approx(reference_weights(rows, tau=tau), abs=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_margins_spread_over_all_pairs_that_a_rule_rated(seed):
    """Pairs that another rule did not rate count too."""
    table = random_table(np.random.default_rng(seed), max_rows=2000)
    expected = reference_margin_sds(rows_of(table))
    weighed = weigh_rules(table, scheme="uniform", options=SchemeOptions())
    for rule, sd in zip(weighed.rules, weighed.margin_sds, strict=True):
        reference = expected.get(rule.rule_id, np.nan)
        assert sd == (None if np.isnan(reference) else pytest.approx(reference, abs=1e-12))


def test_row_order_and_threads_do_not_change_the_analysis(monkeypatch):
    table = random_table(np.random.default_rng(2), max_rows=20_000)
    expected = analyze(table, by_source=True)
    for threads in ("1", "2"):
        monkeypatch.setenv("ENCORE_DUCKDB_THREADS", threads)
        shuffled = table.take(np.random.default_rng(int(threads)).permutation(table.num_rows))
        assert analyze(shuffled, by_source=True) == expected


def test_the_figures_of_sql_and_of_a_verdict_are_the_same_numbers(tmp_path):
    """A study and a file in any order: two sources, nulls, ties, a rule of more than 256 levels."""
    rng = np.random.default_rng(17)
    rule_ids = ["b", "fine", "a"]
    rating_2PR = rng.random((2, 400, 3))
    rating_2PR[:, :, ::2] = rating_2PR[:, :, ::2].round(1)
    rating_2PR[rng.random(rating_2PR.shape) < 0.05] = np.nan
    table = table_of(*rating_2PR, rule_ids=rule_ids, source=["s", "r"] * 200)
    write_rating_run(tmp_path / "study", table, rules=rules_of(rule_ids))
    loose = tmp_path / "loose.parquet"
    pq.write_table(table.take(pa.array(rng.permutation(table.num_rows))), loose)
    rows_of_query = {}
    for query in QUERIES:
        rows = encore("sql", tmp_path / "study", f"from {query}", "--json").json
        rows_of_query[query] = {(row.get("source") or "all", row["rule_id"]): row for row in rows}
    for path in (tmp_path / "study", loose):
        rules = encore("analyze", path, "--by-source", "--json").json["rules"]
        assert len(rules) == len(rows_of_query["entropy_accuracy"]) == 9
        for rule in rules:
            figures = rule | {f"{name}_accuracy": share for name, share in rule["accuracy"].items()}
            for query, names in QUERIES.items():
                row = rows_of_query[query].get((rule["source"], rule["rule_id"]), figures)
                assert {name: row[name] for name in names} == {
                    name: figures[name] for name in names
                }
    # numpy's definitions, for resampled and for composed ratings.
    entropies = rule_entropies(LevelCodes.from_ratings(rating_2PR).histogram())
    for rule_id, entropy in zip(rule_ids, entropies, strict=True):
        row = rows_of_query["rule_outcomes"]["all", rule_id]
        counts = {name: row[f"num_{name}"] for name in ("wins", "ties", "losses")}
        accuracy = dataclasses.asdict(Accuracy.from_counts(**counts))
        assert accuracy == {name: row[f"{name}_accuracy"] for name in accuracy}
        expected = rows_of_query["rule_statistics"]["all", rule_id]["entropy_nats"]
        assert entropy == pytest.approx(expected, rel=1e-14)
