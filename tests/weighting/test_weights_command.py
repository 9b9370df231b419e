"""`encore weights`: its JSON, its table, its warnings."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from encore.cli.app import app
from encore.errors import InputError
from encore.weighting.scheme import SchemeOptions
from encore.weighting.weigh import weigh_rules, weights
from tests.ratings_files import random_table, ratings_table
from tests.reference import reference_margin_sds, rows_of

# Rule "two" has two levels, half each (H = ln 2); rule "one" is constant (H = 0).
ROWS = [
    (f"p{i}", "s", response, rule, rating)
    for i in range(4)
    for response, two in (("chosen", 1.0), ("rejected", 0.0))
    for rule, rating in (("one", 0.5), ("two", two))
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    pq.write_table(ratings_table(ROWS), tmp_path / "r.parquet")
    return tmp_path / "r.parquet"


def invoke(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["weights", *map(str, arguments)])


def test_the_json_is_the_contract_s(path: Path) -> None:
    result = invoke(path, "--scheme", "encore", "--tau", "2", "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    # Masses 1 and exp(-ln 2 / 2) = 1 / sqrt 2.
    one = 1 / (1 + math.sqrt(0.5))
    assert found["weights"] == pytest.approx([one, 1 - one], abs=1e-15)
    assert {key: found[key] for key in ("scheme", "params", "rule_ids")} == {
        "scheme": "encore",
        "params": {"tau": 2.0, "log_base": "e"},
        "rule_ids": ["one", "two"],
    }


def test_encore_at_tau_2_is_the_default(path: Path) -> None:
    assert invoke(path, "--json").stdout == invoke(path, "--tau", "2.0", "--json").stdout


def test_uniform_weighs_all_the_same_and_says_that_tau_means_nothing(path: Path) -> None:
    result = invoke(path, "--scheme", "uniform", "--tau", "5", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["weights"] == [0.5, 0.5]
    assert json.loads(result.stdout)["params"] == {}
    assert "no temperature" in result.stderr


def test_a_constant_rule_is_warned_of_and_its_effective_weight_is_nothing(path: Path) -> None:
    result = invoke(path)
    assert result.exit_code == 0
    assert "rule one is constant" in result.stderr
    cells = next(line for line in result.stdout.splitlines() if "one" in line).split()
    assert cells[2] == "0.0000"


def test_effective_weights_use_the_spread_of_margins() -> None:
    table = random_table(np.random.default_rng(5), max_rows=2000)
    expected = reference_margin_sds(rows_of(table))
    weighed = weigh_rules(table, scheme="uniform", options=SchemeOptions())
    for rule, sd in zip(weighed.rules, weighed.margin_sds, strict=True):
        assert sd == pytest.approx(expected[rule.rule_id], abs=1e-12)


def test_the_python_function_gives_the_same_vector(path: Path) -> None:
    found = json.loads(invoke(path, "--tau", "0.7", "--json").stdout)
    vector = weights(path, tau=0.7)
    assert vector.as_dict() == found
    assert weights(ratings_table(ROWS), tau=0.7) == vector


@pytest.mark.parametrize("tau", ["0", "-1", "nan", "inf"])
def test_an_impossible_tau_is_one_line(path: Path, tau: str) -> None:
    result = invoke(path, "--tau", tau)
    assert isinstance(result.exception, InputError)
    assert "tau" in str(result.exception)


def test_an_unknown_scheme_is_one_line(path: Path) -> None:
    result = invoke(path, "--scheme", "softmax")
    assert isinstance(result.exception, InputError)
    assert "encore, uniform" in str(result.exception)


def test_a_rule_of_nulls_only_is_named(tmp_path: Path) -> None:
    table = ratings_table([*ROWS, ("p0", "s", "chosen", "silent", None)])
    pq.write_table(table, tmp_path / "r.parquet")
    result = invoke(tmp_path / "r.parquet")
    assert isinstance(result.exception, InputError)
    assert "rule silent" in str(result.exception)
