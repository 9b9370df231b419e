"""Scheme shrunk: from uniform weights without evidence to Bradley-Terry's with much of it."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from encore.core.errors import InputError
from encore.weighting.cross_validation import held_out
from encore.weighting.scheme_options import SchemeOptions
from encore.weighting.schemes import load_scheme
from encore.weighting.schemes.bradley_terry import fit_scores
from encore.weighting.schemes.shrunk import PENALTIES, fit_shrunk
from tests.golden.command_line import encore
from tests.worlds.ratings import evidence_of_margins, table_of

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
    evidence = evidence_of_margins(noisy_margins(40, [0.3] * 10))
    shrunk, fitted = (scheme.weigh(evidence, SchemeOptions()) for scheme in SCHEMES)
    assert shrunk.params["penalty"] >= 1
    assert np.ptp(shrunk.weights) < np.ptp(fitted.weights) / 4


def test_the_unit_of_ratings_changes_no_weight():
    margin_PR, group_P = noisy_margins(60, [0.5, 0.1, 0.0]), np.arange(60)
    (score_R, penalty), (small_R, same) = (
        fit_shrunk(scale * margin_PR, group_P) for scale in (1.0, 1e-3)
    )
    assert penalty == same
    assert small_R == pytest.approx(1000 * score_R, rel=1e-4, abs=1e-4)


def test_prompts_are_whole_in_the_folds_that_choose_the_penalty():
    # Twenty prompts with ten copies each: split between folds, a copy would speak for its twin and
    # the smallest penalty would look best.
    margin_PR = np.repeat(noisy_margins(20, [0.3] * 15, seed=1), 10, axis=0)
    _, by_prompt = fit_shrunk(margin_PR, np.repeat(np.arange(20), 10))
    _, by_pair = fit_shrunk(margin_PR, np.arange(200))
    assert by_pair == PENALTIES[-1] < by_prompt


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
