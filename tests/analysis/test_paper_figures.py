"""The paper's numbers: as it prints them, where it contradicts itself, and ours beside them."""

from __future__ import annotations

import re

import numpy as np
import pytest

from encore.analysis.analyze import Analysis, analyze
from encore.analysis.correlation import pearson_p_value
from encore.analysis.paper_figures import paper_figures, paper_settings
from encore.data.rules import load_rule_set
from tests.ratings_files import ratings_table

FIGURES = paper_figures()
NUM_RULES = {name: setting.num_rules for name, setting in paper_settings().items()}


def analysis_of(
    *, sources: tuple[str, ...] = ("hh", "pku"), rule_set: str = "encore-10", by_source: bool = True
) -> Analysis:
    rng = np.random.default_rng(0)
    rows = [
        (f"p{i}", source, response, rule_id, float(rng.integers(0, k + 2)) / 30)
        for source in sources
        for k, rule_id in enumerate(load_rule_set(rule_set).rule_ids)
        for i in range(40)
        for response in ("chosen", "rejected")
    ]
    return analyze(ratings_table(rows), by_source=by_source)


def ours(analysis: Analysis) -> dict[str, str]:
    """Setting -> our source, of settings that have one."""
    return {row.setting: row.our_source for row in analysis.paper if row.our_source is not None}


def test_the_five_settings_have_discrete_and_differential_values() -> None:
    # Table 3 of the paper, row by row.
    names = ("HH", "PKU", "HH-PKU", "HH-170K, 10 rules", "HH-170K, 20 rules")
    table = {
        "r, discrete": (-0.87, -0.96, -0.93, -0.94, -0.89),
        "r, differential": (-0.66, -0.76, -0.76, -0.93, -0.77),
    }
    printed = {(figure.setting, figure.quantity, figure.value) for figure in FIGURES}
    assert {figure.setting for figure in FIGURES} == set(names) == set(NUM_RULES)
    for quantity, values in table.items():
        assert {(n, quantity, v) for n, v in zip(names, values, strict=True)} <= printed


def test_a_p_that_does_not_follow_from_its_r_carries_the_one_that_does() -> None:
    r_of = {f.setting: f.value for f in FIGURES if f.quantity == "r, discrete"}
    r_of["HH"] = -0.84  # the p stands beside the figure's r
    for figure in FIGURES:
        if figure.quantity != "p, discrete":
            continue
        n = NUM_RULES[figure.setting]
        r = r_of[figure.setting]
        # What r could have been before it was rounded to two digits.
        low, high = (pearson_p_value(r + d, num_values=n) for d in (-0.005, 0.005))
        # p itself is printed with one digit.
        half_digit = 0.5 * 10 ** np.floor(np.log10(figure.value))
        fits = low - half_digit <= figure.value <= high + half_digit
        assert fits == (figure.remark == ""), figure
        if not fits:
            (stated,) = re.findall(r"p = (\S+)$", figure.remark)
            assert f"{pearson_p_value(r, num_values=n):.1e}" == stated


def test_ours_stand_beside_them_where_the_sources_are_the_papers() -> None:
    analysis = analysis_of()
    assert ours(analysis) == {
        "HH": "hh",
        "PKU": "pku",
        "HH-PKU": "all",
        "HH-170K, 10 rules": "hh",
    }
    found = {(c.source, c.entropy, c.accuracy): c for c in analysis.correlation}
    for row in analysis.paper:
        if row.our_source is None:
            assert (row.our_value, row.our_half, row.our_untied) == (None, None, None)
            continue
        entropy = "differential" if row.quantity == "r, differential" else "discrete"
        name = "p_value" if row.quantity == "p, discrete" else "pearson_r"
        values = [
            getattr(found[row.our_source, entropy, policy], name)
            for policy in ("strict", "half", "untied")
        ]
        assert [row.our_value, row.our_half, row.our_untied] == values
        assert values[0] is not None


@pytest.mark.parametrize("sources", [("hh-like", "pku-like"), ("hh", "pku", "mine"), ("mine",)])
def test_other_data_are_not_compared(sources: tuple[str, ...]) -> None:
    analysis = analysis_of(sources=sources, by_source=False)
    assert ours(analysis) == {}
    assert len(analysis.paper) == len(FIGURES)


def test_other_rules_of_the_same_number_are_said_to_be_others() -> None:
    rows = [
        (f"p{i}", "hh", response, f"my-rule-{k}", ((i * (k + 1)) % 7) / 7)
        for k in range(10)
        for i in range(30)
        for response in ("chosen", "rejected")
    ]
    compared = [row for row in analyze(ratings_table(rows)).paper if row.our_source]
    assert compared
    assert all("other names" in row.remark for row in compared)
    assert not any("other names" in row.remark for row in analysis_of().paper)
