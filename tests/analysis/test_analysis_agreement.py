"""`encore analyze` and `encore weights` agree with a separate numpy implementation to 1e-9."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from encore.cli.app import app
from tests.ratings_files import random_table, write_odd_files
from tests.reference import reference_analysis, reference_weights, rows_of

TOLERANCE = 1e-9
RULE_KEYS = {
    *("rule_id", "source", "num_ratings", "num_unparsed", "num_levels", "entropy_nats"),
    *("differential_entropy_nats", "num_pairs", "tie_rate", "accuracy"),
}
CORRELATION_KEYS = {
    *("source", "entropy", "accuracy", "pearson_r", "p_value", "ci_low", "ci_high"),
    *("spearman_rho", "null_low", "null_high"),
}


def run_json(*arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(app, [*arguments, "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def assert_agrees(found: Any, expected: Any, where: str, *, tolerance: float = TOLERANCE) -> None:
    if isinstance(expected, dict):
        for key, value in expected.items():
            assert_agrees(found[key], value, f"{where}.{key}")
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=tolerance, abs=tolerance), where
    else:
        assert found == expected, where


def assert_analysis_agrees(path: Path, rows: list, *, by_source: bool) -> None:
    found = run_json("analyze", str(path), *(["--by-source"] if by_source else []))
    expected = reference_analysis(rows, by_source=by_source)
    assert len(found["rules"]) == len(expected["rules"])
    for rule, reference in zip(found["rules"], expected["rules"], strict=True):
        assert set(rule) >= RULE_KEYS
        assert_agrees(rule, reference, f"{reference['source']}/{reference['rule_id']}")
    for row, reference in zip(found["correlation"], expected["correlation"], strict=True):
        assert set(row) >= CORRELATION_KEYS
        assert (row["null_low"] is None) == (reference["pearson_r"] is None)
        where = f"{reference['source']}/{reference['entropy']}"
        p_value = reference.pop("p_value")
        assert_agrees(row, reference, where)
        # At r = 1 over three rules p is sqrt(2 (1 - r)) times a factor: 1e-8 for the last bit of r.
        is_perfect = reference["pearson_r"] is not None and 1 - abs(reference["pearson_r"]) < 1e-12
        assert row["p_value"] == pytest.approx(p_value, abs=1e-6 if is_perfect else TOLERANCE)


def check_seed(seed: int, tmp_path: Path, *, max_rows: int) -> None:
    rng = np.random.default_rng(seed)
    table = random_table(rng, max_rows=max_rows)
    write_odd_files(table, tmp_path, rng)
    rows = rows_of(table)
    assert_analysis_agrees(tmp_path, rows, by_source=bool(seed % 2))
    tau = float(rng.choice([0.05, 0.5, 2.0, 30.0]))
    found = run_json("weights", str(tmp_path), "--scheme", "encore", "--tau", str(tau))
    assert found["scheme"] == "encore"
    assert found["params"] == {"tau": tau, "log_base": "e"}
    expected = reference_weights(rows, tau=tau)
    assert_agrees(dict(zip(found["rule_ids"], found["weights"], strict=True)), expected, "weights")


# Of 200 random studies these run by default, the rest with the long counts.
@pytest.mark.parametrize("seed", range(20))
def test_random_ratings_give_what_numpy_gives(seed: int, tmp_path: Path) -> None:
    check_seed(seed, tmp_path, max_rows=4_000)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(20, 200))
def test_two_hundred_random_studies_give_what_numpy_gives(seed: int, tmp_path: Path) -> None:
    check_seed(seed, tmp_path, max_rows=4_000)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(200, 220))
def test_large_random_studies_give_what_numpy_gives(seed: int, tmp_path: Path) -> None:
    check_seed(seed, tmp_path, max_rows=200_000)
