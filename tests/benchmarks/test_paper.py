"""The paper's tables as data, and what follows from them: each expected number is derived here."""

from __future__ import annotations

import json

import pytest
from scipy import stats

from encore.analysis.correlation import pearson_p_value
from encore.benchmarks.paper_tables import check_paper, paper_rows
from tests.golden.command_line import encore


def test_safety_is_weighted_by_numbers_of_pairs():
    # ENCORE: (136 · 91.9 + 100 · 98 + 100 · 100 + 154 · 98.1 + 250 · 72.4) / 740 = 88.53.
    encore = next(row for row in paper_rows() if row.method == "encore")
    assert encore.recomputed == pytest.approx(0.88522, abs=1e-5)
    assert encore.follows
    check = check_paper()
    assert sum(check["subset_counts"].values()) == 740
    assert [len(table["rows"]) for table in check["tables"]] == [13, 7, 5]


def test_p_follows_from_r_and_n_and_two_of_five_printed_ones_do_not():
    # Student's t with n - 2 degrees of freedom says the same.
    r, n = -0.84, 10
    t = abs(r) * ((n - 2) / (1 - r * r)) ** 0.5
    assert pearson_p_value(r, num_values=n) == pytest.approx(2 * stats.t(n - 2).sf(t))
    correlations = check_paper()["correlations"]
    follows = [row["follows"] for row in correlations]
    assert (follows.count(True), follows.count(False)) == (3, 2)
    for row in correlations:
        assert row["ci_low"] < row["r"] < row["ci_high"]
        assert row["p_low"] <= row["p_value"] <= row["p_high"]


@pytest.mark.services
def test_the_command_prints_tables_and_json():
    result = encore("paper")
    assert result.code == 0
    assert "22 of 25 rows of Safety follow." in result.out
    answer = encore("paper", "--json").json
    assert answer.items() >= json.loads(json.dumps(check_paper())).items()
    assert answer["theorem_on_ratings"] is None
