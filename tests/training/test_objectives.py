"""The losses by hand, learning rates by hand, speed over a window, and what a config refuses."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from encore.training.backbone_shape import find_shape, flops_per_token
from encore.training.config import TrainingConfig
from encore.training.losses import bradley_terry_loss, loss_sum, multi_head_loss, num_terms
from encore.training.meter import SpeedMeter, peak_memory_bytes
from encore.training.schedule import intervals, learning_rate_at, num_steps_of, steps_per_epoch
from tests.training.studies import make_backbone

NAN = math.nan


# --- losses -------------------------------------------------------------------------------------


def test_a_response_counts_the_mean_over_its_valid_heads():
    score_NR = torch.tensor([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0], [1.0, 1.0, 1.0]])
    target_NR = torch.tensor([[0.0, 0.0, 1.0], [NAN, 2.0, NAN], [NAN, NAN, NAN]])
    # First response (1 + 4 + 4) / 3 = 3, second 4 / 1 = 4, the third nothing and not NaN.
    total, count = multi_head_loss(score_NR, target_NR)
    assert (total.item(), count.item()) == (7.0, 2)
    assert num_terms(target_NR.numpy(), objective="multi-head") == 2


def test_no_gradient_reaches_the_head_of_a_missing_rating():
    score_NR = torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    target_NR = torch.tensor([[0.0, NAN], [NAN, NAN]])
    multi_head_loss(score_NR, target_NR)[0].backward()
    # d/ds (s - t)² / 1 = 2 · 1 where rated, exactly 0 elsewhere.
    assert score_NR.grad.tolist() == [[2.0, 0.0], [0.0, 0.0]]


def test_bradley_terry_by_hand():
    chosen_P, rejected_P = torch.tensor([0.0, 1.0]), torch.tensor([0.0, 0.0])
    # -log σ(0) = log 2; -log σ(1) = log(1 + 1/e); -log σ(-200) = 200 + log(1 + e^-200) = 200.
    expected = math.log(2) + math.log1p(math.exp(-1))
    assert bradley_terry_loss(chosen_P, rejected_P).item() == pytest.approx(expected)
    assert bradley_terry_loss(torch.tensor([-100.0]), torch.tensor([100.0])).item() == 200.0
    # Pairs are neighbours, chosen first.
    score_NR, none_NR = torch.tensor([[0.0], [0.0], [1.0], [0.0]]), torch.empty(4, 0)
    total = loss_sum(score_NR, none_NR, objective="bradley-terry")
    assert total.item() == pytest.approx(expected)
    assert num_terms(none_NR.numpy(), objective="bradley-terry") == 2


@given(st.integers(0, 2**32 - 1), st.integers(1, 11), st.floats(0, 1))
def test_the_sum_over_cuts_is_the_sum_over_all(seed, cut, missing_share):
    generator = np.random.default_rng(seed)
    score_NR, target_NR = generator.normal(size=(2, 12, 3))
    target_NR[generator.random((12, 3)) < missing_share] = NAN
    score, target = torch.from_numpy(score_NR), torch.from_numpy(target_NR)
    total, count = multi_head_loss(score, target)
    parts = [multi_head_loss(score[rows], target[rows]) for rows in (slice(cut), slice(cut, None))]
    assert sum(part for part, _ in parts).item() == pytest.approx(total.item(), rel=1e-12)
    assert sum(number for _, number in parts) == count


# --- schedule -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_steps", "warmup_steps", "expected"),
    [
        # Two steps up to the peak, then from (6 - 3 + 1) / (6 - 2) down by quarters.
        (6, 2, [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]),
        (4, 0, [1.0, 0.75, 0.5, 0.25]),
        (2, 4, [0.25, 0.5]),
    ],
)
def test_linear_warm_up_then_linear_decay(num_steps, warmup_steps, expected):
    config = TrainingConfig(learning_rate=1.0, warmup_steps=warmup_steps)
    rates = [
        learning_rate_at(step, config=config, num_steps=num_steps)
        for step in range(1, num_steps + 1)
    ]
    assert rates == expected


def test_no_pair_is_dropped_at_the_end_of_an_epoch():
    assert steps_per_epoch(65, batch_pairs=32) == 3
    assert num_steps_of(65, TrainingConfig(epochs=2)) == 6
    assert num_steps_of(65, TrainingConfig(epochs=2, max_steps=4)) == 4


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, (2, 2)),  # four evaluations an epoch of 8 steps, each with a checkpoint
        ({"evaluate_every": 4}, (4, 4)),
        ({"evaluate_every": 4, "checkpoint_every": 3}, (4, 3)),
    ],
)
def test_evaluations_and_checkpoints_have_their_intervals(settings, expected):
    assert intervals(TrainingConfig(**settings), steps_per_epoch=8) == expected


# --- speed --------------------------------------------------------------------------------------


def test_speed_is_over_the_last_twenty_steps():
    meter = SpeedMeter()
    # 100 tokens in 1 s, then 300 in 1 s: 400 in 2 s.
    assert meter.add([60, 40], num_computed=100, seconds=1.0) == (100, None)
    assert meter.add([300], num_computed=300, seconds=1.0) == (200, None)
    for _ in range(20):
        speed, _ = meter.add([50], num_computed=50, seconds=0.5)
    assert speed == 100


def test_utilisation_is_arithmetic_over_time_over_the_peak(tmp_path):
    shape = find_shape(str(make_backbone(tmp_path / "tiny")))
    # All sequences have 128 tokens, so the average token is in a sequence of 128.
    work = 1280 * flops_per_token(shape, sequence_length=128)

    def used(num_computed: int) -> float | None:
        meter = SpeedMeter(shape, peak_flops=1e12)
        return meter.add([128] * 10, num_computed=num_computed, seconds=2.0)[1]

    assert used(1280) == pytest.approx(work / 2.0 / 1e12)
    assert used(2000) == used(1280)  # padding is no work
    assert used(640) == pytest.approx(used(1280) / 2)  # a shared prompt is work once


def test_memory_of_a_process_on_a_cpu():
    held = torch.ones(200 << 20, dtype=torch.uint8)
    assert peak_memory_bytes(torch.device("cpu")) >= held.numel()


# --- config -------------------------------------------------------------------------------------


def test_the_papers_values_are_the_defaults():
    config = TrainingConfig()
    assert (config.epochs, config.learning_rate) == (1, 2e-5)
    assert (config.objective, config.method) == ("multi-head", "full")
    other = TrainingConfig(adam_betas=(0.8, 0.95), max_steps=3, layout="sorted")
    assert TrainingConfig.model_validate_json(other.model_dump_json()) == other


@pytest.mark.parametrize(
    "settings",
    [
        {"learning_rat": 1e-5},
        {"learning_rate": 0},
        {"batch_pairs": 0},
        {"evaluation_share": 1},
        {"adam_betas": (0.9, 1.0)},
        {"seed": -1},
        {"layout": "padded"},
        {"optimizer": "adamw-8bit"},
        {"clip_gradient": 0},
        {"method": "probe", "head_init": "own"},
    ],
)
def test_what_is_unknown_or_out_of_range_is_refused(settings):
    with pytest.raises(ValidationError):
        TrainingConfig(**settings)


def test_reading_a_config_loads_no_torch():
    code = "import json, sys, encore.training.config; print(json.dumps(sorted(sys.modules)))"
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert not {"torch", "transformers", "peft"} & set(json.loads(answer.stdout))
