"""The figures show what was measured, and say in words what they cannot show."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.figure import Figure

from encore.report.chart import Chart, Missing
from encore.report.charts import CHARTS
from encore.report.charts.entropy_accuracy import entropy_accuracy
from encore.report.charts.scheme_weights import scheme_weights
from encore.report.charts.ties import ties
from encore.report.findings import MAX_DRAWN_SOURCES, Findings
from encore.report.gather import gather
from encore.report.palette import MUTED
from encore.report.words import number, percent
from tests.ratings_files import ratings_table
from tests.report.studies import some_ratings


def chart_of(name: str, findings: Findings) -> Chart:
    chart = CHARTS[name](findings)
    assert isinstance(chart, Chart), chart
    return chart


@pytest.mark.parametrize("name", CHARTS)
def test_every_figure_is_drawn_and_told(findings: Findings, name: str) -> None:
    chart = chart_of(name, findings)
    assert chart.name == name
    assert chart.title
    assert chart.caption.endswith(".")
    assert chart.panels
    assert chart.table.rows
    for row in chart.table.rows:
        assert len(row) == len(chart.table.columns)
    for panel in chart.panels:
        assert len(panel.alt) > 20
        assert panel.alt.endswith(".")


@pytest.mark.parametrize("name", CHARTS)
def test_every_axis_is_labelled(findings: Findings, name: str) -> None:
    for panel in chart_of(name, findings).panels:
        axes = Figure().add_subplot()
        panel.draw(axes)
        has_names_for_rows = not len(axes.get_yticks()) or name == "correlations"
        is_cells = name == "scheme-weights"
        assert axes.get_xlabel() or is_cells
        assert axes.get_ylabel() or has_names_for_rows


def test_histograms_have_one_panel_a_rule_with_shared_axes(findings: Findings) -> None:
    limits = set()
    chart = chart_of("rating-histograms", findings)
    for panel in chart.panels:
        axes = Figure().add_subplot()
        panel.draw(axes)
        limits.add((axes.get_xlim(), axes.get_ylim()))
    assert len(chart.panels) == 6
    assert len(limits) == 1


def test_bars_are_the_shares_of_ratings(findings: Findings) -> None:
    axes = Figure().add_subplot()
    chart_of("rating-histograms", findings).panels[2].draw(axes)
    assert not isinstance(findings.histograms, Missing)
    heights = [bar.get_height() for bar in axes.patches]
    assert heights == pytest.approx(findings.histograms[2].shares)
    assert sum(heights) == pytest.approx(1)


def test_the_fit_is_the_least_squares_line(findings: Findings) -> None:
    axes = Figure().add_subplot()
    chart_of("entropy-accuracy", findings).panels[0].draw(axes)
    entropy = [rule.entropy_nats for rule in findings.pooled]
    half = [rule.accuracy.half for rule in findings.pooled]
    slope, intercept = np.polyfit(entropy, half, 1)
    lines = [line.get_xydata() for line in axes.lines]
    edges = np.array(axes.get_xlim())
    expected = np.stack([edges, intercept + slope * edges], axis=1)
    assert any(line.shape == (2, 2) and np.allclose(line, expected) for line in lines)


def test_points_lie_at_entropy_and_accuracy(findings: Findings) -> None:
    chart = chart_of("entropy-accuracy", findings)
    for panel, policy in zip(chart.panels[:2], ("half", "untied"), strict=True):
        axes = Figure().add_subplot()
        panel.draw(axes)
        dots = {tuple(line.get_xydata()[0]) for line in axes.lines if line.get_marker() == "o"}
        assert dots == {
            (rule.entropy_nats, getattr(rule.accuracy, policy)) for rule in findings.pooled
        }


def test_half_and_untied_stand_side_by_side_for_every_source(findings: Findings) -> None:
    titles = [panel.title for panel in chart_of("entropy-accuracy", findings).panels]
    assert titles == [
        f"{source}: {words}"
        for source in ("all sources", "hh", "pku")
        for words in ("a tie counts half", "ties left out")
    ]


def test_tables_hold_the_statistics(findings: Findings) -> None:
    rows = chart_of("ties", findings).table.rows
    first = findings.pooled[0]
    assert rows[0][:5] == (
        "all sources",
        "0 · calm",
        "240",
        percent(first.tie_rate),
        percent(first.accuracy.half),
    )
    assert len(rows) == 3 * 6


def test_a_correlation_s_panel_has_r_and_its_null_band(findings: Findings) -> None:
    axes = Figure().add_subplot()
    chart_of("correlations", findings).panels[0].draw(axes)
    drawn = {
        round(float(line.get_xdata()[0]), 12)
        for line in axes.lines
        if line.get_marker() in "oD" and len(line.get_xdata()) == 1
    }
    r = {
        round(row.pearson_r, 12)
        for row in findings.analysis.correlation
        if row.source == "all" and row.pearson_r is not None
    }
    assert drawn == r


def test_wins_ties_and_losses_fill_the_bar(findings: Findings) -> None:
    axes = Figure().add_subplot()
    chart = ties(findings)
    assert isinstance(chart, Chart)
    chart.panels[0].draw(axes)
    for place, rule in enumerate(findings.pooled):
        bars = [bar for bar in axes.patches if round(bar.get_y() + bar.get_height() / 2) == place]
        assert [bar.get_width() for bar in bars] == pytest.approx(
            [rule.accuracy.strict, rule.tie_rate, 1 - rule.accuracy.inclusive]
        )


def test_weights_of_all_schemes_are_told(findings: Findings) -> None:
    chart = scheme_weights(findings)
    assert isinstance(chart, Chart)
    assert not isinstance(findings.comparison, Missing)
    row = findings.comparison.rows[0]
    assert row.vector.scheme == "encore"
    assert [cells[1] for cells in chart.table.rows] == [
        percent(weight, digits=2) for weight in row.vector.weights
    ]
    learns = {row.label for row in findings.comparison.rows if row.uses_labels}
    assert learns
    assert {name.removesuffix(" †") for name in chart.table.columns if "†" in name} == learns


def test_agreement_is_written_with_its_untied_pairs(findings: Findings) -> None:
    rows = chart_of("rule-agreement", findings).table.rows
    cosine = findings.agreement.cosine_RR[1, 0]
    assert rows[1][2] == number(cosine, digits=2)
    assert rows[0][2] == "1.00"


# --- what cannot be shown -------------------------------------------------------------------------


def test_one_rule_has_no_correlation_and_no_agreement() -> None:
    findings = gather(some_ratings(rule_ids=("alone",)))
    assert isinstance(CHARTS["correlations"](findings), Missing)
    assert isinstance(CHARTS["rule-agreement"](findings), Missing)
    assert isinstance(CHARTS["entropy-accuracy"](findings), Chart)


def test_responses_without_their_pair_have_histograms_only() -> None:
    rows = [
        (f"p{n}", "s", "chosen", rule, n / 10)
        for n in range(10)
        for rule in ("one", "two", "three")
    ]
    findings = gather(ratings_table(rows))
    for name in ("entropy-accuracy", "correlations", "ties", "rule-agreement", "convergence"):
        found = CHARTS[name](findings)
        assert isinstance(found, Missing), name
        assert found.reason.endswith(".")
    assert isinstance(CHARTS["rating-histograms"](findings), Chart)


def test_a_rule_without_a_rating_leaves_no_weights_and_says_so() -> None:
    rows = [
        (f"p{n}", "s", response, "one", n / 10)
        for n in range(10)
        for response in ("chosen", "rejected")
    ]
    findings = gather(ratings_table([*rows, ("p0", "s", "chosen", "silent", None)]))
    for name in ("scheme-weights", "scheme-accuracy", "tau-sweep", "left-out"):
        found = CHARTS[name](findings)
        assert isinstance(found, Missing)
        assert "rule silent" in found.reason.lower()


def test_ratings_of_nulls_only_have_no_figure_at_all() -> None:
    rows = [(f"p{n}", "s", "chosen", "one", None) for n in range(3)]
    findings = gather(ratings_table(rows))
    for name, make in CHARTS.items():
        assert isinstance(make(findings), Missing), name


def test_a_constant_rule_is_drawn(findings: Findings) -> None:
    constant = some_ratings(num_levels=2).to_pandas()
    constant.loc[constant["rule_id"] == "calm", "rating"] = 1.0
    found = gather(constant)
    for name, make in CHARTS.items():
        assert isinstance(make(found), Chart), name
        for panel in chart_of(name, found).panels:
            panel.draw(Figure().add_subplot())


def test_a_source_called_all_is_not_told_apart() -> None:
    findings = gather(some_ratings(sources=("all", "pku")))
    assert findings.sources == ("all",)
    assert any("not told apart" in note for note in findings.notes)


def test_of_many_sources_the_largest_are_drawn_and_all_are_told() -> None:
    sources = tuple(f"s{place:02d}" for place in range(10))
    findings = gather(some_ratings(num_pairs=300, sources=sources))
    assert len(findings.sources) == 11
    assert len(findings.drawn_sources) == MAX_DRAWN_SOURCES + 1
    chart = entropy_accuracy(findings)
    assert isinstance(chart, Chart)
    assert {row[0] for row in chart.table.rows} == {"all sources", *sources}


def test_a_single_source_is_not_told_twice() -> None:
    assert gather(some_ratings(sources=("hh",))).sources == ("all",)


def test_too_many_levels_are_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("encore.report.gather._MAX_LEVELS", 5)
    found = CHARTS["rating-histograms"](gather(some_ratings()))
    assert isinstance(found, Missing)
    assert "round the ratings" in found.reason


def test_a_nearly_constant_rule_does_not_flatten_the_others() -> None:
    # One rule with all of its ratings at one level, two with a quarter at each of four: the median
    # of the highest bars is 1/4, so the axis ends at twice that.
    rows = [
        (f"p{n}", "s", response, rule, 1.0 if rule == "always" else (n % 4) / 4)
        for n in range(8)
        for response in ("chosen", "rejected")
        for rule in ("always", "even", "odd")
    ]
    chart = chart_of("rating-histograms", gather(ratings_table(rows)))
    axes = Figure().add_subplot()
    chart.panels[0].draw(axes)
    assert axes.get_ylim()[1] == pytest.approx(0.5 * 1.04)
    assert [text.get_text() for text in axes.texts] == ["100 % ↑"]


def test_a_single_source_gives_all_its_name() -> None:
    findings = gather(some_ratings(sources=("hh",)))
    assert chart_of("ties", findings).panels[0].title == "hh"


def test_an_effect_that_pairs_cannot_tell_from_none_is_grey(findings: Findings) -> None:
    assert not isinstance(findings.left_out, Missing)
    axes = Figure().add_subplot()
    chart_of("left-out", findings).panels[0].draw(axes)
    dots = [line for line in axes.lines if line.get_marker() == "o"]
    for dot, row in zip(dots, findings.left_out.left_out, strict=True):
        assert row.change_low is not None
        assert row.change_high is not None
        holds_zero = row.change_low <= 0 <= row.change_high
        assert (dot.get_color() == MUTED) == holds_zero
