"""Microbatches have every pair once, stay within the budget and have almost no padding."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from encore.training.batches import plan_microbatches, shuffle_pairs
from tests.worlds.models import LAYOUTS
from tests.worlds.trainings import UnconnectedRanks

lengths_of_pairs = st.lists(st.integers(1, 300), min_size=2, max_size=40).map(
    lambda lengths: lengths[: len(lengths) // 2 * 2]
)


def skewed_lengths(num_pairs: int) -> np.ndarray:
    """Return two lengths for each pair: mean about 200 tokens, a long tail cut at 1024."""
    generator = np.random.default_rng(0)
    prompt_P = generator.lognormal(np.log(70), 0.9, num_pairs)
    response_N = generator.lognormal(np.log(75), 0.8, 2 * num_pairs)
    return np.clip(np.repeat(prompt_P, 2) + response_N, 8, 1024).astype(np.int64)


@pytest.mark.parametrize("is_paired", [True, False])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_padding_is_below_2_percent_and_no_token_is_dropped(layout, is_paired):
    length_N = skewed_lengths(1600)
    tokens_P = length_N.reshape(-1, 2).sum(axis=1) if layout == "sorted" else None
    real = positions = 0
    for rows in shuffle_pairs(1600, batch_pairs=32, seed=0, epoch=0, pair_tokens_P=tokens_P):
        lengths = length_N.reshape(-1, 2)[rows].ravel()
        plans = plan_microbatches(
            lengths, layout=layout, tokens_per_microbatch=16_384, is_paired=is_paired
        )
        for part in (lengths[list(part)] for plan in plans for part in plan.parts):
            real += part.sum()
            positions += part.max() * len(part) if layout in ("sorted", "single") else part.sum()
    assert real == length_N.sum()
    assert positions - real < 0.02 * positions


@given(st.integers(1, 200), st.integers(1, 40), st.integers(0, 5), st.booleans())
def test_an_epoch_has_every_pair_once_in_steps_of_equal_size(
    num_pairs, batch_pairs, epoch, by_length
):
    tokens_P = np.random.default_rng(1).integers(1, 99, num_pairs) if by_length else None
    settings = {"batch_pairs": batch_pairs, "seed": 3, "pair_tokens_P": tokens_P}
    steps = shuffle_pairs(num_pairs, epoch=epoch, **settings)
    next_steps = shuffle_pairs(num_pairs, epoch=epoch + 1, **settings)
    if num_pairs > 30 and not by_length:
        assert np.concatenate(steps).tolist() != np.concatenate(next_steps).tolist()
    sizes = {len(rows) for rows in steps}
    assert len(steps) == -(-num_pairs // batch_pairs)
    assert max(sizes) <= batch_pairs
    assert max(sizes) - min(sizes) <= 1
    assert sorted(np.concatenate(steps)) == list(range(num_pairs))


@given(lengths_of_pairs, st.sampled_from(LAYOUTS), st.booleans(), st.integers(1, 600))
def test_every_sequence_is_computed_once_and_within_the_budget(lengths, layout, is_paired, budget):
    plans = plan_microbatches(
        lengths, layout=layout, tokens_per_microbatch=budget, is_paired=is_paired
    )
    assert sorted(n for plan in plans for n in plan.sequences) == list(range(len(lengths)))
    for plan in plans:
        num_units = len(plan.sequences) // (1 if layout == "sorted" and not is_paired else 2)
        tokens = sum(lengths[n] for n in plan.sequences)
        assert tokens <= budget or num_units <= 1
        pairs = [n // 2 for n in plan.sequences]
        if is_paired:  # the loss needs both responses
            assert all(pairs.count(pair) == 2 for pair in pairs)
        if layout == "prefix-shared":  # the shared beginning is computed in one part
            assert plan.parts == (tuple(2 * pair + side for pair in pairs[::2] for side in (0, 1)),)


def test_a_shared_prompt_counts_once_in_the_budget():
    # Two pairs of 10 + 10 tokens, 6 of them shared: 14 computed a pair, so 28 hold both.
    pairs = {"layout": "prefix-shared", "is_paired": True, "shared_P": [6, 6]}
    assert len(plan_microbatches([10] * 4, tokens_per_microbatch=28, **pairs)) == 1
    assert len(plan_microbatches([10] * 4, tokens_per_microbatch=27, **pairs)) == 2


# --- several processes --------------------------------------------------------------------------


def plans_by_rank(length_N, *, num_ranks, layout="packed", budget=400, **settings):
    settings = {"is_paired": False, "tokens_per_microbatch": budget} | settings
    return [
        plan_microbatches(
            length_N, ranks=UnconnectedRanks(rank, num_ranks), layout=layout, **settings
        )
        for rank in range(num_ranks)
    ]


@given(length_N=lengths_of_pairs, num_ranks=st.integers(1, 5), is_paired=st.booleans())
def test_every_sequence_counts_once_and_all_processes_have_the_same_number_of_passes(
    length_N, num_ranks, is_paired
):
    plans_of_ranks = plans_by_rank(length_N, num_ranks=num_ranks, is_paired=is_paired)
    plans = [plan for plans in plans_of_ranks for plan in plans]
    assert {plan.weight for plan in plans} <= {0.0, 1.0}
    sequences = sorted(s for plan in plans if plan.weight for s in plan.sequences)
    assert sequences == list(range(len(length_N)))
    assert len({len(plans) for plans in plans_of_ranks}) == 1
    # One forward pass each: in a second one, other processes would not take part.
    assert all(len(plan.parts) == 1 for plan in plans)


def test_a_process_without_a_pair_repeats_the_cheapest_pair_with_weight_0():
    # Pairs of 30, 8 and 20 tokens for four processes: the last one has none.
    plans_of_ranks = plans_by_rank([10, 20, 4, 4, 10, 10], num_ranks=4)
    assert [[(plan.sequences, plan.weight) for plan in plans] for plans in plans_of_ranks] == [
        [((0, 1), 1.0)],
        [((4, 5), 1.0)],
        [((2, 3), 1.0)],
        [((2, 3), 0.0)],
    ]
