"""The losses by hand, with missing ratings, and cut up in any way."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from encore.training.losses import bradley_terry_loss, loss_sum, multi_head_loss, num_terms

NAN = math.nan


def test_a_response_counts_the_mean_over_its_valid_heads():
    score_NR = torch.tensor([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]])
    target_NR = torch.tensor([[0.0, 0.0, 1.0], [NAN, 2.0, NAN]])
    # First response (1 + 4 + 4) / 3 = 3, second 4 / 1 = 4.
    total, count = multi_head_loss(score_NR, target_NR)
    assert (total.item(), count.item()) == (7.0, 2)


def test_a_response_without_ratings_counts_nothing_and_not():
    target_NR = torch.tensor([[NAN, NAN], [1.0, NAN]])
    total, count = multi_head_loss(torch.zeros(2, 2), target_NR)
    assert (total.item(), count.item()) == (1.0, 1)
    assert num_terms(target_NR.numpy(), objective="multi-head") == 1


def test_no_gradient_reaches_the_head_of_a_missing_rating():
    score_NR = torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    target_NR = torch.tensor([[0.0, NAN], [NAN, NAN]])
    multi_head_loss(score_NR, target_NR)[0].backward()
    # d/ds (s - t)² / 1 = 2 · 1 where rated, exactly 0 elsewhere.
    assert score_NR.grad.tolist() == [[2.0, 0.0], [0.0, 0.0]]


def test_bradley_terry_by_hand():
    chosen_P, rejected_P = torch.tensor([0.0, 1.0]), torch.tensor([0.0, 0.0])
    # -log σ(0) = log 2; -log σ(1) = log(1 + 1/e).
    expected = math.log(2) + math.log1p(math.exp(-1))
    assert bradley_terry_loss(chosen_P, rejected_P).item() == pytest.approx(expected)


def test_bradley_terry_neither_overflows_nor_saturates():
    # -log σ(-200) = 200 + log(1 + e^-200) = 200.
    loss = bradley_terry_loss(torch.tensor([-100.0]), torch.tensor([100.0]))
    assert loss.item() == 200.0


def test_pairs_are_neighbours_chosen_first():
    score_NR = torch.tensor([[2.0], [0.0], [0.0], [1.0]])
    none_NR = torch.empty(4, 0)
    expected = bradley_terry_loss(score_NR[[0, 2], 0], score_NR[[1, 3], 0])
    assert loss_sum(score_NR, none_NR, objective="bradley-terry") == expected
    assert num_terms(none_NR.numpy(), objective="bradley-terry") == 2


@given(st.integers(0, 2**32 - 1), st.integers(1, 11), st.floats(0, 1))
def test_the_sum_over_cuts_is_the_sum_over_all(seed, cut, missing_share):
    generator = np.random.default_rng(seed)
    score_NR = generator.normal(size=(12, 3))
    target_NR = generator.normal(size=(12, 3))
    target_NR[generator.random((12, 3)) < missing_share] = NAN
    score, target = torch.from_numpy(score_NR), torch.from_numpy(target_NR)
    total, count = multi_head_loss(score, target)
    parts = [multi_head_loss(score[rows], target[rows]) for rows in (slice(cut), slice(cut, None))]
    assert sum(part for part, _ in parts).item() == pytest.approx(total.item(), rel=1e-12)
    assert sum(number for _, number in parts) == count
    assert num_terms(target_NR.astype(np.float32), objective="multi-head") == count
