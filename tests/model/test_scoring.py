"""A sequence scores the same whatever is computed beside it, however it is laid out."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from encore.errors import InputError
from encore.model.layouts import shared_length
from encore.model.scoring import best_layout, computed_batches, score_sequences
from tests.model.tiny_models import PAD, pair_with_shared_beginning, tiny_model, token_ids

LAYOUTS = ("packed", "sorted", "single")
LENGTHS = (7, 3, 40, 1, 12, 12, 25, 8, 3)


@pytest.fixture(scope="module")
def llama():
    return tiny_model("llama").eval()


def sequences_of(lengths=LENGTHS):
    return [token_ids(length, seed=place) for place, length in enumerate(lengths)]


def pairs():
    """Six sequences in three groups that begin alike, and one that stands alone."""
    shapes = [(9, 4, 6), (1, 2, 30), (20, 1, 1)]
    grouped = [
        one
        for seed, shape in enumerate(shapes)
        for one in pair_with_shared_beginning(*shape, seed=10 * seed)
    ]
    return [*grouped, token_ids(11, seed=99)], [(0, 1), (2, 3), (4, 5)]


def score(model, sequences, **settings):
    return score_sequences(model, sequences, pad_token_id=PAD, **settings)


def one_by_one(model, sequences):
    return np.concatenate([score(model, [sequence], layout="single") for sequence in sequences])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("budget", [1, 16, 50, 10_000])
@pytest.mark.parametrize("model_type", ["llama", "bert"])
def test_scores_do_not_depend_on_layout_and_batch_size(model_type, layout, budget):
    model, sequences = tiny_model(model_type).eval(), sequences_of()
    found = score(model, sequences, layout=layout, tokens_per_microbatch=budget)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, one_by_one(model, sequences), atol=1e-5)


@pytest.mark.parametrize("budget", [1, 30, 10_000])
def test_a_shared_beginning_changes_no_score(llama, budget):
    sequences, groups = pairs()
    found = score(
        llama, sequences, layout="prefix-shared", groups=groups, tokens_per_microbatch=budget
    )
    np.testing.assert_allclose(found, one_by_one(llama, sequences), atol=1e-5)


@given(order=st.permutations(range(len(LENGTHS))), budget=st.integers(1, 120))
def test_scores_come_in_the_order_of_the_sequences(order, budget):
    model, sequences = tiny_model("llama").eval(), sequences_of()
    permuted = score(model, [sequences[i] for i in order], tokens_per_microbatch=budget)
    np.testing.assert_allclose(permuted, score(model, sequences)[list(order)], atol=1e-5)


def test_the_longest_come_first_and_batches_stay_in_the_budget(llama):
    batches = list(
        computed_batches(
            llama, sequences_of(), compute=llama, pad_token_id=PAD, tokens_per_microbatch=26
        )
    )
    lengths = [[LENGTHS[index] for index in batch.indices] for batch in batches]
    # 40 is beyond the budget and goes alone; then 25, to which no other but 1 would fit, and bins
    # are filled in order of length: 12 + 12, then 8 + 7 + 3 + 3 + 1.
    assert lengths == [[40], [25], [12, 12], [8, 7, 3, 3, 1]]
    assert sorted(itertools.chain(*(batch.indices for batch in batches))) == list(range(9))
    assert all(batch.num_padding == 0 for batch in batches)
    assert sum(batch.num_tokens for batch in batches) == sum(LENGTHS)


def test_what_is_shared_is_computed_once_and_no_padding(llama):
    sequences, groups = pairs()
    [batch] = computed_batches(
        llama,
        sequences,
        compute=llama,
        pad_token_id=PAD,
        layout="prefix-shared",
        groups=groups,
        tokens_per_microbatch=10_000,
    )
    saved = sum(shared_length([sequences[i] for i in group]) for group in groups)
    assert saved == 9 + 1 + 20
    assert batch.num_computed == batch.num_tokens - saved
    assert batch.num_padding == 0


def test_the_model_is_left_as_it_was_and_dropout_is_off():
    model = tiny_model("bert", hidden_dropout_prob=0.5).train()
    sequences = sequences_of()
    first, second = score(model, sequences), score(model, sequences)
    np.testing.assert_array_equal(first, second)
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not torch.is_inference_mode_enabled()


def test_nothing_to_score_is_no_rows(llama):
    assert score(llama, []).shape == (0, 3)
    assert score(llama, [], layout="prefix-shared", groups=[]).shape == (0, 3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"layout": "prefix-shared"}, "no groups"),
        ({"layout": "prefix-shared", "groups": [(0, 1), (1, 2)]}, "an index twice or out of"),
        ({"layout": "prefix-shared", "groups": [(0, 9)]}, "an index twice or out of range"),
    ],
)
def test_groups_must_part_the_sequences(llama, settings, message):
    with pytest.raises(InputError, match=message):
        score(llama, sequences_of(), **settings)


def test_an_encoder_shares_no_beginning():
    bert = tiny_model("bert").eval()
    assert best_layout(bert) == "packed"
    sequences, groups = pairs()
    with pytest.raises(InputError, match="bidirectional"):
        score(bert, sequences, layout="prefix-shared", groups=groups)
