"""Splits: whole groups, by content, the same however much data stands around them."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from encore.errors import InputError
from encore.training.splits import folds, split
from tests.training.tiny_training import random_examples


def examples_of(group_P):
    examples = random_examples(len(group_P))
    return dataclasses.replace(examples, group_P=np.asarray(group_P, dtype=np.int64))


groups = st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=40)
seeds = st.integers(0, 2**31)


@given(groups, groups, seeds, st.floats(0.05, 0.5))
def test_more_data_moves_no_pair(first, second, seed, share):
    def evaluated(group_P):
        rows = split(examples_of(group_P), evaluation_share=share, seed=seed).evaluation_rows
        return {group_P[row] for row in rows}

    try:
        before, after = evaluated(first), evaluated([*first, *second])
    except InputError:
        return  # nothing was left to learn from
    if len(before) > 1:  # a single one may be there only because none was drawn
        assert before <= after
        assert after & set(first) == before


@given(groups, seeds)
def test_no_group_is_on_both_sides_and_no_pair_is_lost(group_P, seed):
    group_P = [*group_P, *group_P[::2]]
    examples = examples_of(group_P)
    try:
        parts = split(examples, evaluation_share=0.3, seed=seed)
    except InputError:
        return
    sides = [{group_P[row] for row in rows} for rows in (parts.train_rows, parts.evaluation_rows)]
    assert not sides[0] & sides[1]
    rows = np.concatenate([parts.train_rows, parts.evaluation_rows])
    assert sorted(rows.tolist()) == list(range(len(group_P)))


def test_a_larger_share_only_adds_and_is_near_what_was_asked_for():
    examples = examples_of(np.arange(4000))
    small, large = (
        set(split(examples, evaluation_share=share, seed=3).evaluation_rows.tolist())
        for share in (0.05, 0.2)
    )
    assert small < large
    # Binomial with n = 4000: the standard error is 14 pairs at 0.05, 25 at 0.2.
    assert len(small) == pytest.approx(200, abs=4 * 14)
    assert len(large) == pytest.approx(800, abs=4 * 25)


def test_another_seed_draws_other_pairs():
    examples = examples_of(np.arange(200))
    first, second = (
        split(examples, evaluation_share=0.1, seed=seed).evaluation_rows.tolist() for seed in (0, 1)
    )
    assert first != second


def test_a_handful_of_pairs_still_has_one_to_evaluate():
    examples = examples_of([5, 5, 6])
    parts = split(examples, evaluation_share=1e-6, seed=0)
    assert len(parts.evaluation_rows) in (1, 2)
    assert len(parts.train_rows) + len(parts.evaluation_rows) == 3


def test_one_group_alone_is_for_training():
    parts = split(examples_of([7, 7, 7]), evaluation_share=1e-6, seed=0)
    assert parts.train_rows.tolist() == [0, 1, 2]
    assert parts.evaluation_rows.tolist() == []


def test_no_share_evaluates_nothing():
    parts = split(examples_of(np.arange(5)), evaluation_share=0.0, seed=0)
    assert parts.evaluation_rows.tolist() == []


@pytest.mark.parametrize("share", [-0.1, 1.0, float("nan")])
def test_a_share_out_of_range_is_refused(share):
    with pytest.raises(InputError, match="expected a share from 0 to below 1"):
        split(examples_of([1, 2]), evaluation_share=share, seed=0)


def test_a_split_that_leaves_nothing_to_learn_from_is_refused():
    with pytest.raises(InputError, match="all 1 pairs fall into the evaluation"):
        split(examples_of([1]), evaluation_share=1 - 1e-12, seed=0)


def test_folds_evaluate_every_pair_once_and_part_no_group():
    group_P = np.repeat(np.arange(300), 3)
    parts = folds(examples_of(group_P), num_folds=5, seed=0)
    evaluated = np.concatenate([part.evaluation_rows for part in parts])
    assert sorted(evaluated.tolist()) == list(range(900))
    for part in parts:
        assert not set(group_P[part.train_rows]) & set(group_P[part.evaluation_rows])
        # 300 groups in 5 folds: 60 each, standard error 7 groups of 3 pairs.
        assert len(part.evaluation_rows) == pytest.approx(180, abs=4 * 3 * 7)


def test_too_few_groups_for_the_folds_are_refused():
    with pytest.raises(InputError, match="2 prompt groups leave a fold empty"):
        folds(examples_of([1, 1, 2]), num_folds=3, seed=0)
    with pytest.raises(InputError, match="expected 2 or more"):
        folds(examples_of([1, 2]), num_folds=1, seed=0)
