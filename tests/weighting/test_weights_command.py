"""`encore weights`: its JSON, its table, its warnings."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from encore.data.study import Study
from encore.rating_runs import list_runs, read_run
from encore.weighting.comparison import DEFAULT_TAUS
from encore.weighting.weigh import weights
from tests.golden.command_line import Finished, encore
from tests.ratings_files import ratings_table

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


def invoke(*arguments: str | Path) -> Finished:
    return encore("weights", *arguments)


def test_the_json_is_the_contract_s(path: Path) -> None:
    result = invoke(path, "--scheme", "encore", "--tau", "2", "--json")
    assert result.code == 0, result.err
    found = json.loads(result.out)
    # Masses 1 and exp(-ln 2 / 2) = 1 / sqrt 2.
    one = 1 / (1 + math.sqrt(0.5))
    assert found["weights"] == pytest.approx([one, 1 - one], abs=1e-15)
    assert {key: found[key] for key in ("scheme", "params", "rule_ids")} == {
        "scheme": "encore",
        "params": {"tau": 2.0, "log_base": "e"},
        "rule_ids": ["one", "two"],
    }


def test_a_constant_rule_is_warned_of_and_its_effective_weight_is_nothing(path: Path) -> None:
    result = invoke(path)
    assert result.code == 0
    assert "rule one is constant" in result.err
    rows = [line.split() for line in result.out.splitlines()]
    [cells] = [cells for cells in rows if cells[:1] == ["1"] and len(cells) == 9]
    assert cells[2] == "0.0000"


def test_the_python_function_gives_the_same_vector(path: Path) -> None:
    found = json.loads(invoke(path, "--tau", "0.7", "--json").out)
    vector = weights(path, tau=0.7)
    entropies = found.pop("entropy_nats")  # beside the vector: what it was made from
    assert vector.as_dict() == found
    exps = [math.exp(-entropies[rule] / 0.7) for rule in vector.rule_ids]
    assert vector.weights == pytest.approx([one / math.fsum(exps) for one in exps])
    assert weights(ratings_table(ROWS), tau=0.7) == vector


def test_a_rule_of_nulls_only_is_named(tmp_path: Path) -> None:
    table = ratings_table([*ROWS, ("p0", "s", "chosen", "silent", None)])
    pq.write_table(table, tmp_path / "r.parquet")
    result = invoke(tmp_path / "r.parquet")
    assert result.code == 1
    assert "rule silent" in result.err


# --- schemes and their options --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--scheme", "uniform", "--seed", "3"], "scheme uniform has no seed: --seed 3"),
        (["--scheme", "encore", "--k", "3"], "scheme encore has no number of rules to select"),
        (["--scheme", "random", "--rule", "one"], "scheme random has no rule to name"),
        (["--scheme", "top-k", "--k", "3"], "--k 3: there are only 2 rules"),
    ],
)
def test_an_option_without_effect_is_said(path: Path, arguments: list[str], problem: str) -> None:
    result = invoke(path, *arguments)
    assert result.code == 0
    assert problem in result.err


def test_bradley_terry_shows_its_accuracy_on_held_out_pairs(path: Path) -> None:
    result = invoke(path, "--scheme", "bradley-terry")
    assert result.code == 0
    assert "leakage: labels" in result.out
    # Rule "two" is right in all four pairs, whichever are held out.
    assert "on held-out pairs: half 100.0 %" in result.out.replace("100.0%", "100.0 %")
    assert "grouped by pair_id" in result.err
    found = json.loads(invoke(path, "--scheme", "bradley-terry", "--json").out)
    assert found["weights"] == pytest.approx([0.0, 1.0])
    assert found["held_out"]["accuracy"]["half"] == 1.0
    assert found["held_out"]["grouped_by"] == "pair"
    assert found["provenance"]["uses_labels"]


def test_labels_that_no_rule_agrees_with_are_warned_of(tmp_path: Path) -> None:
    swapped = {"chosen": "rejected", "rejected": "chosen"}
    rows = [(pair, source, swapped[resp], rule, x) for pair, source, resp, rule, x in ROWS]
    pq.write_table(ratings_table(rows), tmp_path / "r.parquet")
    result = invoke(tmp_path / "r.parquet", "--scheme", "bradley-terry")
    assert "no rule agrees with these labels" in result.err


# --- views ----------------------------------------------------------------------------------------


def test_compare_shows_every_scheme_its_leakage_and_chance(path: Path) -> None:
    result = invoke(path, "--compare")
    assert result.code == 0, result.err
    for text in ("leakage", "encore (τ 2)", "inverse-sd", "labels", "random-k", "1000"):
        assert text in result.out
    assert "single is the rule of lowest entropy" in result.err
    assert "rule one is constant" in result.err


def test_the_sweep_has_the_temperature_that_was_given(path: Path) -> None:
    found = json.loads(invoke(path, "--sweep", "--tau", "0.7", "--json").out)
    assert found["taus"] == sorted([*DEFAULT_TAUS, 0.7])
    result = invoke(path, "--sweep")
    assert result.code == 0
    for text in ("→ 0", "→ ∞", "rules in effect", "leakage: none"):
        assert text in result.out


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--compare", "--sweep"], "different views"),
        (["--sweep", "--scheme", "uniform"], "has no temperature"),
    ],
)
def test_views_that_exclude_each_other_are_a_usage_error(
    path: Path, arguments: list[str], problem: str
) -> None:
    result = invoke(path, *arguments)
    assert result.code == 2
    assert problem in " ".join(result.err.split())


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--compare", "--scheme", "uniform"], "--compare shows every scheme"),
        (["--sweep", "--k", "3"], "--sweep has no number of rules"),
    ],
)
def test_an_option_without_effect_on_a_view_is_said(
    path: Path, arguments: list[str], problem: str
) -> None:
    result = invoke(path, *arguments)
    assert result.code == 0
    assert problem in result.err


@pytest.mark.parametrize("view", [[], ["--compare"], ["--sweep"]])
def test_an_incomplete_run_exits_3_in_every_view(
    study: Study, tmp_path: Path, view: list[str]
) -> None:
    copy = tmp_path / "study"
    shutil.copytree(study.path, copy)
    [shard] = copy.glob("ratings/*/shard-00001.*parquet")
    shard.unlink()
    result = invoke(copy, *view, "--json")
    assert result.code == 3
    assert json.loads(result.out)
    assert "1 of 3 shards" in result.err


# --- provenance -----------------------------------------------------------------------------------


def test_the_digest_of_files_is_that_of_their_sorted_digests(path: Path, tmp_path: Path) -> None:
    pq.write_table(ratings_table(ROWS[:4]), tmp_path / "a.parquet")
    pq.write_table(ratings_table(ROWS[4:]), tmp_path / "b.parquet")
    path.unlink()
    found = json.loads(invoke(tmp_path, "--json").out)["provenance"]
    digests = [
        hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()
        for name in ("a.parquet", "b.parquet")
    ]
    expected = hashlib.sha256("".join(f"{digest}\n" for digest in sorted(digests)).encode())
    assert found["ratings_sha256"] == expected.hexdigest()
    assert (found["num_ratings"], found["num_nulls"], found["num_pairs"]) == (16, 0, 4)
    assert (found["log_base"], found["tau"], found["run_key"]) == ("e", 2.0, None)


def test_a_run_is_recorded_with_its_digests(study: Study) -> None:
    found = json.loads(invoke(study.path, "--json").out)["provenance"]
    [run_dir] = list_runs(study.ratings_dir)
    identity = read_run(run_dir).identity
    assert found["run_key"] == run_dir.name
    assert found["data_sha256"] == identity["data_sha256"]
    assert found["rules_sha256"] == identity["rules_sha256"]
    assert found["judge"] == "scripted"
