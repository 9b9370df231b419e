"""The table by rule: ratings beside what the rule's head alone does on the benchmark."""

from __future__ import annotations

import csv
import io

import numpy as np
import pytest

from encore.benchmarks.rule_table import rule_csv, rule_lines
from encore.weighting.opening import open_evidence
from tests.benchmarks.stored_world import real_pairs
from tests.benchmarks.table_world import RULES, scores_of, training_ratings
from tests.weighting.evidence_for_tests import table_of

PAIRS = real_pairs({"all": 10})


def lines_of(margin_PR, *, ratings=None):
    with open_evidence(training_ratings() if ratings is None else ratings) as evidence:
        scores = scores_of(PAIRS, np.asarray(margin_PR))
        return evidence, rule_lines(evidence.rules, scores=scores, pairs=PAIRS)


def test_each_rule_has_the_score_of_its_head_alone():
    # So many of ten pairs that each head gets right; the third ties on two, which lose here.
    wins = (10, 7, 5, 0)
    margin_PR = np.array([[1.0 if place < num else -1.0 for num in wins] for place in range(10)])
    margin_PR[8:, 2] = 0.0
    evidence, lines = lines_of(margin_PR)
    assert [line.rule_id for line in lines] == list(RULES)
    assert [line.score for line in lines] == pytest.approx([1.0, 0.7, 0.5, 0.0])
    rules = {rule.rule_id: rule for rule in evidence.rules}  # in another order than the heads
    for line in lines:
        rule = rules[line.rule_id]
        assert line.entropy_nats == rule.entropy_nats
        assert line.training_accuracy == rule.accuracy.half
        assert line.score_ci_low <= line.score <= line.score_ci_high


def test_what_is_not_known_is_an_empty_cell():
    # The first rule rated no chosen response: it has ratings, but no pair to rank.
    chosen_NR = np.full((4, len(RULES)), 0.5)
    chosen_NR[:, 0] = np.nan
    ratings = table_of(chosen_NR, np.full((4, len(RULES)), 0.25), rule_ids=RULES)
    _, lines = lines_of(np.ones((10, len(RULES))), ratings=ratings)
    weights = {"weight": dict.fromkeys(RULES, 0.25)}
    read = list(csv.DictReader(io.StringIO(rule_csv(lines, weights=weights))))
    assert (read[0]["training_accuracy"], read[0]["training_tie_rate"]) == ("", "")
    assert float(read[1]["training_accuracy"]) == 1.0
    assert [float(line["weight"]) for line in read] == pytest.approx([0.25] * 4)
