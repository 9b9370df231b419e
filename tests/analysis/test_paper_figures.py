"""Our numbers stand beside the paper's where the data are the same."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from encore.analysis.analyze import Analysis, analyze
from encore.analysis.paper_figures import paper_figures
from encore.data.rule_sets import load_rule_set
from tests.worlds.ratings import table_of

pytestmark = pytest.mark.services

FIGURES = paper_figures()


def analysis_of(
    *,
    sources: tuple[str, ...] = ("hh", "pku"),
    rule_ids: Sequence[str] = load_rule_set("encore-10").rule_ids,
    by_source: bool = True,
) -> Analysis:
    """Return the analysis of 40 pairs of each source; each rule has one level more."""
    shape = (2, 40 * len(sources), len(rule_ids))
    rating_2PR = np.random.default_rng(0).integers(0, 2 + np.arange(len(rule_ids)), shape) / 30
    table = table_of(*rating_2PR, rule_ids=rule_ids, source=sources * 40)
    return analyze(table, by_source=by_source)


def sources_by_setting(analysis: Analysis) -> dict[str, str]:
    """Return our source of each setting that has one."""
    return {row.setting: row.our_source for row in analysis.paper if row.our_source is not None}


def test_our_numbers_stand_beside_the_papers_for_its_sources():
    analysis = analysis_of()
    assert sources_by_setting(analysis) == {
        "HH": "hh",
        "PKU": "pku",
        "HH-PKU": "all",
        "HH-170K, 10 rules": "hh",
    }
    correlations = {(c.source, c.entropy, c.accuracy): c for c in analysis.correlation}
    for row in analysis.paper:
        if row.our_source is None:
            assert (row.our_value, row.our_half, row.our_untied) == (None, None, None)
            continue
        entropy = "differential" if row.quantity == "r, differential" else "discrete"
        name = "p_value" if row.quantity == "p, discrete" else "pearson_r"
        values = [
            getattr(correlations[row.our_source, entropy, policy], name)
            for policy in ("strict", "half", "untied")
        ]
        assert [row.our_value, row.our_half, row.our_untied] == values
        assert values[0] is not None


@pytest.mark.parametrize("sources", [("hh-like", "pku-like"), ("hh", "pku", "mine"), ("mine",)])
def test_other_data_are_not_compared(sources):
    analysis = analysis_of(sources=sources, by_source=False)
    assert sources_by_setting(analysis) == {}
    assert len(analysis.paper) == len(FIGURES)


def test_a_remark_states_that_as_many_rules_have_other_names():
    analysis = analysis_of(rule_ids=[f"my-rule-{k}" for k in range(10)])
    compared = [row for row in analysis.paper if row.our_source]
    assert compared
    assert all("other names" in row.remark for row in compared)
    assert not any("other names" in row.remark for row in analysis_of().paper)
