"""What limits a verdict: sources that disagree, rare rules, missing ratings, forecasts, doubles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.stats import fisher_exact

from encore.analysis.analyze import analyze
from encore.analysis.rule_verdicts import RuleVerdict
from encore.analysis.statistics import rating_statistics
from encore.analysis.untied_accuracy import MAX_MORE_PAIRS, heterogeneity_p, more_pairs
from encore.cli.analysis_tables import answer_tables
from encore.warehouse import open_ratings, open_warehouse
from tests.worlds.ratings import table_of

# Suffixes: P pairs, R rules.

FULL = pytest.mark.full


def ratings_of(wins: int, losses: int, ties: int = 0, missing: int = 0) -> tuple[Any, Any]:
    """Return the ratings of one rule, chosen and rejected, shape [P, 1] each."""
    chosen = [0.8] * wins + [0.5] * losses + [0.5] * ties + [0.5] * missing
    rejected = [0.5] * wins + [0.8] * losses + [0.5] * ties + [np.nan] * missing
    return np.array(chosen)[:, None], np.array(rejected)[:, None]


def verdict_of(*counts: int, **options: Any) -> RuleVerdict:
    (row,) = analyze(table_of(*ratings_of(*counts)), **options).answers[-1].rows
    return row


def verdict_of_sources(**counts: tuple[int, ...]) -> RuleVerdict:
    """Return the verdict over sources with these wins, losses, ties and missing ratings."""
    parts = [ratings_of(*source_counts) for source_counts in counts.values()]
    chosen, rejected = (np.vstack(side) for side in zip(*parts, strict=True))
    sources = np.repeat([*counts], [len(part[0]) for part in parts])
    (row,) = analyze(table_of(chosen, rejected, source=sources.tolist())).answers[-1].rows
    return row


# --- sources --------------------------------------------------------------------------------------


def test_a_rule_that_is_right_in_one_source_and_wrong_in_another_is_not_trusted():
    row = verdict_of_sources(hh=(850, 150), pku=(210, 490))
    assert (row.verdict, row.untied.value) == ("sources differ", pytest.approx(1060 / 1700))
    assert row.reason.startswith("trust in hh (85.0 % of 1,000), against in pku (30.0 % of 700)")
    # Two sources: Fisher's exact test of the table of wins and losses.
    expected = fisher_exact([[850, 150], [210, 490]]).pvalue
    assert row.heterogeneity_p == pytest.approx(expected)


@pytest.mark.parametrize(
    ("first", "second", "verdict"),
    [
        ((850, 150), (700, 300), "trust"),  # they differ, and both are trusted
        ((850, 150), (500, 500), "sources differ"),  # undecided in the second
        ((150, 850), (300, 700), "against"),
        ((520, 480), (480, 520), "undecided"),  # 4 points apart by chance
        ((850, 150), (150, 850), "sources differ"),  # half of all are right
        ((600, 400), (9, 11), "trust"),  # 20 pairs are too few to differ: p = 0.18
    ],
)
def test_sources_differ_if_the_test_says_so_and_their_verdicts_do(first, second, verdict):
    assert verdict_of_sources(a=first, b=second).verdict == verdict


@pytest.mark.services
def test_equal_sources_are_seldom_said_to_differ():
    """Ten rules of one accuracy in three sources: one of them differs in at most 5 % of studies."""
    rng, num_false = np.random.default_rng(0), 0
    for _ in range(30):
        margin_PR = np.where(rng.random((150, 10)) < 0.6, 0.3, -0.3)
        chosen_PR = 0.5 + margin_PR
        sources = ["a", "b", "c"] * 50
        answer = analyze(table_of(chosen_PR, np.full((150, 10), 0.5), source=sources)).answers[-1]
        p_values = [row.heterogeneity_p for row in answer.rows]
        num_false += min(p for p in p_values if p is not None) < 0.05 / 10
    assert num_false <= 5  # 6 or more of 30 at 5 %: 0.3 %


def test_the_smallest_of_three_tests_is_counted_three_times():
    """Each source against the other two together, by Fisher's exact test."""
    row = verdict_of_sources(a=(60, 40), b=(50, 50), c=(45, 55))
    tables = ([[60, 40], [95, 105]], [[50, 50], [105, 95]], [[45, 55], [110, 90]])
    expected = 3 * min(fisher_exact(table).pvalue for table in tables)
    assert row.heterogeneity_p == pytest.approx(expected)


def test_one_source_has_no_test():
    assert verdict_of(60, 40).heterogeneity_p is None
    with open_warehouse(open_ratings(table_of(*ratings_of(60, 40)))) as warehouse:
        statistics = rating_statistics(warehouse)
    assert heterogeneity_p(statistics[:1], [0]) is None


# --- rare rules -----------------------------------------------------------------------------------


def test_a_rare_rule_that_is_right_is_trusted_and_says_how_often_it_speaks():
    """4,000 pairs, 212 untied, 201 of them right."""
    row = verdict_of(201, 11, 3788)
    assert row.verdict == "trust"
    assert "speaks on 5.3 % of pairs" in row.reason
    assert row.caveat == "it seldom speaks"
    against = verdict_of(11, 201, 3788)
    assert (against.verdict, against.caveat) == ("against", "it seldom speaks")
    assert "speaks on 5.3 % of pairs" in against.reason


def test_a_rare_rule_that_decides_nothing_says_little():
    assert verdict_of(110, 102, 3788).verdict == "says little"
    assert verdict_of(110, 102, 100).verdict == "undecided"


# --- missing ratings ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counts", "verdict", "caveat"),
    [
        # 240 of 352 are right; with 100 losses more 240 of 452, which is 53.1 % and undecided.
        ((240, 112, 0, 100), "trust", "100 pairs lack a rating: undecided if they counted against"),
        ((340, 12, 0, 10), "trust", ""),  # 340 of 362 is still far above
        ((12, 340, 0, 10), "against", ""),
        ((112, 240, 0, 100), "against", "undecided if they counted for it (46.9 %)"),
        ((26, 20, 0, 30), "undecided", "against if they counted against it"),
        ((26, 20, 0, 30), "undecided", "trust if they counted for it"),
        ((26, 20, 0, 1), "undecided", ""),
        ((9, 1, 0, 1), "trust", "1 pair lacks a rating: undecided if they counted against"),
    ],
)
def test_missing_ratings_that_could_change_the_verdict_are_named(counts, verdict, caveat):
    row = verdict_of(*counts)
    assert row.verdict == verdict
    assert caveat in row.caveat if caveat else row.caveat == ""


def test_a_caveat_is_shown_beside_the_verdict_at_80_columns(monkeypatch):
    monkeypatch.setattr("encore.core.terminal.out._width", 80)
    analysis = analyze(table_of(*ratings_of(240, 112, 0, 100)))
    tables = [table for table in answer_tables(analysis.answers) if hasattr(table, "columns")]
    reasons = " ".join(str(cell) for cell in tables[1].columns[1].cells)
    assert "100 pairs lack a rating" in reasons


# --- forecasts ------------------------------------------------------------------------------------


def test_a_forecast_is_a_range_and_ends_at_never():
    row = verdict_of(55, 45)
    assert row.num_more_pairs_high is None
    assert row.num_more_pairs is not None
    assert row.num_more_pairs_low is not None
    assert row.num_more_pairs_low < row.num_more_pairs
    assert row.remedy.startswith("between ")
    assert row.remedy.endswith(" more pairs and never (80 % chance)")
    assert "never at this estimate of 50 %" in verdict_of(50, 50).remedy


def test_no_number_above_a_million_is_named():
    row = verdict_of(50_010, 49_990)
    assert row.num_more_pairs is None
    assert str(MAX_MORE_PAIRS) not in row.remedy.replace(",", "")
    assert "never" in row.remedy


@pytest.mark.services
@pytest.mark.parametrize("accuracy", [0.55, *(pytest.param(a, marks=FULL) for a in (0.5, 0.65))])
@pytest.mark.parametrize("num_studies", [30, pytest.param(600, marks=FULL)])
def test_the_range_has_what_is_needed_in_80_percent_of_studies(accuracy, num_studies):
    """80 %: of 30 studies, 18 or fewer have a chance of 1 %; at 50 % nothing is ever enough."""
    rng, num_right, num_undecided = np.random.default_rng(1), 0, 0
    confidence = 0.95
    truth = _needed(accuracy, confidence)
    while num_undecided < num_studies:
        wins = int(rng.binomial(100, accuracy))
        with open_warehouse(open_ratings(table_of(*ratings_of(wins, 100 - wins)))) as warehouse:
            statistics = rating_statistics(warehouse)[-1]
        _, low, high = more_pairs(statistics, 0, confidence=confidence)
        num_undecided += 1
        low_end = np.inf if low is None else low
        high_end = np.inf if high is None else high
        num_right += low_end <= max(truth - 100, 1) <= high_end
    assert num_right / num_studies >= (0.77 if num_studies == 600 else 19 / 30)


def _needed(accuracy: float, confidence: float) -> float:
    """Return the pairs that decide with a chance of 80 %, by the normal approximation."""
    from scipy.stats import norm

    if accuracy == 0.5:
        return np.inf
    distance = abs(accuracy - 0.5)
    width = norm.ppf((1 + confidence) / 2) / 2
    width += norm.ppf(0.8) * np.sqrt(accuracy * (1 - accuracy))
    return float(np.ceil((width / distance) ** 2 + 1 / distance))


# --- doubles --------------------------------------------------------------------------------------


@pytest.mark.services
@pytest.mark.parametrize("correlation", [0.9, *(pytest.param(r, marks=FULL) for r in (0.5, 0.97))])
@pytest.mark.parametrize("num_studies", [30, pytest.param(600, marks=FULL)])
def test_the_interval_of_a_correlation_covers_it_and_decides_on_doubles(correlation, num_studies):
    """300 pairs; margins are normal. At 0.9, the threshold, a double is said in 2.5 %.

    Of 30 intervals, 24 or fewer cover with a chance of 0.3 %.
    """
    rng, num_covered, num_doubles = np.random.default_rng(2), 0, 0
    for _ in range(num_studies):
        first_P, noise_P = rng.standard_normal((2, 300))
        second_P = correlation * first_P + np.sqrt(1 - correlation**2) * noise_P
        margin_PR = np.stack([first_P, second_P], axis=1) / 12  # no margin beyond 1/2
        table = table_of(0.5 + margin_PR, np.full((300, 2), 0.5))
        with open_warehouse(open_ratings(table)) as warehouse:
            statistics = rating_statistics(warehouse)[-1]
        _, low_RR, high_RR = statistics.correlation_intervals()
        num_covered += low_RR[0, 1] <= correlation <= high_RR[0, 1]
        num_doubles += low_RR[0, 1] >= 0.9
    assert num_covered / num_studies >= (0.93 if num_studies == 600 else 25 / 30)
    share_of_doubles = {0.5: (0, 0), 0.9: (0, 0.06), 0.97: (0.95, 1)}[correlation]
    assert share_of_doubles[0] <= num_doubles / num_studies <= share_of_doubles[1] + 0.04


def test_equal_rules_have_a_correlation_of_1_without_width():
    rng = np.random.default_rng(0)
    chosen_P, rejected_P = rng.integers(0, 11, (2, 100)) / 10
    table = table_of(np.stack([chosen_P] * 2, axis=1), np.stack([rejected_P] * 2, axis=1))
    double = next(row for row in analyze(table).answers[-1].rows if row.verdict == "double")
    ends = (double.correlation, double.correlation_low, double.correlation_high)
    assert ends == (1.0, 1.0, 1.0)
