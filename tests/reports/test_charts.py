"""The figures show the measured values, or state the reason why there is no figure."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.text import Text

from encore.analysis.bootstrap import Estimate
from encore.core.number_text import number, percent
from encore.reports.figure_drawing import Chart, DataTable, Missing, Panel, draw_chart, label_points
from encore.reports.findings import MAX_DRAWN_SOURCES, Findings, gather
from encore.reports.rule_charts import correlation_table
from encore.reports.weight_charts import label_curve_chart
from encore.reports.write_report import CHARTS
from encore.weighting.label_curve import LabelCurve
from tests.reports.studies import some_ratings

pytestmark = pytest.mark.services

RULE_NAMES = [*enumerate(("calm", "fair", "kind", "mild", "neat", "open"), start=1)]


def chart_of(name: str, findings: Findings) -> Chart:
    _, make = CHARTS[name]
    chart = make(findings)
    assert isinstance(chart, Chart), chart
    return chart


def axes_of(panel: Panel):
    axes = Figure().add_subplot()
    panel.draw(axes)
    return axes


@pytest.mark.parametrize("name", CHARTS)
def test_every_figure_has_a_table_a_subtitle_and_labelled_axes(findings, name):
    chart = chart_of(name, findings)
    assert chart.table.rows
    assert {len(row) for row in chart.table.rows} == {len(chart.table.columns)}
    for panel in chart.panels:
        assert "rule" in panel.subtitle or "pair" in panel.subtitle or "level" in panel.subtitle
        axes = axes_of(panel)
        assert axes.get_xlabel()
        row_names = [text.get_text() for text in axes.get_yticklabels()]
        names = [[f"{n} · {r}" for n, r in RULE_NAMES], []]
        assert axes.get_ylabel() or name == "scheme-weights" or row_names in names


def test_the_curve_of_labels_has_a_point_for_each_number_and_two_lines_without_labels():
    estimates = [Estimate(value=half, low=half - 0.1, high=half + 0.1) for half in (0.6, 0.7)]
    curve = LabelCurve(
        num_labels=(10, 100),
        shrunk=tuple(estimates),
        encore=Estimate(value=0.65, low=0.6, high=0.7),
        uniform=Estimate(value=0.64, low=0.6, high=0.7),
        num_labels_to_beat=100,
        num_pairs=500,
        num_prompts=480,
        grouped_by="prompt",
    )
    chart = label_curve_chart(curve)
    assert isinstance(chart, Chart)
    fitted, encore, uniform = axes_of(chart.panels[0]).lines
    assert [*zip(*fitted.get_data(), strict=True)] == [(10, 0.6), (100, 0.7)]
    assert ({*encore.get_ydata()}, {*uniform.get_ydata()}) == ({0.65}, {0.64})
    assert label_curve_chart(Missing("no pairs")) == Missing("no pairs")


def test_bars_are_the_shares_of_ratings_in_bins_on_shared_axes(findings):
    limits = set()
    panels = chart_of("rating-histograms", findings).panels
    for panel, rating_P2 in zip(panels, findings.pairs.rating_2PR.T, strict=True):
        axes = axes_of(panel)
        middles = [bar.get_x() + bar.get_width() / 2 for bar in axes.patches]
        nearest = np.round(20 * rating_P2[np.isfinite(rating_P2)])
        expected = [np.mean(nearest == round(20 * middle)) for middle in middles]
        assert [bar.get_height() for bar in axes.patches] == pytest.approx(expected)
        assert sum(expected) == pytest.approx(1)
        limits.add((axes.get_xlim(), axes.get_ylim()))
    assert len(limits) == 1


def test_the_fit_is_the_least_squares_line_through_points_at_entropy_and_accuracy(findings):
    panels = chart_of("entropy-accuracy", findings).panels
    assert [panel.title for panel in panels] == [
        f"{source}: {policy}"
        for source in ("all sources", "hh", "pku")
        for policy in ("a tie counts half", "ties left out")
    ]
    for panel, policy in zip(panels, ("half", "untied"), strict=False):
        axes = axes_of(panel)
        entropy = [rule.entropy_nats for rule in findings.pooled]
        accuracy = [getattr(rule.accuracy, policy) for rule in findings.pooled]
        [dots] = [line.get_xydata() for line in axes.lines if line.get_marker() == "o"]
        assert dots.tolist() == [list(dot) for dot in zip(entropy, accuracy, strict=True)]
        assert [text.get_text() for text in axes.texts] == list("123456")
        slope, intercept = np.polyfit(entropy, accuracy, 1)
        [fit] = [line.get_xydata() for line in axes.lines if len(line.get_xydata()) == 3]
        np.testing.assert_allclose(fit[:, 1], intercept + slope * fit[:, 0])
        estimate = getattr(findings.intervals("all")[0], policy)
        expected = [estimate.low, estimate.high]
        assert axes.collections[1].get_segments()[0][:, 1].tolist() == pytest.approx(expected)


def test_labels_of_near_points_lie_on_no_point_and_no_other_label():
    figure = Figure(figsize=(295 / 72, 235 / 72))
    axes = figure.add_subplot()
    x_N = 0.5 + 0.02 * np.arange(10)
    y_N = 0.5 + 0.01 * np.tile([0, 1], 5)
    axes.set(xlim=(0, 1), ylim=(0, 1))
    label_points(axes, x_N, y_N, [str(number) for number in range(1, 11)])
    figure.draw_without_rendering()
    boxes = [Text.get_window_extent(label) for label in axes.texts]  # without the line to the point
    overlaps = [a for a, b in combinations(boxes, 2) if a.overlaps(b)]
    points = axes.transData.transform(np.column_stack([x_N, y_N]))
    assert len(boxes) == 10
    assert overlaps == []
    assert not [point for box in boxes for point in points if box.contains(*point)]


def test_the_hint_of_a_position_lies_there_on_the_picture():
    def draw(axes):
        axes.set(xlim=(0, 1), ylim=(0, 1))

    panel = Panel("t", "s", draw, {(0.0, 0.0): "origin", (1.0, 0.0): "right", (0.0, 1.0): "top"})
    [drawn] = draw_chart(Chart([panel], DataTable(("a",), (("1",),))), title="T").panels
    origin, right, top = drawn.hints
    # Ticks and labels stand left of the origin and below it, so the axes fill most of the picture.
    assert 0 < origin[0] == top[0] < 20 < 90 < right[0] < 100
    assert 0 < top[1] < 20 < 80 < origin[1] == right[1] < 100


def test_the_table_of_correlations_has_r_of_every_policy(findings):
    r = [number(row.pearson_r) for row in findings.analysis.correlation]
    assert sorted(row[4] for row in correlation_table(findings).rows) == sorted(r)


def test_wins_ties_and_losses_fill_the_bar_and_stand_in_the_table(findings):
    chart = chart_of("ties", findings)
    axes = axes_of(chart.panels[0])
    for row, rule in enumerate(findings.pooled):
        bars = [bar for bar in axes.patches if round(bar.get_y() + bar.get_height() / 2) == row]
        assert [bar.get_width() for bar in bars] == pytest.approx(
            [rule.accuracy.strict, rule.tie_rate, 1 - rule.accuracy.inclusive]
        )
    first = findings.pooled[0]
    assert chart.table.rows[0][:2] == ("all sources", "1 · calm")
    assert chart.table.rows[0][4] == percent(first.accuracy.half)
    assert chart.table.rows[0][-2:] == (percent(first.tie_rate), "240")
    assert len(chart.table.rows) == 3 * 6


def test_agreement_is_the_cosine_of_signs(findings):
    table = some_ratings(rule_ids=("a", "b"), num_pairs=40)
    rating_P22 = np.asarray(table["rating"]).reshape(40, 2, 2)  # pair, response, rule
    a, b = np.sign(rating_P22[:, 0] - rating_P22[:, 1]).T
    expected = number((a @ b) / math.sqrt((a @ a) * (b @ b)), digits=2)
    chart = chart_of("rule-agreement", gather(table))
    assert [row[1:] for row in chart.table.rows] == [("1.00", expected), (expected, "1.00")]
    cells = {text.get_position(): text.get_text() for text in axes_of(chart.panels[0]).texts}
    assert cells == {(0, 0): "1.00", (0, 1): expected, (1, 0): expected, (1, 1): "1.00"}


def test_schemes_that_learn_from_labels_are_marked_and_drawn_at_their_accuracy(findings):
    assert not isinstance(findings.comparison, Missing)
    assert "bradley-terry †" in chart_of("scheme-weights", findings).table.columns
    chart = chart_of("scheme-accuracy", findings)
    names = [row[0] for row in chart.table.rows]
    assert "encore (τ 2)" in names
    axes = axes_of(chart.panels[0])
    rows = findings.comparison.rows
    dots = axes.collections[1]
    assert dots.get_offsets()[: len(rows), 0].tolist() == [row.accuracy.half for row in rows]
    is_orange = (dots.get_facecolors()[: len(rows)] == to_rgba("C1")).all(axis=1).tolist()
    learnt = [name.endswith("†") for name in names[: len(rows)]]
    assert is_orange == learnt == [row.uses_labels for row in rows]


def test_a_tiny_weight_is_not_written_as_zero_and_its_cell_is_pale(findings):
    """Orange is for less than an equal share, at most 0.6 of it; grey is for none at all."""
    comparison = findings.comparison
    assert not isinstance(comparison, Missing)
    row = comparison.rows[0]
    tiny = replace(row, vector=replace(row.vector, weights=(0.0002, 0.9998, 0.0, 0.0, 0.0, 0.0)))
    changed = replace(findings, comparison=replace(comparison, rows=(tiny,)))
    axes = axes_of(chart_of("scheme-weights", changed).panels[0])
    cells = [text.get_text() for text in axes.texts]
    assert cells == ["<0.1", "100.0", "0.0", "0.0", "0.0", "0.0"]
    fold_R = np.ma.filled(axes.collections[0].get_array(), np.nan).ravel()
    assert fold_R[0] == -0.6
    assert fold_R[1] == 1
    assert np.isnan(fold_R[2:]).all()  # grey


def test_many_sources_are_listed_but_only_all_together_are_drawn():
    sources = tuple(f"s{index}" for index in range(MAX_DRAWN_SOURCES))
    findings = gather(some_ratings(sources=sources, rule_ids=("a", "b", "c"), num_pairs=80))
    assert findings.drawn_sources == ("all",)
    assert findings.sources == ("all", *sources)


def test_sources_are_pooled_with_a_note_if_one_is_called_all():
    findings = gather(some_ratings(sources=("hh", "all"), rule_ids=("a", "b", "c"), num_pairs=80))
    assert findings.sources == ("all",)
    assert any("told apart" in note for note in findings.notes)


def test_a_single_source_is_shown_once():
    findings = gather(some_ratings(sources=("hh",), rule_ids=("a", "b", "c"), null_share=0.05))
    assert findings.sources == ("all",)
    assert findings.notes
    assert not [note for note in findings.notes if note.startswith("Source hh")]
    titles = [panel.title for panel in chart_of("entropy-accuracy", findings).panels]
    assert titles == ["hh: a tie counts half", "hh: ties left out"]
    assert {row[0] for row in chart_of("ties", findings).table.rows} == {"hh"}


@pytest.mark.parametrize(
    ("names", "ratings", "reason"),
    [
        (["rule-agreement"], some_ratings(rule_ids=("a",)), "No two rules"),
        (["rating-histograms"], some_ratings(null_share=1.0), "not null"),
        (["ties", "entropy-accuracy"], some_ratings(null_share=1.0), "No pair has both"),
        (["scheme-weights"], some_ratings(null_share=1.0), "rating"),
    ],
)
def test_a_missing_figure_has_a_reason(names, ratings, reason):
    findings = gather(ratings)
    for name in names:
        missing = CHARTS[name][1](findings)
        assert isinstance(missing, Missing)
        assert reason in missing.reason


def test_equal_data_give_equal_drawings_and_a_mark_is_in_the_file():
    panel = Panel("t", "s", lambda axes: axes.plot([0, 1]))
    chart = Chart((panel, panel, panel), DataTable(("a",), (("1",),)))
    first, second = draw_chart(chart, title="T"), draw_chart(chart, title="T")
    assert (first.files, first.panels) == (second.files, second.panels)
    without_files = draw_chart(chart, title="T", formats=())
    assert (without_files.files, without_files.panels) == ({}, first.panels)
    assert first.files["png"].startswith(b"\x89PNG")
    assert b"SYNTHETIC" in draw_chart(chart, title="T", mark="SYNTHETIC").files["svg"]
