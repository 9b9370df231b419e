"""The paper's tables as data, and what follows from them: each expected number is derived here."""

from __future__ import annotations

import json
from fractions import Fraction

import pytest
from scipy import stats

from encore.benchmarks.paper_check import check_paper, p_fits, p_of_r, pairs_right, r_of_p
from encore.benchmarks.paper_tables import paper_row, paper_tables, subset_counts
from encore.cli.paper import paper
from tests.cli.invoking import Command

invoke = Command(paper)


def test_the_tables_are_the_papers():
    sizes = {table.name: len(table.rows) for table in paper_tables()}
    assert sizes == {"main": 13, "fsfairx": 7, "selection": 5}
    assert sum(subset_counts().values()) == 740
    assert all(list(row.scores) == list(subset_counts()) for t in paper_tables() for row in t.rows)


def test_safety_is_weighted_by_numbers_of_pairs():
    # ENCORE: (136 · 91.9 + 100 · 98 + 100 · 100 + 154 · 98.1 + 250 · 72.4) / 740 = 88.53.
    encore = paper_row("main", "encore")
    assert encore.recomputed_safety == pytest.approx(88.522, abs=0.001)
    assert encore.follows
    off = [row.title for table in paper_tables() for row in table.rows if not row.follows]
    assert len(off) == 3


@pytest.mark.parametrize(
    ("method", "unit", "subset", "right"),
    [
        ("encore", Fraction(1), "donotanswer", Fraction(125)),  # 125/136 = 91.91 %
        ("encore", Fraction(1), "xstest-should-refuse", Fraction(151)),  # 98.05 %
        ("judge-llama3.1-8b", Fraction(1, 2), "donotanswer", Fraction(127, 2)),  # 46.69 %
        ("judge-llama3.1-8b", Fraction(1), "donotanswer", None),  # 63: 46.3, 64: 47.1
    ],
)
def test_a_percentage_stands_for_a_number_of_pairs(method, unit, subset, right):
    assert pairs_right(paper_row("main", method), unit=unit)[subset] == right


def test_p_follows_from_r_and_n():
    # Student's t with n - 2 degrees of freedom says the same.
    r, n = -0.84, 10
    t = abs(r) * ((n - 2) / (1 - r * r)) ** 0.5
    assert p_of_r(r, num_rules=n) == pytest.approx(2 * stats.t(n - 2).sf(t))
    assert r_of_p(p_of_r(r, num_rules=n), num_rules=n) == pytest.approx(0.84)
    assert p_fits(r, num_rules=n, p=2e-3)
    assert not p_fits(r, num_rules=n, p=2e-2)


def test_two_of_five_printed_p_values_do_not_follow():
    found = check_paper()["correlations"]
    assert [row["follows"] for row in found].count(False) == 2
    for row in found:
        assert row["ci_low"] < row["r"] < row["ci_high"]
        assert row["p_low"] <= row["p_value"] <= row["p_high"]
        assert (row["same_p_elsewhere"] != []) == (row["follows"] is False)


def test_the_command_prints_tables_and_json():
    shown = invoke()
    assert shown.exit_code == 0
    assert "22 of 25 rows of Safety follow." in shown.stdout
    assert json.loads(invoke("--json").stdout) == json.loads(json.dumps(check_paper()))
