"""Folding is exact, and weights that do not fit the heads are refused with both sides named."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from encore.errors import InputError
from encore.export.classifier import fold

HEADS = ("a", "b")


def test_the_folded_head_is_the_weighted_sum_of_the_heads():
    weight_RD = torch.tensor([[1.0, 2.0, -1.0], [0.5, 0.0, 3.0]])
    # 0.25 * 1 + 0.75 * 0.5 = 0.625;  0.25 * 2 = 0.5;  0.25 * -1 + 0.75 * 3 = 2
    folded = fold(weight_RD, {"b": 0.75, "a": 0.25}, HEADS)
    assert folded.tolist() == [[0.625, 0.5, 2.0]]
    assert folded.dtype is torch.float64


@given(
    weights=st.lists(st.floats(-3, 3), min_size=2, max_size=6).filter(any),
    seed=st.integers(0, 2**31),
)
def test_scoring_then_weighing_is_weighing_then_scoring(weights, seed):
    generator = torch.Generator().manual_seed(seed)
    head_ids = [f"rule-{index}" for index in range(len(weights))]
    weight_RD = torch.randn(len(weights), 8, generator=generator)
    hidden_ND = torch.randn(5, 8, generator=generator).double()
    by_id = dict(zip(head_ids, weights, strict=True))
    composed_N = (hidden_ND @ weight_RD.double().T) @ torch.tensor(weights, dtype=torch.float64)
    torch.testing.assert_close(
        hidden_ND @ fold(weight_RD, by_id, head_ids)[0], composed_N, rtol=1e-12, atol=1e-12
    )


def test_small_heads_under_large_ones_are_not_lost_to_float32():
    # In float32 1e8 + 1 is 1e8, and what is left of the second head would be 0.
    weight_RD = torch.tensor([[1e8], [1.0], [-1e8]])
    assert fold(weight_RD, {"a": 1.0, "b": 1.0, "c": 1.0}, "abc").item() == 1.0


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"a": 1.0}, "nothing among the weights but no head, b among the heads but not weighed"),
        ({"a": 0.5, "b": 0.5, "c": 0.0}, "c among the weights but no head, nothing among"),
        ({"a": 0.5, "B": 0.5}, "B among the weights but no head, b among the heads"),
        ({"a": math.nan, "b": 1.0}, "nan for rule a; expected a finite number"),
        ({"a": 1.0, "b": math.inf}, "inf for rule b"),
        ({"a": 0.0, "b": 0.0}, "all are 0"),
    ],
)
def test_weights_that_do_not_fit_the_heads_are_refused(weights, message):
    with pytest.raises(InputError, match=message):
        fold(torch.ones(2, 3), weights, HEADS)
