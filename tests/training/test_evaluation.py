"""R² and accuracy by hand, and one evaluation whatever the layout."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from encore.training.config import TrainingConfig
from encore.training.evaluation import (
    TrainingDivergedError,
    accuracy_half,
    evaluate,
    r_squared,
)
from tests.training.tiny_training import PAD, random_examples, tiny_bert, tiny_llama

NAN = math.nan
RULES = ("honesty", "privacy", "calm")


def floats(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float32)


def test_r_squared_by_hand():
    # Targets 0, 1, 2 deviate from 1 by 1 + 0 + 1; the errors are 0, 1, 0: R² = 1 - 1/2.
    assert r_squared(floats(0, 2, 2), floats(0, 1, 2)) == pytest.approx(0.5)
    assert r_squared(floats(0, 1, 2), floats(0, 1, 2)) == 1.0


def test_r_squared_measures_against_the_held_out_targets_own_mean():
    # Targets centred on other pairs: saying their mean, 5, explains nothing; saying 0 is worse.
    targets = floats(4, 6)
    assert r_squared(floats(5, 5), targets) == pytest.approx(0.0)
    # Errors 16 + 36 against a deviation of 2.
    assert r_squared(floats(0, 0), targets) == pytest.approx(1 - 52 / 2)


def test_r_squared_leaves_missing_ratings_out():
    assert r_squared(floats(0, 99, 2, 2), floats(0, NAN, 1, 2)) == pytest.approx(0.5)


@pytest.mark.parametrize("targets", [(NAN, NAN, NAN), (1, NAN, NAN), (0.1, 0.1, 0.1)])
def test_there_is_no_r_squared_where_nothing_is_to_be_explained(targets):
    assert r_squared(floats(0, 1, 2), floats(*targets)) is None


def test_a_tie_is_half_right():
    # Right, wrong, tie, right: 2.5 of 4.
    assert accuracy_half(floats(1, 0, 3, 2), floats(0, 1, 3, 1)) == 0.625
    assert accuracy_half(floats(), floats()) is None


def evaluation_of(model, examples, **settings):
    rows = np.arange(2, examples.num_pairs)
    return evaluate(model, examples, rows, TrainingConfig(**settings), pad_token_id=PAD, step=7)


@pytest.mark.parametrize("layout", ["packed", "prefix-shared", "sorted", "single"])
def test_every_layout_and_cut_gives_the_same_evaluation(layout):
    examples = random_examples(12, head_ids=RULES, missing_share=0.3)
    model = tiny_llama(RULES)
    expected = evaluation_of(model, examples, tokens_per_microbatch=10_000)
    found = evaluation_of(model, examples, layout=layout, tokens_per_microbatch=30)
    assert found.loss == pytest.approx(expected.loss, rel=1e-5)
    assert found.r2_by_head == pytest.approx(expected.r2_by_head, rel=1e-4)
    assert found.accuracy_half_by_head == expected.accuracy_half_by_head
    assert (found.step, found.num_pairs) == (7, 10)
    assert list(found.r2_by_head) == list(RULES)
    assert found.accuracy_half is None  # heads are not composed while training


def test_a_zero_head_has_r_squared_of_its_mean_and_only_ties():
    examples = random_examples(40, head_ids=RULES)
    model = tiny_llama(RULES)
    torch.nn.init.zeros_(model.heads.weight)
    found = evaluation_of(model, examples)
    assert found.accuracy_half_by_head == dict.fromkeys(RULES, 0.5)
    targets = np.concatenate([examples.target_chosen_PR[2:], examples.target_rejected_PR[2:]])
    targets = targets.astype(np.float64)
    # Saying 0 costs the mean square; the deviation from the mean is the variance.
    expected = 1 - np.square(targets).mean(axis=0) / targets.var(axis=0)
    assert list(found.r2_by_head.values()) == pytest.approx(expected.tolist(), rel=1e-4)
    assert found.loss == pytest.approx(float(np.square(targets).mean()), rel=1e-5)


def test_a_rule_that_rated_no_held_out_response_has_no_r_squared():
    examples = random_examples(8, head_ids=RULES)
    examples.target_chosen_PR[2:, 1] = NAN
    examples.target_rejected_PR[2:, 1] = NAN
    found = evaluation_of(tiny_llama(RULES), examples)
    assert found.r2_by_head["privacy"] is None
    assert found.r2_by_head["calm"] is not None


def test_without_any_held_out_rating_there_is_no_loss():
    examples = random_examples(8, head_ids=RULES)
    examples.target_chosen_PR[2:] = NAN
    examples.target_rejected_PR[2:] = NAN
    assert evaluation_of(tiny_llama(RULES), examples).loss is None


def test_bradley_terry_has_an_accuracy_and_no_r_squared():
    examples = random_examples(30)
    model = tiny_llama(examples.head_ids)
    found = evaluation_of(model, examples, objective="bradley-terry")
    assert found.r2_by_head == {}
    assert 0 < found.accuracy_half < 1
    assert found.accuracy_half_by_head == {"reward": found.accuracy_half}
    torch.nn.init.zeros_(model.heads.weight)
    tied = evaluation_of(model, examples, objective="bradley-terry")
    assert tied.accuracy_half == 0.5
    assert tied.loss == pytest.approx(math.log(2))


@pytest.mark.parametrize("is_training", [True, False])
def test_evaluating_drops_nothing_out_and_leaves_the_model_as_it_was(is_training):
    examples = random_examples(6)
    model = tiny_bert(examples.head_ids, dropout=0.5)
    model.train(is_training)
    first, second = (evaluation_of(model, examples, objective="bradley-terry") for _ in range(2))
    assert first.loss == second.loss
    assert model.training is is_training
    assert all(weight.grad is None for weight in model.parameters())


def test_scores_that_are_not_finite_are_an_error_that_names_the_pairs():
    examples = random_examples(6)
    model = tiny_llama(examples.head_ids)
    with torch.no_grad():
        model.trunk.embed_tokens.weight[int(examples.chosen[3][0])] = math.inf
    with pytest.raises(TrainingDivergedError, match=r"held-out score .* at step 7 on .*pair-3"):
        evaluation_of(model, examples, objective="bradley-terry")


def test_a_divergence_names_a_few_of_many_pairs():
    error = TrainingDivergedError(what="the loss is nan", step=3, pair_ids=list("abcdefg"))
    assert str(error).startswith(
        "training diverged: the loss is nan at step 3 on pairs a, b, c, d, e and 2 more; "
    )
    assert (error.step, error.pair_ids) == (3, tuple("abcdefg"))
    assert "on pair x;" in str(TrainingDivergedError(what="nan", step=1, pair_ids=["x"]))
    assert "at step 1;" in str(TrainingDivergedError(what="nan", step=1))
