"""`encore weights`: its JSON, its table, its notes."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from encore.weighting.scheme_comparison import DEFAULT_TAUS
from tests.golden.command_line import encore
from tests.worlds.ratings import ratings_table

pytestmark = pytest.mark.services

# Rule "two" has two levels, half each (H = ln 2); rule "one" is constant (H = 0).
ROWS = [
    (f"p{i}", "s", response, rule, rating)
    for i in range(4)
    for response, two in (("chosen", 1.0), ("rejected", 0.0))
    for rule, rating in (("one", 0.5), ("two", two))
]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "r.parquet"
    pq.write_table(ratings_table(ROWS), path)
    return path


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--sweep", "--scheme", "uniform"], "has no temperature"),
        (["--scheme", "uniform", "--seed", "3"], "scheme uniform has no use for --seed 3"),
        (["--scheme", "encore", "--k", "3"], "scheme encore has no use for --k 3"),
        (["--scheme", "random", "--rule", "one"], "scheme random has no use for --rule one"),
        (["--scheme", "top-k", "--k", "3"], "--k 3: there are only 2 rules"),
        (["--compare", "--scheme", "uniform"], "--compare has no use for --scheme uniform"),
        (["--sweep", "--k", "3"], "--sweep has no use for --k 3"),
    ],
)
def test_a_warning_names_an_option_without_effect(path, arguments, problem):
    finished = encore("weights", path, *arguments)
    assert finished.code == (2 if "temperature" in problem else 0)
    assert problem in " ".join(finished.err.split())


def test_tables_show_every_scheme_and_temperature(path):
    finished = encore("weights", path)
    assert "rule one is constant" in finished.err
    rows = [line.split() for line in finished.out.splitlines()]
    [cells] = [cells for cells in rows if cells[:1] == ["1"] and len(cells) == 7]
    assert cells[2] == "0.0000"  # its effective weight
    finished = encore("weights", path, "--scheme", "bradley-terry")
    # Rule "two" is right in all four pairs, whichever are held out.
    for text in ("leakage: labels", "on held-out pairs: half 100.0%"):
        assert text in finished.out
    assert "grouped by pair_id" in finished.err
    finished = encore("weights", path, "--compare")
    for text in ("leakage", "encore (τ 2)", "inverse-sd", "labels", "random-k", "1,000"):
        assert text in finished.out
    assert "single is the rule of lowest entropy" in finished.err
    assert "rule one is constant" in finished.err
    swept = encore("weights", path, "--sweep", "--tau", "0.7", "--json").json
    assert swept["taus"] == sorted([*DEFAULT_TAUS, 0.7])
    finished = encore("weights", path, "--sweep")
    for text in ("→ 0", "→ ∞", "largest weight", "leakage: none"):
        assert text in finished.out


def test_provenance_has_counts_and_one_digest_of_all_files(tmp_path):
    pq.write_table(ratings_table(ROWS[:4]), tmp_path / "a.parquet")
    pq.write_table(ratings_table(ROWS[4:]), tmp_path / "b.parquet")
    provenance = encore("weights", tmp_path, "--json").json["provenance"]
    files = (tmp_path / "a.parquet", tmp_path / "b.parquet")
    digests = sorted(hashlib.sha256(path.read_bytes()).hexdigest() for path in files)
    lines = "".join(f"{digest}\n" for digest in digests)
    assert provenance["ratings_sha256"] == hashlib.sha256(lines.encode()).hexdigest()
    numbers = [provenance[name] for name in ("num_ratings", "num_nulls", "num_pairs")]
    assert numbers == [16, 0, 4]
