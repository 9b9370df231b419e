"""The label curve: fitted weights against weights without labels, on prompts not learnt from."""

from __future__ import annotations

import numpy as np
import pyarrow.parquet as pq
import pytest

from encore.core.errors import InputError
from encore.weighting import label_curve as module
from encore.weighting.label_curve import label_curve
from encore.weighting.scheme_options import SchemeOptions
from tests.golden.command_line import encore
from tests.worlds.ratings import evidence_of_margins, table_of


def test_labels_beat_counting_where_one_rule_in_three_is_right():
    # Rule 0 is right in 95 % of the pairs, rules 1 and 2 are wrong in 70 % with twice its margin.
    rng = np.random.default_rng(0)
    sign_PR = np.where(rng.random((200, 3)) < (0.95, 0.3, 0.3), 1.0, -1.0)
    curve = label_curve(evidence_of_margins(sign_PR * (1, 2, 2)), SchemeOptions())
    # Five folds of 40 pairs leave 160 to learn from.
    assert curve.num_labels == (10, 20, 50, 100, 160)
    # Uniform weights follow rules 1 and 2 where they agree: right in 0.3² of the pairs, and in 0.95
    # of those 0.42 where they cancel: 0.49.
    assert curve.uniform.value == pytest.approx(0.49, abs=0.08)
    assert curve.shrunk[-1].value == pytest.approx((sign_PR[:, 0] > 0).mean())
    assert curve.num_labels_to_beat in (10, 20, 50)


def test_no_number_of_labels_beats_rules_that_are_equally_good(monkeypatch):
    monkeypatch.setattr(module, "NUM_LABELS", (20,))
    margin_PR = np.random.default_rng(1).normal(0.4, 1.0, size=(80, 3))
    curve = label_curve(evidence_of_margins(margin_PR), SchemeOptions(seed=3))
    assert curve.num_labels_to_beat is None
    assert curve.uniform.value == pytest.approx((margin_PR.sum(axis=1) > 0).mean())
    assert label_curve(evidence_of_margins(margin_PR), SchemeOptions(seed=3)) == curve


def test_no_pair_is_tested_by_weights_that_were_learnt_from_its_prompt(monkeypatch):
    margin_PR = np.arange(1, 41.0)[:, None] * [1.0, -1.0]  # a margin names its pair
    learnt: list[set[float]] = []

    def fit(margin_of_learnt_PR, group_P):
        learnt.append(set(margin_of_learnt_PR[:, 0].tolist()))
        return np.array([1.0, 0.0]), 1.0

    monkeypatch.setattr(module, "fit_shrunk", fit)
    curve = label_curve(evidence_of_margins(margin_PR), SchemeOptions())
    assert curve.num_labels == (10, 20, 32)
    assert [len(pairs) for pairs in learnt] == [10, 20, 32] * 10
    never_learnt = [set(range(1, 41)) - pairs for pairs in learnt[2::6]]
    assert sorted(map(len, never_learnt)) == [8] * 5
    assert set.union(*never_learnt) == set(range(1, 41))


def test_too_few_prompts_are_refused():
    with pytest.raises(InputError, match="3 prompts with pairs that every rule rated"):
        label_curve(evidence_of_margins([[0.1], [0.2], [0.3]]), SchemeOptions())


def test_the_command_shows_the_curve_and_refuses_two_views(tmp_path):
    rating_PR = np.random.default_rng(0).integers(0, 11, size=(2, 30, 2)) / 10
    pq.write_table(table_of(*rating_PR, rule_ids=("a", "b")), tmp_path / "r.parquet")
    finished = encore("weights", tmp_path / "r.parquet", "--label-curve", "--k", "3")
    assert finished.code == 0
    for text in ("shrunk, 10 labels", "encore", "uniform", "no number of these labels"):
        assert text in finished.out
    assert "--label-curve has no use for --k 3" in finished.err
    finished = encore("weights", tmp_path / "r.parquet", "--label-curve", "--sweep")
    assert "--sweep and --label-curve are different views" in " ".join(finished.err.split())
