"""All schemes on the same pairs: what each composes, what it has seen, what chance reaches."""

from __future__ import annotations

import json

import numpy as np
import pytest

from encore.data.study import Study
from encore.weighting import SCHEMES
from encore.weighting.comparison import SchemeComparison, compare, compare_schemes
from encore.weighting.draws import Draws, draw_all
from encore.weighting.random import random_weights
from encore.weighting.random_k import random_k_weights
from encore.weighting.scheme import SchemeOptions
from encore.weighting.weigh import weights
from tests.weighting.evidence_for_tests import evidence_of_margins, rule_names, table_of

NUM_RULES = 6


def ratings(*, num_pairs: int = 300, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Ratings on eleven levels; the higher a rule's number, the less it follows the preference."""
    rng = np.random.default_rng(seed)
    noise_R = np.linspace(0.1, 0.5, NUM_RULES)
    chosen_PR = 0.6 + noise_R * rng.normal(size=(num_pairs, NUM_RULES))
    rejected_PR = 0.4 + noise_R * rng.normal(size=(num_pairs, NUM_RULES))
    return np.round(chosen_PR.clip(0, 1), 1), np.round(rejected_PR.clip(0, 1), 1)


@pytest.fixture(scope="module")
def comparison() -> SchemeComparison:
    table = table_of(*ratings(), rule_ids=rule_names(NUM_RULES))
    return compare_schemes(table, num_random=200)


def row(comparison: SchemeComparison, scheme: str):
    return next(row for row in comparison.rows if row.vector.scheme == scheme)


def test_leakage_is_flagged_and_only_then_pairs_are_held_out(comparison: SchemeComparison) -> None:
    for one in comparison.rows:
        assert one.uses_labels == (one.vector.scheme == "bradley-terry")
        assert (one.held_out_accuracy is not None) == one.uses_labels
        assert not one.uses_benchmark
    assert (comparison.num_folds, comparison.folds_grouped_by) == (5, "pair")
    assert any("grouped by pair_id" in note for note in comparison.notes)


def test_accuracies_are_those_of_the_weighted_margins(comparison: SchemeComparison) -> None:
    chosen_PR, rejected_PR = ratings()
    for one in comparison.rows:
        composed_P = (chosen_PR - rejected_PR) @ np.array(one.vector.weights)
        sign_P = np.sign(np.round(composed_P, 12))
        assert one.accuracy.half == pytest.approx((sign_P.mean() + 1) / 2, abs=1e-12)
        assert one.accuracy.strict == pytest.approx((sign_P > 0).mean(), abs=1e-12)
        assert one.accuracy_low < one.accuracy.half < one.accuracy_high


def test_effective_weights_are_weights_times_the_spread_of_margins(
    comparison: SchemeComparison,
) -> None:
    chosen_PR, rejected_PR = ratings()
    sd_R = np.std(chosen_PR - rejected_PR, axis=0, ddof=1)
    assert comparison.margin_sds == pytest.approx(sd_R.tolist())
    for one in comparison.rows:
        expected = np.array(one.vector.weights) * sd_R
        assert one.effective_weights == pytest.approx(expected.tolist())


def test_margins_of_incomplete_pairs_count_for_their_spread() -> None:
    chosen_PR, rejected_PR = ratings(num_pairs=40)
    rejected_PR[:20, 2] = np.nan
    table = table_of(chosen_PR, rejected_PR, rule_ids=rule_names(NUM_RULES))
    found = compare_schemes(table, schemes=["uniform"], num_random=2)
    sd_R = np.nanstd(chosen_PR - rejected_PR, axis=0, ddof=1)
    assert found.margin_sds == pytest.approx(sd_R.tolist())


def test_a_row_s_weights_are_those_of_the_scheme_alone(comparison: SchemeComparison) -> None:
    table = table_of(*ratings(), rule_ids=rule_names(NUM_RULES))
    for name in SCHEMES:
        rule = "rule-00" if name == "single" else None
        assert row(comparison, name).vector == weights(table, scheme=name, rule=rule)


def test_single_takes_the_rule_of_lowest_entropy_or_the_one_named() -> None:
    evidence = evidence_of_margins([[0.1, -0.2], [0.3, 0.4], [-0.1, 0.2]])
    found = compare(evidence, options=SchemeOptions(), num_random=3)
    assert row(found, "single").vector.weights == (1.0, 0.0)
    named = compare(evidence, options=SchemeOptions(rule="rule-01"), num_random=3)
    assert row(named, "single").vector.weights == (0.0, 1.0)


# --- chance ---------------------------------------------------------------------------------------


def test_draws_are_the_schemes_at_one_seed_after_another() -> None:
    chosen_PR, rejected_PR = ratings(num_pairs=50)
    margin_PR = chosen_PR - rejected_PR
    names = rule_names(NUM_RULES)
    options = SchemeOptions(seed=7, k=2)
    vectors = {
        "random": [random_weights(names, seed=seed) for seed in (7, 8, 9)],
        "random-k": [random_k_weights(names, k=2, seed=seed) for seed in (7, 8, 9)],
    }
    for found in draw_all(margin_PR, names, options=options, num_draws=3)[:2]:
        expected = [
            (np.sign(np.round(margin_PR @ weight_R, 12)).mean() + 1) / 2
            for weight_R in vectors[found.scheme]
        ]
        assert found.half_accuracies == pytest.approx(expected, abs=1e-12)


def test_the_first_random_draw_is_the_row(comparison: SchemeComparison) -> None:
    for draws in comparison.draws[:2]:
        assert draws.num_draws == 200
        assert draws.half_accuracies[0] == row(comparison, draws.scheme).accuracy.half


def test_an_accuracy_beats_the_draws_below_it_and_half_of_its_equals() -> None:
    draws = Draws(scheme="random", half_accuracies=(0.5, 0.6, 0.6, 0.7))
    assert draws.share_below(0.6) == 0.5
    assert draws.share_below(0.8) == 1.0
    assert draws.share_below(None) is None
    assert Draws(scheme="random", half_accuracies=()).share_below(0.6) is None


# --- input that leaves something to say -------------------------------------------------------


def test_a_rule_missing_for_half_of_the_pairs_leaves_the_other_half() -> None:
    chosen_PR, rejected_PR = ratings()
    rejected_PR[:150, 2] = np.nan
    found = compare_schemes(
        table_of(chosen_PR, rejected_PR, rule_ids=rule_names(NUM_RULES)), num_random=5
    )
    assert (found.num_pairs, found.num_pairs_total) == (150, 300)
    assert (
        "accuracies are over the 150 of 300 pairs whose two responses every rule rated; the least "
        "complete is rule-02, with 150"
    ) in found.notes
    other = compare_schemes(
        table_of(chosen_PR[150:], rejected_PR[150:], rule_ids=rule_names(NUM_RULES)), num_random=5
    )
    for name in ("uniform", "random", "bradley-terry"):  # their weights look at complete pairs only
        assert row(found, name).vector.weights == row(other, name).vector.weights
        assert row(found, name).accuracy == row(other, name).accuracy


def test_without_a_complete_pair_weights_stand_and_bradley_terry_is_left_out() -> None:
    chosen_PR, rejected_PR = ratings(num_pairs=20)
    rejected_PR[:] = np.nan
    found = compare_schemes(
        table_of(chosen_PR, rejected_PR, rule_ids=rule_names(NUM_RULES)), num_random=5
    )
    assert [row.vector.scheme for row in found.rows] == [n for n in SCHEMES if n != "bradley-terry"]
    assert any(note.startswith("left out: scheme bradley-terry: none") for note in found.notes)
    assert found.num_pairs == 0
    for one in found.rows:
        assert one.accuracy.half is None
        assert (one.accuracy_low, one.accuracy_high, one.beats_random) == (None, None, None)
    json.dumps(found.as_dict(), allow_nan=False)


def test_a_constant_rule_is_noted_with_its_effect() -> None:
    chosen_PR, rejected_PR = ratings(num_pairs=40)
    chosen_PR[:, 1] = rejected_PR[:, 1] = 0.5
    found = compare_schemes(
        table_of(chosen_PR, rejected_PR, rule_ids=rule_names(NUM_RULES)), num_random=5
    )
    assert any(note.startswith("rule rule-01 is constant") for note in found.notes)
    assert max(row(found, "encore").vector.weights) == row(found, "encore").vector.weights[1]
    for name in ("inverse-sd", "bradley-terry"):
        assert row(found, name).vector.weights[1] == 0.0
    assert all(one.effective_weights[1] == 0.0 for one in found.rows)


# --- where it came from ---------------------------------------------------------------------------


def test_a_study_s_folds_are_grouped_by_prompt_and_its_run_is_recorded(study: Study) -> None:
    found = compare_schemes(study.path, num_random=5)
    assert (found.folds_grouped_by, found.num_folds) == ("prompt", 5)
    [run_dir] = study.ratings_dir.iterdir()
    origin = found.rows[0].vector.provenance.origin
    assert origin.run_key == run_dir.name
    assert origin.judge == "scripted"
    assert len(origin.data_sha256) == len(origin.rules_sha256) == len(origin.ratings_sha256) == 64
    assert (origin.num_shards, origin.num_missing_shards) == (3, 0)
