"""Losses, R² and accuracy equal values derived by hand, in every layout."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from encore.training.evaluation import (
    TrainingDivergedError,
    accuracy_half,
    evaluate,
    loss_terms,
    num_terms,
    r_squared,
)
from encore.training.training_options import TrainingConfig
from tests.worlds.models import HEAD_IDS, tiny_model
from tests.worlds.trainings import model_of, random_examples, training_of

NAN = math.nan


def test_a_response_counts_the_mean_over_its_valid_heads():
    score_NR = torch.tensor([[1.0, 2.0, 3.0], [0, 0, 0], [1, 1, 1]], requires_grad=True)
    target_NR = torch.tensor([[0.0, 0.0, 1.0], [NAN, 2.0, NAN], [NAN, NAN, NAN]])
    # First response (1 + 4 + 4) / 3 = 3, second 4 / 1 = 4, the third nothing and not NaN.
    total = loss_terms(score_NR, target_NR, objective="multi-head").sum()
    assert total.item() == 7.0
    assert num_terms(target_NR.numpy(), objective="multi-head") == 2
    total.backward()
    # d/ds (s - t)² / n = 2 (s - t) / n where rated, exactly 0 elsewhere.
    expected = [[2 / 3, 4 / 3, 4 / 3], [0, -4, 0], [0, 0, 0]]
    torch.testing.assert_close(score_NR.grad, torch.tensor(expected))


def test_the_bradley_terry_loss_equals_one_derived_by_hand():
    # -log σ(0) = log 2; -log σ(1) = log(1 + 1/e); -log σ(-200) = 200 + log(1 + e^-200) = 200.
    # Each pair has two neighbouring rows, the chosen response first.
    score_NR = torch.tensor([[0.0], [0.0], [1.0], [0.0], [-100.0], [100.0]])
    none_NR = torch.empty(6, 0)
    total = loss_terms(score_NR, none_NR, objective="bradley-terry").sum().item()
    assert total == pytest.approx(math.log(2) + math.log1p(math.exp(-1)) + 200)
    assert num_terms(none_NR.numpy(), objective="bradley-terry") == 3


@pytest.mark.parametrize(
    ("scores", "targets", "expected"),
    [
        # Targets 0, 1, 2 deviate from 1 by 1 + 0 + 1; the errors are 0, 1, 0: R² = 1 - 1/2.
        ((0, 2, 2), (0, 1, 2), 0.5),
        # Errors 16 + 36 against a deviation of 2.
        ((0, 0), (4, 6), 1 - 52 / 2),
        ((0, 99, 2, 2), (0, NAN, 1, 2), 0.5),
        ((0, 1, 2), (1, NAN, NAN), None),
        ((0, 1, 2), (0.1, 0.1, 0.1), None),
    ],
)
def test_r_squared_equals_values_derived_by_hand(scores, targets, expected):
    r2 = r_squared(np.array(scores, dtype=np.float32), np.array(targets, dtype=np.float32))
    assert r2 == (None if expected is None else pytest.approx(expected))


def test_a_tie_counts_half():
    # Right, wrong, tie, right: 2.5 of 4.
    assert accuracy_half(np.float32([1, -1, 0, 1])) == 0.625
    assert accuracy_half(np.float32([])) is None


def evaluation_of(model, examples, **settings):
    num_held_out = examples.num_pairs - 2
    training = training_of(model, examples, TrainingConfig(**settings), num_held_out=num_held_out)
    record, held_out = evaluate(training, step=7)
    assert held_out.score_P2R.shape == (num_held_out, 2, len(examples.head_ids))
    return record


@pytest.mark.parametrize("layout", ["prefix-shared", "sorted"])
def test_every_layout_and_budget_gives_the_same_evaluation(layout):
    examples = random_examples(12, head_ids=HEAD_IDS, missing_share=0.3)
    model = tiny_model("llama")
    expected = evaluation_of(model, examples, tokens_per_microbatch=10_000)
    record = evaluation_of(model, examples, layout=layout, tokens_per_microbatch=30)
    assert record.loss == pytest.approx(expected.loss, rel=1e-5)
    assert record.r2_by_head == pytest.approx(expected.r2_by_head, rel=1e-4)
    assert record.accuracy_half_by_head == expected.accuracy_half_by_head
    assert (record.step, record.num_pairs) == (7, 10)
    assert list(record.r2_by_head) == list(HEAD_IDS)
    assert record.accuracy_half is None  # there are no weights of heads during training


@pytest.mark.parametrize("is_training", [True, False])
def test_evaluation_has_no_dropout_and_keeps_the_models_mode(is_training):
    examples = random_examples(6)
    model = model_of(examples, "bert", dropout=0.5)
    model.train(is_training)
    first, second = (evaluation_of(model, examples, objective="bradley-terry") for _ in range(2))
    assert first.loss == second.loss
    assert first.r2_by_head == {}
    assert first.accuracy_half_by_head == {"reward": first.accuracy_half}
    assert model.training is is_training
    assert all(weight.grad is None for weight in model.parameters())


def test_scores_that_are_not_finite_are_an_error_that_names_the_pairs():
    examples = random_examples(6)
    model = model_of(examples)
    with torch.no_grad():
        model.trunk.embed_tokens.weight[int(examples.chosen[3][0])] = math.inf
    with pytest.raises(TrainingDivergedError, match=r"held-out score .* at step 7 on .*pair-3"):
        evaluation_of(model, examples, objective="bradley-terry")
