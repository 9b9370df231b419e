"""Verdicts on rules: what each one needs, how often one is false, and what a number promises."""

from __future__ import annotations

import itertools
import re
from dataclasses import astuple
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from encore.analysis.analyze import analyze
from encore.analysis.answer_options import AnswerOptions
from encore.analysis.bootstrap import Estimate
from encore.analysis.rule_verdicts import RuleAnswer, RuleVerdict, rule_answer
from encore.analysis.share_intervals import exact_interval
from encore.analysis.statistics import rating_statistics
from encore.cli.analysis_tables import answer_tables
from encore.warehouse import open_ratings, open_warehouse
from tests.golden.command_line import encore
from tests.reference import pairs_of, rows_of
from tests.worlds.ratings import random_table, statistics_of_margins, table_of

# Suffixes: P pairs, R rules.

FULL = pytest.mark.full


def answer_of(margin_PR: Any, **options: float) -> RuleAnswer:
    """Return the answer for rules with these margins; every rule has the same entropy."""
    statistics = statistics_of_margins(np.asarray(margin_PR, dtype=np.float64))
    numbers = {rule.rule_id: number for number, rule in enumerate(statistics.rules, start=1)}
    return rule_answer(statistics, rule_numbers=numbers, options=AnswerOptions(**options))


def first_rule(answer: RuleAnswer) -> RuleVerdict:
    return next(row for row in answer.rows if row.number == 1)


def outcomes(wins: int, losses: int, ties: int = 0) -> list[list[float]]:
    """Return the margins of one rule that wins, loses and ties so often."""
    return [[1.0]] * wins + [[-1.0]] * losses + [[0.0]] * ties


def contains(interval: Estimate, share: float) -> bool:
    _, low, high = astuple(interval)
    return bool(low <= share <= high)


# --- the five verdicts ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_rules", "wins", "losses", "ties", "verdict"),
    [
        # Of 10 coins 9 or more are heads in 11 of 1,024 cases: 1.1 %, below 2.5 %.
        (1, 9, 1, 0, "trust"),
        (1, 1, 9, 0, "against"),
        (1, 8, 2, 0, "undecided"),  # 8 or more: 5.5 %
        (1, 9, 1, 80, "trust"),  # ties are left out
        (1, 9, 1, 90, "trust"),  # however many they are
        (1, 8, 2, 90, "says little"),  # 90 % ties are the threshold, if the interval is undecided
        (1, 8, 2, 89, "undecided"),
        (10, 9, 1, 0, "undecided"),  # one of ten rules needs less than 2.5 % / 10
        (10, 10, 0, 0, "trust"),  # all 10: 0.1 %
    ],
)
def test_the_verdict_follows_from_the_exact_binomial(num_rules, wins, losses, ties, verdict):
    tied_PR = np.zeros((wins + losses + ties, num_rules - 1))
    margin_PR = np.hstack([outcomes(wins, losses, ties), tied_PR])
    assert first_rule(answer_of(margin_PR)).verdict == verdict


def test_a_rule_without_a_fully_rated_pair_is_undecided():
    table = table_of([[0.0], [1.0]], [[np.nan], [np.nan]])
    (row,) = analyze(table).answers[-1].rows
    assert (row.verdict, row.num_more_pairs, row.num_missing_pairs) == ("undecided", None, 2)
    assert row.reason == "no pair has both responses rated"


def test_a_constant_rule_and_a_threshold_decide_who_says_little():
    (row,) = analyze(table_of([[0.5]] * 30, [[0.5]] * 30)).answers[-1].rows
    assert (row.verdict, row.tie_rate, row.num_untied_pairs) == ("says little", 1.0, 0)
    assert row.reason == "30 ties in 30 pairs; 100.0 % of its ratings are 0.500"
    margins = outcomes(30, 20, 50)
    assert first_rule(answer_of(margins, max_tie_rate=0.51)).verdict == "undecided"
    assert first_rule(answer_of(margins, max_tie_rate=0.5)).verdict == "says little"


def test_the_less_certain_of_two_like_rules_is_the_double():
    """Rule 1 is rule 2, but for two margins of 200: r = (198 - 2) / 200 = 0.98.

    On Fisher's scale its error is 0.0140 / (1 - 0.98²) = 0.355, the share of differing pairs being
    1 % of 200, its error 0.7 %, and r changes twice as much. So its interval begins near
    tanh(atanh(0.98) - 2.02 · 0.355) = 0.92.
    """
    first_P = np.repeat([1.0, -1.0], [180, 20])
    second_P = np.where(np.arange(200) % 100 == 0, -first_P, first_P)
    answer = answer_of(np.stack([second_P, first_P, -first_P], axis=1))
    kept, double, opposite = answer.rows
    _, table, *_ = answer_tables([answer])
    assert "double of 2" in [*table.columns[2].cells]
    assert (double.number, double.verdict, double.double_of) == (1, "double", "rule-01")
    assert double.correlation == pytest.approx(0.98)
    assert double.correlation_low == pytest.approx(0.92, abs=0.01)
    assert "says what rule 2 says (correlation 0.98, 0.92 to 1.00)" in double.reason
    assert "by itself: trust" in double.reason
    assert (kept.verdict, opposite.verdict) == ("trust", "against")
    stricter = answer_of(np.stack([second_P, first_P], axis=1), double_correlation=0.95)
    assert [row.verdict for row in stricter.rows] == ["trust", "trust"]
    assert "may say what rule" in stricter.rows[1].caveat  # 0.98 is above, 0.92 below
    few = answer_of(np.ones((19, 2)))  # at least 20 untied pairs make a double
    assert [row.verdict for row in few.rows] == ["trust", "trust"]


@pytest.mark.parametrize("seed", range(3))
def test_rules_correlate_within_pairs_as_numpy_says(seed):
    """Ratings less their pair's mean, over pairs that both rules rated fully."""
    table = random_table(np.random.default_rng(500 + seed), max_rows=3000)
    with open_warehouse(open_ratings(table)) as warehouse:
        statistics = rating_statistics(warehouse)[-1]
    pairs = pairs_of(rows_of(table))
    row_of_pair = {key: row for row, key in enumerate(dict.fromkeys(key[:2] for key in pairs))}
    column_of_rule = {rule.rule_id: column for column, rule in enumerate(statistics.rules)}
    margin_PR = np.full((len(row_of_pair), len(column_of_rule)), np.nan)
    for (*pair_key, rule_id), (chosen, rejected) in pairs.items():
        if chosen is not None and rejected is not None:
            margin_PR[row_of_pair[tuple(pair_key)], column_of_rule[rule_id]] = chosen - rejected
    # The two ratings of a pair, less their mean. Pandas takes the pairs that both rules have.
    deviations = pd.DataFrame(np.concatenate([margin_PR / 2, -margin_PR / 2]))
    np.testing.assert_allclose(statistics.correlation_RR, deviations.corr(), atol=1e-9)


# --- weights and words ----------------------------------------------------------------------------


def test_weights_that_are_nearly_equal_are_not_said_to_disagree():
    # Both rules have one entropy, so both weights are the equal share of 0.5.
    answer = answer_of([[1, -1]] * 40)
    assert [row.verdict for row in answer.rows] == ["trust", "against"]
    assert "within 5 % of an equal share" in answer.summary[1]
    assert "disagree" not in " ".join(answer.summary)


def test_a_rule_against_people_with_a_large_weight_is_named():
    """Rule 2 has three levels and is wrong; rule 1 has many levels and is right."""
    chosen_P = np.repeat([0.75, 0.25], [30, 10])
    spread_P = np.linspace(0, 0.2, 40)
    chosen_PR = np.stack([chosen_P + spread_P, 1 - chosen_P], axis=1)
    rejected_PR = np.stack([0.5 + spread_P, np.full(40, 0.5)], axis=1)
    answer = analyze(table_of(chosen_PR, rejected_PR)).answers[-1]
    trusted, against = sorted(answer.rows, key=lambda row: row.number)
    assert (trusted.verdict, against.verdict) == ("trust", "against")
    assert [row.number for row in answer.rows] == [1, 2]
    assert (against.weight or 0) > 0.5 > (trusted.weight or 1)
    assert f"share (0.500) to rule 2 (against, {against.weight:.3f})." in answer.summary[1]
    assert f"share (0.500) to rule 1 (trust, {trusted.weight:.3f})." in answer.summary[2]
    assert answer.summary[0] == "2 rules: 1 trust, 1 against."


def test_an_estimate_of_half_names_no_number_of_pairs():
    row = first_rule(answer_of(outcomes(20, 20, 10)))
    assert row.num_more_pairs is None
    assert row.num_more_pairs_high is None
    assert "never at this estimate of 50 %" in row.remedy


def test_the_answer_of_all_sources_is_the_first_table_at_80_columns(tmp_path, monkeypatch):
    monkeypatch.setattr("encore.core.terminal.out._width", 80)
    rng = np.random.default_rng(0)
    chosen_PR, rejected_PR = rng.integers(0, 11, size=(2, 60, 4)) / 10
    sources = ["a", "b", "c"] * 20
    pq.write_table(table_of(chosen_PR, rejected_PR, source=sources), tmp_path / "r.parquet")
    lines = encore("analyze", tmp_path / "r.parquet", "--by-source").out.splitlines()
    judge = lines.index("All sources: 60 pairs, taken as independent (no prompt_id).")
    assert " ".join(lines[:judge]).endswith("they can be told from a coin under none of 4 rules.")
    assert lines[judge + 1].strip() == "Which rules to trust, all sources"
    titles = [line.strip() for line in lines if line.startswith("Which rules to trust")]
    assert titles[1:] == [f"Which rules to trust, source {name}" for name in "abc"]
    assert "4 rules: 4 undecided." in lines
    first_lines = itertools.takewhile(lambda line: "source a" not in line, lines)
    assert max(map(len, first_lines)) <= 80


@pytest.mark.services
def test_a_rule_has_one_number_in_every_source_and_in_a_comparison(tmp_path):
    """Source a lacks the first rule, and so does the other run."""
    chosen_PR, rejected_PR = np.random.default_rng(0).integers(0, 11, size=(2, 60, 3)) / 10
    table = table_of(chosen_PR, rejected_PR, source=["a", "b"] * 30)
    is_first_rule = pc.equal(table["rule_id"], "rule-00")
    ratings, other_run = tmp_path / "ratings.parquet", tmp_path / "other.parquet"
    pq.write_table(
        table.filter(pc.invert(pc.and_(is_first_rule, pc.equal(table["source"], "a")))), ratings
    )
    pq.write_table(table.filter(pc.invert(is_first_rule)), other_run)
    answers = analyze(ratings, by_source=True).answers
    numbers = {(row.rule_id, row.number) for answer in answers for row in answer.rows}
    assert numbers == {("rule-00", 1), ("rule-01", 2), ("rule-02", 3)}
    comparison = encore("analyze", ratings, "--compare", other_run).out.partition("Δ: other run")[2]
    assert re.findall(r"(?m)^ *(\d) ", comparison)[:2] == ["2", "3"]


# --- simulated studies ----------------------------------------------------------------------------


@pytest.mark.parametrize("num_rules", [10, 20])
@pytest.mark.parametrize("num_studies", [100, pytest.param(1000, marks=FULL)])
def test_random_labels_give_a_false_verdict_in_at_most_one_study_in_twenty(num_rules, num_studies):
    """Each study has 300 pairs, and ties between 10 % and 80 %.

    A false rate of 5 % in 1,000 studies has a standard error of 0.7 %, in 100 of 2.2 %. Bonferroni
    and the exact interval make it about 3.7 %.
    """
    rng = np.random.default_rng(num_rules)
    num_false = 0
    for _ in range(num_studies):
        tie_rate_R = rng.uniform(0.1, 0.8, size=num_rules)
        label_PR = rng.choice([-1.0, 1.0], size=(300, num_rules))
        margin_PR = label_PR * (rng.random((300, num_rules)) > tie_rate_R)
        verdicts = {row.verdict for row in answer_of(margin_PR).rows}
        num_false += not verdicts <= {"undecided"}
    # At most 5 %, in 100 studies and two standard errors; in 1,000 not absurdly rarely either.
    assert (0 if num_studies == 100 else 15) <= num_false <= (10 if num_studies == 100 else 50)


@pytest.mark.parametrize("accuracy", [0.5, 0.7, 0.95])
def test_all_intervals_of_a_study_cover_in_95_percent_of_studies(accuracy):
    """Ten rules with 20, 40, … 200 untied pairs; 2,000 studies have a standard error of 0.5 %."""
    rng = np.random.default_rng(int(100 * accuracy))
    total_R = np.arange(20, 201, 20)
    num_covered = 0
    for hits_R in rng.binomial(total_R, accuracy, size=(2000, 10)).tolist():
        num_covered += all(
            contains(exact_interval(hits, total, confidence=0.995), accuracy)
            for hits, total in zip(hits_R, total_R.tolist(), strict=True)
        )
    assert num_covered / 2000 >= 0.945


@pytest.mark.parametrize(
    ("accuracy", "num_studies"),
    [(0.6, 150), *(pytest.param(p, 1000, marks=FULL) for p in (0.52, 0.55, 0.6, 0.7, 0.8))],
)
def test_the_number_of_further_pairs_decides_in_80_percent_of_cases_like_the_estimate(
    accuracy, num_studies
):
    """Half of all pairs are tied, in a study of 100 pairs and ten rules.

    If estimate and tie rate are the truth, the further pairs decide in 80 % and somewhat more,
    because the first pairs are as good as the estimate. A standard error is 3 % at 150 studies.
    """
    rng = np.random.default_rng(int(1000 * accuracy))
    others_PR = np.zeros((100, 9))
    decided = []
    while len(decided) < num_studies:
        margin_P = rng.choice([-1.0, 1.0], p=[1 - accuracy, accuracy], size=100)
        margin_P *= rng.random(100) < 0.5
        row = first_rule(answer_of(np.column_stack([margin_P, others_PR])))
        if row.num_more_pairs is None or row.untied.value is None or row.tie_rate is None:
            continue
        num_untied = rng.binomial(row.num_more_pairs, 1 - row.tie_rate)
        num_wins = int((margin_P > 0).sum()) + rng.binomial(num_untied, row.untied.value)
        total = row.num_untied_pairs + num_untied
        decided.append(not contains(exact_interval(num_wins, total, confidence=0.995), 0.5))
    assert 0.72 <= np.mean(decided) <= 0.95
