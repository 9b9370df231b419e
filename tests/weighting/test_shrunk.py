"""Scheme shrunk: from uniform weights without evidence to Bradley-Terry's with much of it."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from encore.core.errors import InputError
from encore.weighting.cross_validation import held_out
from encore.weighting.scheme_options import SchemeOptions
from encore.weighting.schemes import load_scheme
from encore.weighting.schemes import shrunk as module
from encore.weighting.schemes.bradley_terry import fit_scores
from encore.weighting.schemes.shrunk import PENALTIES, fit_shrunk
from tests.golden.command_line import encore
from tests.worlds.ratings import evidence_of_margins, table_of

pytestmark = pytest.mark.services

SHRUNK, BRADLEY_TERRY = SCHEMES = load_scheme("shrunk"), load_scheme("bradley-terry")


def noisy_margins(num_pairs: int, mean_R: list[float], *, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(mean_R, 1.0, size=(num_pairs, len(mean_R)))


def test_the_penalty_is_on_the_distance_from_uniform_and_leaves_the_scale_free():
    # One pair with margins (1, 0). With scores b + d and b - d the loss is log(1 + exp(-b - d)),
    # the penalty 2 d² / 2 times p. Slopes: in b the loss alone, so b grows to the bound of the
    # ridge; in d: sigmoid(-(b + d)) = 2 p d. At p = 100 d is below 1 / 200 whatever b is.
    score_R = fit_scores(np.array([[1.0, 0.0]]), penalty=100.0)
    assert score_R.sum() > 10
    assert 0 <= score_R[0] - score_R[1] < 2 / 200
    # Of 80 pairs with margins (1, 1), 20 with (-1, -1): b + d + b - d = 2b = log(80 / 20).
    margin_PR = np.array([[1.0, 1.0]] * 80 + [[-1.0, -1.0]] * 20)
    assert fit_scores(margin_PR, penalty=100.0) == pytest.approx([np.log(4) / 2] * 2, abs=1e-4)


def test_many_labels_give_nearly_the_weights_of_bradley_terry_and_noise_nearly_uniform():
    evidence = evidence_of_margins(noisy_margins(4000, [1.0, 0.3, 0.0]))
    weights, fitted = (
        scheme.weigh(evidence, SchemeOptions()) for scheme in (SHRUNK, BRADLEY_TERRY)
    )
    assert weights.weights == pytest.approx(fitted.weights, abs=0.02)
    # Forty pairs under ten rules that are equally good: Bradley-Terry follows their noise.
    margin_PR = noisy_margins(40, [0.3] * 10)
    score_R, choice = fit_shrunk(margin_PR, np.arange(40))
    fitted_R = fit_scores(margin_PR)
    assert choice.penalty >= 1
    assert np.ptp(score_R / score_R.sum()) < np.ptp(fitted_R / fitted_R.sum()) / 4


def test_the_penalty_draws_to_the_target_and_leaves_its_scale_free():
    # Of 80 pairs with margins (1, 1), 20 with (-1, -1): a score of b (3/4, 1/4) has the best loss
    # at the sum b = log(80 / 20), rule by rule at a sum of its own that no penalty holds.
    margin_PR = np.array([[1.0, 1.0]] * 80 + [[-1.0, -1.0]] * 20)
    target_R = np.array([0.75, 0.25])
    score_R = fit_scores(margin_PR, penalty=1e4, target_R=target_R)
    assert score_R == pytest.approx(np.log(4) * target_R, abs=1e-3)


def test_a_fit_rule_by_rule_sees_each_rule_alone():
    # Rule 0 is right in 80 of 100 pairs, rule 1 in 60: log(80 / 20) and log(60 / 40), whatever the
    # pairs in which they are right together.
    margin_PR = np.ones((100, 2))
    margin_PR[:20, 0] = margin_PR[10:50, 1] = -1
    score_R = fit_scores(margin_PR, is_joint=False)
    assert score_R == pytest.approx(np.log([4, 1.5]), abs=1e-4)


@pytest.mark.parametrize(("best", "worse"), [("uniform", "consensus"), ("consensus", "uniform")])
def test_the_target_is_chosen_by_held_out_prompts(best, worse):
    # Pairs whose margins say that one target's weights are right: noise and the target's direction.
    targets = {"uniform": np.full(6, 1 / 6), "consensus": np.array([0.6, 0.4, 0, 0, 0, 0])}
    rng = np.random.default_rng(0)
    margin_PR = rng.normal(size=(200, 6))
    is_right_P = rng.random(200) < 1 / (1 + np.exp(-8 * margin_PR @ targets[best]))
    margin_PR *= np.where(is_right_P, 1, -1)[:, None]
    score_R, choice = fit_shrunk(margin_PR, np.arange(200), targets)
    assert choice.target == best
    distances = {
        name: np.abs(score_R / score_R.sum() - weight_R).sum() for name, weight_R in targets.items()
    }
    assert distances[best] < distances[worse]


def test_rules_that_share_an_error_are_fitted_jointly():
    # Rules 0 and 1 have the same large error, with opposite signs: together they cancel it, which
    # no fit of one rule by itself can see.
    rng = np.random.default_rng(0)
    error_P = rng.normal(size=400)
    margin_PR = np.stack([0.3 + 3 * error_P, 0.3 - error_P, rng.normal(size=400)], axis=1)
    score_R, choice = fit_shrunk(margin_PR, np.arange(400))
    assert choice.fit == "joint"
    assert score_R[1] / score_R[0] == pytest.approx(3, rel=0.1)


def test_many_labels_choose_by_some_whole_prompts_with_a_penalty_per_label(monkeypatch):
    # Forty prompts of ten pairs, of which about 100 pairs choose: ten whole prompts.
    margin_PR = noisy_margins(400, [0.3] * 5)
    group_P = np.repeat(np.arange(40), 10)
    _, by_all = fit_shrunk(margin_PR, group_P)
    assert by_all.penalty in PENALTIES
    monkeypatch.setattr(module, "MAX_CHOOSING_PAIRS", 100)
    chosen_P = module._choosing_pairs(group_P)
    assert chosen_P.sum() == 100
    assert len(np.unique(group_P[chosen_P])) == 10
    _, by_some = fit_shrunk(margin_PR, group_P)
    of_these = module._chosen(
        margin_PR[chosen_P] / np.sqrt(np.square(margin_PR).mean()),
        group_P[chosen_P],
        module.uniform_target(5),
        ("joint",),
    )
    assert by_some.penalty == pytest.approx(of_these.penalty / 4)


def test_beyond_the_pairs_that_choose_the_fit_is_joint(monkeypatch):
    # Equal rules with errors of their own: of few labels a fit rule by rule makes more.
    rng = np.random.default_rng(0)
    margin_PR = 0.3 + rng.normal(size=(60, 8))
    assert fit_shrunk(margin_PR, np.arange(60))[1].fit == "per rule"
    monkeypatch.setattr(module, "MAX_CHOOSING_PAIRS", 59)
    assert fit_shrunk(margin_PR, np.arange(60))[1].fit == "joint"


def test_twenty_labels_are_worth_more_than_none():
    # Rules 0 and 1 of eight are good, the others say nothing.
    num_better = 0
    for seed in range(10):
        evidence = evidence_of_margins(noisy_margins(600, [0.8] * 2 + [0.0] * 6, seed=seed))
        tested_PR = noisy_margins(1000, [0.8] * 2 + [0.0] * 6, seed=1000 + seed)
        vector = SHRUNK.weigh(evidence, SchemeOptions(labels=20))
        assert vector.params["num_pairs"] == 20
        shares = [(tested_PR @ weight_R > 0).mean() for weight_R in (vector.weights, np.ones(8))]
        num_better += shares[0] > shares[1]
    assert num_better >= 8


def test_the_scheme_shrinks_to_consensus_where_labels_ask_for_it():
    # Rules 0 to 3 share a quality and agree, rules 4 to 9 are noise.
    rng = np.random.default_rng(0)
    better_P = np.abs(rng.normal(size=(300, 1)))
    margin_PR = rng.normal(size=(300, 10)) + better_P * ([1.0] * 4 + [0.0] * 6)
    vector = SHRUNK.weigh(evidence_of_margins(margin_PR), SchemeOptions(labels=20))
    assert vector.params["target"] == "consensus"
    assert sum(vector.weights[:4]) > 0.6


def test_the_unit_of_ratings_changes_no_weight():
    margin_PR, group_P = noisy_margins(60, [0.5, 0.1, 0.0]), np.arange(60)
    (score_R, choice), (small_R, same) = (
        fit_shrunk(scale * margin_PR, group_P) for scale in (1.0, 1e-3)
    )
    assert choice == same
    assert small_R == pytest.approx(1000 * score_R, rel=1e-4, abs=1e-4)


def test_prompts_are_whole_in_the_folds_that_choose_the_penalty():
    # Twenty prompts with ten copies each: split between folds, a copy would speak for its twin and
    # the smallest penalty would look best.
    margin_PR = np.repeat(noisy_margins(20, [0.3] * 15, seed=1), 10, axis=0)
    _, by_prompt = fit_shrunk(margin_PR, np.repeat(np.arange(20), 10))
    _, by_pair = fit_shrunk(margin_PR, np.arange(200))
    assert by_pair.penalty == PENALTIES[-1] < by_prompt.penalty


def test_labels_takes_the_first_pairs_by_id_and_counts_them():
    margin_PR = noisy_margins(50, [0.6, 0.0])
    reversed_pairs = evidence_of_margins(margin_PR).read_pairs().take(np.arange(50)[::-1])
    evidence = evidence_of_margins(margin_PR).with_pairs(reversed_pairs)
    for scheme in SCHEMES:
        vector = scheme.weigh(evidence, SchemeOptions(labels=12))
        first = scheme.weigh(evidence_of_margins(margin_PR[:12]), SchemeOptions())
        assert vector.weights == pytest.approx(first.weights, abs=1e-6)
        assert vector.params["num_pairs"] == vector.provenance.num_pairs_used == 12
        assert vector.params["num_pairs_left_out"] == 0
    # The held-out accuracy is over all pairs, each with weights of twelve other ones.
    assert held_out(SHRUNK, evidence, SchemeOptions(labels=12)).num_pairs == 50


@pytest.mark.parametrize("margin", [0.0, -1.0, 1.0])
def test_fewer_labels_than_rules_and_margins_that_are_all_alike_give_uniform_weights(margin):
    vector = SHRUNK.weigh(evidence_of_margins(np.full((4, 9), margin)), SchemeOptions())
    assert vector.weights == pytest.approx([1 / 9] * 9)
    assert (vector.params["scale"] == 0) == (margin <= 0)


def test_no_label_and_labels_of_one_prompt_are_refused_with_the_reason():
    one_label = SchemeOptions(labels=1)
    with pytest.raises(InputError, match="labels of 1 prompt; expected two or more"):
        SHRUNK.weigh(evidence_of_margins(noisy_margins(9, [0.1])), one_label)
    unrated = evidence_of_margins(noisy_margins(9, [0.1]))
    pairs = unrated.read_pairs()
    unrated = unrated.with_pairs(dataclasses.replace(pairs, chosen_PR=pairs.chosen_PR * np.nan))
    with pytest.raises(InputError, match="scheme shrunk: none of 9 pairs has both responses rated"):
        SHRUNK.weigh(unrated, SchemeOptions())


def test_the_command_says_when_there_are_fewer_labels(tmp_path):
    import pyarrow.parquet as pq

    rating_PR = np.random.default_rng(0).integers(0, 11, size=(2, 8, 3)) / 10
    path = tmp_path / "ratings.parquet"
    pq.write_table(table_of(*rating_PR, rule_ids=("a", "b", "c")), path)
    finished = encore("weights", path, "--scheme", "shrunk", "--labels", "20", "--json")
    assert finished.json["params"]["num_pairs"] == 8
    assert "--labels 20: there are only 8 labelled pairs" in finished.err
    assert "no use for --labels 5" in encore("weights", path, "--labels", "5").err
