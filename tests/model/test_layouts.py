"""Every layout holds all tokens of each sequence, with positions from its beginning."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from encore.core.errors import InputError
from encore.model.layouts import lay_out, shared_length

PAD = 0

sequences = st.lists(
    st.lists(st.integers(1, 3), min_size=1, max_size=9).map(lambda ids: np.array(ids, np.int32)),
    min_size=1,
    max_size=8,
)


def visible_tokens(microbatch, index: int) -> tuple[list[int], list[int]]:
    """Return ids and positions of the tokens that a sequence's last token attends to, in order."""
    ids = microbatch.token_ids_BL.flatten()
    positions = microbatch.position_ids_BL.flatten()
    first, last = int(microbatch.first_N[index]), int(microbatch.last_N[index])
    indices = list(range(first, last + 1))
    for segment in microbatch.segments or ():
        if segment.start == first and segment.context:
            indices = [*range(segment.context.start, segment.context.stop), *indices]
    return ids[indices].tolist(), positions[indices].tolist()


@given(sequences, st.sampled_from(["packed", "prefix-shared", "sorted"]))
def test_every_sequence_is_complete_with_positions_from_zero(batch, layout):
    half = len(batch) // 2
    pairs = [(i, i + half) for i in range(half)]  # pairs that are not neighbours in the batch
    microbatch = lay_out(batch, layout=layout, groups=pairs, pad_token_id=PAD, is_causal=True)
    for index, ids in enumerate(batch):
        assert visible_tokens(microbatch, index) == (ids.tolist(), list(range(len(ids))))
    num_tokens = sum(map(len, batch))
    assert microbatch.num_tokens == num_tokens
    shared = sum(shared_length([batch[i] for i in pair]) for pair in pairs)
    padded = len(batch) * max(map(len, batch))
    expected = {"packed": num_tokens, "prefix-shared": num_tokens - shared, "sorted": padded}
    assert microbatch.num_computed == expected[layout]


def test_sequences_that_cannot_be_laid_out_are_refused():
    for batch, layout, is_causal, message in (
        ([[1, 2], [1, 3]], "prefix-shared", False, "bidirectional, .* use 'packed'"),
        ([[1, 2], [1, 3]], "single", True, "one per microbatch"),
        ([[1, 2], []], "packed", True, "none empty"),
        ([], "packed", True, "none empty"),
    ):
        arrays = [np.array(ids, np.int32) for ids in batch]
        with pytest.raises(InputError, match=message):
            lay_out(arrays, layout=layout, pad_token_id=PAD, is_causal=is_causal)
