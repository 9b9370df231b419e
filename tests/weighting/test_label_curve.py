"""The label curve: fitted weights against weights without labels, on prompts not learnt from."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pyarrow.parquet as pq
import pytest

from encore.core.errors import InputError
from encore.weighting import label_curve as module
from encore.weighting.label_curve import LabelCurve, label_curve
from encore.weighting.scheme_options import SchemeOptions
from tests.golden.command_line import encore
from tests.worlds.ratings import (
    evidence_of_entropies,
    evidence_of_margins,
    pairs_of_margins,
    table_of,
)

pytestmark = pytest.mark.services


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

    def fit(margin_of_learnt_PR, group_P, _targets):
        learnt.append(set(margin_of_learnt_PR[:, 0].tolist()))
        return np.array([1.0, 0.0]), 1.0

    monkeypatch.setattr(module, "fit_shrunk", fit)
    curve = label_curve(evidence_of_margins(margin_PR), SchemeOptions())
    assert curve.num_labels == (10, 20, 32)
    assert [len(pairs) for pairs in learnt] == [10, 20, 32] * 10
    never_learnt = [set(range(1, 41)) - pairs for pairs in learnt[2::6]]
    assert sorted(map(len, never_learnt)) == [8] * 5
    assert set.union(*never_learnt) == set(range(1, 41))


# --- the smallest number of labels from which on they are better, by hand -------------------------

#: Pairs, each with a prompt of its own: five folds of eight leave 32 to learn from.
NUM_PAIRS = 40


def margins_right_on(*num_right: int, sizes: Sequence[float] = (1, 2)) -> np.ndarray:
    """Return margins of rules that are right on their first pairs, and wrong on the others."""
    pair_P = np.arange(NUM_PAIRS)
    rules = zip(num_right, sizes, strict=True)
    return np.stack([np.where(pair_P < num, size, -size) for num, size in rules], axis=1)


def curve_of(monkeypatch, margin_PR, learns, *, tau: float = 2.0) -> LabelCurve:
    """Return the curve if fitted weights are those of rule 0 where ``learns`` says so, else rule 1.

    Args:
        monkeypatch: Replaces the fit and the numbers of labels, which become 4, 8, 16 and 32.
        margin_PR: Margins of two rules.
        learns: Function of the number of labelled pairs and of earlier fits with as many.
        tau: Temperature of scheme encore.
    """
    num_fits: Counter[int] = Counter()

    def fit(learnt_PR, _group_P, _targets):
        is_first_rule = learns(len(learnt_PR), num_fits[len(learnt_PR)])
        num_fits[len(learnt_PR)] += 1
        return np.array([1.0, 0.0] if is_first_rule else [0.0, 1.0]), 1.0

    monkeypatch.setattr(module, "NUM_LABELS", (4, 8, 16))
    monkeypatch.setattr(module, "fit_shrunk", fit)
    curve = label_curve(evidence_of_margins(margin_PR), SchemeOptions(tau=tau))
    assert curve.num_labels == (4, 8, 16, 32)
    return curve


@pytest.mark.parametrize(
    ("learnt_with", "expected"),
    [({4, 8, 16, 32}, 4), ({4, 16, 32}, 16), ({8, 16}, None), ({32}, 32), (set(), None)],
)
def test_labels_beat_from_the_smallest_number_after_which_no_number_fails(
    monkeypatch, learnt_with, expected
):
    # Rule 0 is right on all pairs, rule 1, whose margins are twice as large and decide uniform
    # weights, on 20 of 40.
    curve = curve_of(monkeypatch, margins_right_on(40, 20), lambda num, _: num in learnt_with)
    assert curve.num_labels_to_beat == expected
    values = [1.0 if num in learnt_with else 0.5 for num in (4, 8, 16, 32)]
    assert [estimate.value for estimate in curve.shrunk] == values
    assert (curve.encore.value, curve.uniform.value) == (0.5, 0.5)


def test_a_mean_that_is_better_by_less_than_its_interval_beats_nothing(monkeypatch):
    # 40 against 38 of 40 pairs: with two imagined pairs of difference 1 and -1 (Bonett and Price)
    # the mean is 2 / 42, and its interval 1.96 sqrt((4 / 42 - (2 / 42)²) / 42) = 0.092 wide on
    # either side: it holds 0.
    curve = curve_of(monkeypatch, margins_right_on(40, 38), lambda _num, _fit: True)
    assert [estimate.value for estimate in curve.shrunk] == [1.0] * 4
    assert curve.uniform.value == 38 / 40
    assert curve.num_labels_to_beat is None


@pytest.mark.parametrize("sizes", [(1, 2), (2, 1)])
def test_labels_must_beat_the_better_one_of_both_schemes_without_labels(monkeypatch, sizes):
    # At a low temperature encore follows rule 0, which has the lower entropy; uniform weights
    # follow the rule with the larger margins. Fitted weights are those of the better rule, and so
    # equal to one of the two schemes: they beat the other alone.
    num_right = (36, 20) if sizes == (1, 2) else (20, 36)
    margin_PR = margins_right_on(*num_right, sizes=sizes)
    if sizes == (2, 1):  # uniform weights follow rule 1
        margin_PR = margin_PR * (0.25, 1)
    curve = curve_of(
        monkeypatch, margin_PR, lambda _num, _fit: num_right[0] > num_right[1], tau=0.01
    )
    accuracies = (curve.encore.value, curve.uniform.value)
    assert accuracies == ((0.9, 0.5) if sizes == (1, 2) else (0.5, 0.9))
    assert [estimate.value for estimate in curve.shrunk] == [0.9] * 4
    assert curve.num_labels_to_beat is None


def test_an_accuracy_is_the_mean_of_two_draws_of_labels(monkeypatch):
    # Of the two draws of a fold one learns rule 0 (right on 40 of 40), one rule 1 (20 of 40).
    curve = curve_of(monkeypatch, margins_right_on(40, 20), lambda _num, fit: fit % 2 == 0)
    assert [estimate.value for estimate in curve.shrunk] == [0.75] * 4


def test_the_smallest_number_of_labels_has_pairs_of_two_prompts(monkeypatch):
    """The penalty is chosen by holding out prompts; most pairs are of one prompt here."""
    pairs = pairs_of_margins(np.arange(1.0, 41)[:, np.newaxis] * [1, -1])
    prompt_P = np.where(np.arange(40) < 30, 0, np.arange(40)).astype(np.uint64)
    pairs = dataclasses.replace(pairs, prompt_P=prompt_P, grouped_by="prompt")
    learnt: list[np.ndarray] = []

    def fit(_margin_PR, group_P, _targets):
        learnt.append(group_P)
        return np.array([1.0, 0.0]), 1.0

    monkeypatch.setattr(module, "NUM_LABELS", (1, 2))
    monkeypatch.setattr(module, "fit_shrunk", fit)
    label_curve(evidence_of_entropies([0.1, 0.2], pairs=pairs), SchemeOptions())
    assert all(len(np.unique(group_P)) >= 2 for group_P in learnt)
    for group_P in learnt[::3]:  # the fits that were to have one pair: no more than it takes
        assert len(np.unique(group_P[:-1])) == 1


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
