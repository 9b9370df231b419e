"""An analysis shows its answer in a terminal, in a notebook and as a figure."""

from __future__ import annotations

import sys
from html import escape

import numpy as np
import pytest

from encore.analysis.analyze import Analysis, analyze
from encore.core.errors import EncoreError
from encore.core.record_table import RecordTable
from encore.weighting.weigh import weights
from tests.worlds.ratings import table_of


def _analysis(num_rules: int = 12) -> Analysis:
    """Analyze 100 pairs: the first rule agrees with people on all of them, the others on half."""
    chosen_PR, rejected_PR = np.random.default_rng(1).integers(0, 11, (2, 100, num_rules)) / 10
    chosen_PR[:, 0], rejected_PR[:, 0] = 0.9, 0.1
    rule_ids = ["<b>sure</b>", *(f"rule-{'long-' * 8}{i}" for i in range(1, num_rules))]
    return analyze(table_of(chosen_PR, rejected_PR, rule_ids=rule_ids), by_source=True)


def test_a_terminal_shows_a_dozen_lines_of_80_columns():
    text = repr(_analysis())
    lines = text.splitlines()
    assert (
        lines[0] == "table: 12 rules, 2,400 ratings, 100 pairs, taken as independent (no prompt_id)"
    )
    # A line above, a header, ten rules, the number of the others, and a sentence.
    assert len(lines) == 14
    assert lines[-2] == "and 2 more: analysis.answers[-1].rows"
    assert max(map(len, lines[:-1])) <= 80
    # Ranked first; all 100 pairs are untied, so the accuracy is 100 %.
    assert lines[2].startswith("trust          1 <b>sure</b>")
    assert "100.0 %" in lines[2]


def test_a_notebook_shows_every_rule_with_its_reason_and_names_stay_text():
    analysis = _analysis()
    page = analysis._repr_html_()
    assert "<b>sure" not in page
    assert "<td>1 &lt;b&gt;sure&lt;/b&gt;</td>" in page
    assert all(f"<td>{escape(row.reason)}</td>" in page for row in analysis.answers[-1].rows)
    assert "<td>&lt;b&gt;sure&lt;/b&gt;</td>" in analysis.rules._repr_html_()


def test_rows_of_results_are_tuples_and_tables():
    analysis = _analysis(3)
    assert isinstance(analysis.rules, tuple)
    frame = analysis.rules.to_pandas()
    assert frame["accuracy_untied"].tolist() == [rule.accuracy.untied for rule in analysis.rules]
    assert len(frame) == 6  # three rules in one source and in all together
    interval = analysis.intervals.to_arrow().to_pylist()[0]
    # All of 100 pairs: the exact interval begins where 100 of 100 has a chance of 2.5 %.
    assert interval["untied_low"] == pytest.approx(0.025 ** (1 / 100))
    assert interval["untied_value"] == 1.0
    assert analysis.correlation.to_pandas()["accuracy"].tolist()[:2] == ["half", "strict"]
    assert RecordTable(()).to_arrow().num_rows == 0


def test_weights_are_asked_by_rule():
    vector = weights(_analysis(3))  # an analysis in place of its ratings
    assert vector["<b>sure</b>"] == vector.weights[vector.rule_ids.index("<b>sure</b>")]
    assert [row["weight"] for row in vector.rows] == list(vector.weights)
    with pytest.raises(KeyError, match="no weight here; did you mean <b>sure</b>"):
        vector["<b>sure<b>"]


def test_a_figure_needs_no_display_and_matplotlib_alone(monkeypatch):
    monkeypatch.delenv("DISPLAY", raising=False)
    analysis = _analysis(3)
    figure = analysis.plot()
    (axes,) = figure.axes
    labels = [tick.get_text() for tick in axes.get_yticklabels()]
    assert labels == [f"{row.number} {row.rule_id}" for row in analysis.answers[-1].rows]
    # The interval and the value of the first rule: 100 % of 100 untied pairs.
    assert list(axes.lines[1].get_xdata()) == [1.0]
    assert figure._repr_png_().startswith(b"\x89PNG")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(EncoreError, match=r"pip install .*\[report\]'"):
        analysis.plot()
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(EncoreError, match="to_arrow"):
        analysis.rules.to_pandas()
