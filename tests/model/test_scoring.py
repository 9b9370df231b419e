"""The score of a sequence does not depend on its batch and its layout."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from encore.model.score_sequences import computed_batches, score_sequences
from tests.worlds.models import PAD, pair_with_shared_beginning, tiny_model, token_ids

LENGTHS = (7, 3, 40, 1, 12, 12, 25, 8, 3)
SEQUENCES = [token_ids(length, seed=index) for index, length in enumerate(LENGTHS)]
#: Six sequences in three groups with shared beginnings, and one in no group.
GROUPS = [(0, 1), (2, 3), (4, 5)]
GROUPED = [
    *pair_with_shared_beginning(9, 4, 6, seed=0),
    *pair_with_shared_beginning(1, 2, 30, seed=10),
    *pair_with_shared_beginning(20, 1, 1, seed=20),
    token_ids(11, seed=99),
]


@pytest.fixture(scope="module")
def llama():
    return tiny_model("llama").eval()


def score(model, sequences, **settings):
    return score_sequences(model, sequences, pad_token_id=PAD, **settings)


@given(order=st.permutations(range(len(LENGTHS))), budget=st.integers(1, 120))
@settings(max_examples=25)
def test_scores_come_in_the_order_of_the_sequences(llama, order, budget):
    permuted = score(llama, [SEQUENCES[i] for i in order], tokens_per_microbatch=budget)
    np.testing.assert_allclose(permuted, score(llama, SEQUENCES)[list(order)], atol=1e-5)


def batches(model, sequences, **settings):
    return list(computed_batches(model, sequences, compute=model, pad_token_id=PAD, **settings))


def test_the_longest_sequences_come_first_and_batches_stay_in_the_budget(llama):
    computed = batches(llama, SEQUENCES, tokens_per_microbatch=26)
    lengths = [[LENGTHS[index] for index in batch.indices] for batch in computed]
    # 40 is above the budget and alone. Bins are filled in order of length: 25 (only 1 would fit
    # beside it, but it comes last), then 12 + 12, then 8 + 7 + 3 + 3 + 1.
    assert lengths == [[40], [25], [12, 12], [8, 7, 3, 3, 1]]


def test_shared_beginnings_are_computed_once_and_padding_is_counted(llama):
    [batch] = batches(llama, GROUPED, layout="prefix-shared", groups=GROUPS)
    assert batch.num_computed == batch.num_tokens - (9 + 1 + 20)
    assert batch.num_padding == 0
    # Rows of 12, 12 and of 25, 25 and 24 positions: one position of 75 is padding.
    padded = [token_ids(length, seed=length) for length in (12, 12, 25, 25, 24)]
    computed = batches(llama, padded, layout="sorted")
    assert sum(batch.num_computed for batch in computed) == 24 + 75
    assert sum(batch.num_padding for batch in computed) == 1


def test_the_model_keeps_its_mode_and_dropout_is_off():
    model = tiny_model("bert", hidden_dropout_prob=0.5).train()
    np.testing.assert_array_equal(score(model, SEQUENCES), score(model, SEQUENCES))
    assert model.training
    assert score(model, []).shape == (0, 3)
