"""Speed over a window, utilisation by hand."""

from __future__ import annotations

import pytest
import torch

from encore.training.backbone_shape import find_shape, flops_per_token
from encore.training.meter import Arithmetic, SpeedMeter, arithmetic_of, peak_memory_bytes
from tests.training.tiny_training import tiny_llama


def test_speed_is_over_the_last_twenty_steps():
    meter = SpeedMeter()
    # 100 tokens in 1 s, then 300 in 1 s: 400 in 2 s.
    assert meter.add([60, 40], num_computed=100, seconds=1.0).tokens_per_second == 100
    assert meter.add([300], num_computed=300, seconds=1.0).tokens_per_second == 200
    for _ in range(20):
        speed = meter.add([50], num_computed=50, seconds=0.5)
    assert speed.tokens_per_second == 100
    assert speed.mfu is None


def test_utilisation_is_arithmetic_over_time_over_the_peak():
    shape = find_shape("minilm")
    meter = SpeedMeter(Arithmetic(shape=shape, peak_flops=1e12))
    # All sequences have 128 tokens, so the average token is in a sequence of 128.
    per_token = flops_per_token(shape, sequence_length=128)
    speed = meter.add([128] * 10, num_computed=1280, seconds=2.0)
    assert speed.mfu == pytest.approx(1280 * per_token / 2.0 / 1e12)


def test_padding_is_no_work_and_a_shared_prompt_is_work_once():
    shape = find_shape("minilm")

    def used(num_computed):
        meter = SpeedMeter(Arithmetic(shape=shape, peak_flops=1e12))
        return meter.add([128] * 10, num_computed=num_computed, seconds=1.0).mfu

    assert used(2000) == used(1280)
    assert used(640) == pytest.approx(used(1280) / 2)


def test_a_cpu_has_no_utilisation_and_counts_the_memory_of_the_process():
    model = tiny_llama(("reward",))
    assert arithmetic_of(model, method="full") is None
    before = peak_memory_bytes(torch.device("cpu"))
    held = torch.ones(200 << 20, dtype=torch.uint8)
    assert peak_memory_bytes(torch.device("cpu")) >= max(before, held.numel())
