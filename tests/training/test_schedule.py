"""Learning rates by hand, and after which steps a run evaluates and saves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from encore.training.config import TrainingConfig
from encore.training.schedule import (
    is_checkpoint_due,
    is_evaluation_due,
    learning_rate_at,
    num_steps_of,
    steps_per_epoch,
)


def rates(num_steps: int, **settings: object) -> list[float]:
    config = TrainingConfig(learning_rate=1.0, **settings)
    return [
        learning_rate_at(step, config=config, num_steps=num_steps)
        for step in range(1, num_steps + 1)
    ]


def test_linear_warm_up_then_linear_decay():
    # Two steps up to the peak, then from (6 - 3 + 1) / (6 - 2) down by quarters.
    assert rates(6, warmup_steps=2) == [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]


def test_without_warm_up_the_first_step_has_the_peak():
    assert rates(4, warmup_steps=0) == [1.0, 0.75, 0.5, 0.25]


def test_a_run_shorter_than_its_warm_up_only_warms_up():
    assert rates(2, warmup_steps=4) == [0.25, 0.5]


@given(st.integers(1, 200), st.integers(0, 50))
def test_every_rate_is_above_0_and_at_most_the_peak(num_steps, warmup_steps):
    assert all(0 < rate <= 1 for rate in rates(num_steps, warmup_steps=warmup_steps))


def test_no_pair_is_dropped_at_the_end_of_an_epoch():
    assert steps_per_epoch(65, batch_pairs=32) == 3
    assert num_steps_of(65, TrainingConfig(epochs=2)) == 6
    assert num_steps_of(65, TrainingConfig(epochs=2, max_steps=4)) == 4
    assert num_steps_of(65, TrainingConfig(epochs=2, max_steps=40)) == 6


def evaluated(config: TrainingConfig, *, num_steps: int, steps_per_epoch: int) -> list[int]:
    return [
        step
        for step in range(1, num_steps + 1)
        if is_evaluation_due(
            step, config=config, num_steps=num_steps, steps_per_epoch=steps_per_epoch
        )
    ]


def saved(config: TrainingConfig, *, num_steps: int, steps_per_epoch: int = 5) -> list[int]:
    return [
        step
        for step in range(1, num_steps + 1)
        if is_checkpoint_due(
            step, config=config, num_steps=num_steps, steps_per_epoch=steps_per_epoch
        )
    ]


@pytest.mark.parametrize("config", [TrainingConfig(), TrainingConfig(evaluate_every=2)])
def test_four_evaluations_an_epoch_each_with_a_checkpoint_by_default(config):
    assert evaluated(config, num_steps=16, steps_per_epoch=8) == [*range(2, 17, 2)]
    assert saved(config, num_steps=16, steps_per_epoch=8) == [*range(2, 17, 2)]


def test_checkpoints_may_have_a_rhythm_of_their_own():
    config = TrainingConfig(evaluate_every=4, checkpoint_every=3)
    assert saved(config, num_steps=8) == [3, 6, 8]


@pytest.mark.parametrize("num_steps", [1, 7, 10])
def test_the_last_step_is_always_evaluated_and_saved(num_steps):
    config = TrainingConfig(evaluate_every=3, checkpoint_every=4)
    assert evaluated(config, num_steps=num_steps, steps_per_epoch=5)[-1] == num_steps
    assert saved(config, num_steps=num_steps)[-1] == num_steps
    assert saved(TrainingConfig(), num_steps=num_steps)[-1] == num_steps
