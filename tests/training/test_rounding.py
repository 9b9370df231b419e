"""Stochastic rounding keeps the mean, and its bits follow from seed, step and element."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from encore.training.stochastic_adamw import (
    high_bits,
    random_bits,
    round_stochastically,
    second_stream_bits,
    stream_key,
)

KEY = torch.tensor(stream_key(seed=3, step=7, parameter=11), dtype=torch.int32)
ELEMENTS = torch.arange(2**16, dtype=torch.int32)
INT32 = st.integers(-(2**31), 2**31 - 1)


def unsigned(bits: torch.Tensor) -> np.ndarray:
    return bits.numpy().view(np.uint32).astype(np.int64)


@given(element=INT32, first=INT32, second=INT32)
def test_bits_equal_those_of_the_hash_in_python_integers(element, first, second):
    def mix(x: int) -> int:  # lowbias32 on unsigned numbers, as its author defines it
        x = ((x ^ (x >> 16)) * 0x7FEB352D) % 2**32
        x = ((x ^ (x >> 15)) * 0x846CA68B) % 2**32
        return x ^ (x >> 16)

    expected = mix(mix((element ^ first) % 2**32) ^ (second % 2**32))
    key = torch.tensor([first, second], dtype=torch.int32)
    bits = random_bits(torch.tensor([element], dtype=torch.int32), key)
    assert unsigned(bits)[0] == expected
    assert unsigned(second_stream_bits(bits))[0] == mix(expected ^ 0x9E3779B9)
    assert int(high_bits(bits)) == expected >> 16


@pytest.mark.parametrize(("share", "sign"), [(1 / 3, 1.0), (0.01, -1.0), (0.9, 1.0)])
def test_rounding_keeps_the_mean(share, sign):
    # Between the neighbours 1 and 1 + 2^-7. The mean of n roundings has the standard error
    # 2^-7 sqrt(p (1 - p) / n); five of them are never exceeded by chance.
    step = 2.0**-7
    value = torch.tensor(sign * (1.0 + share * step), dtype=torch.float32)
    rounded = round_stochastically(value.expand(2**16), random_bits(ELEMENTS, KEY)).double()
    assert set(rounded.tolist()) == {sign * 1.0, sign * (1.0 + step)}
    standard_error = step * (share * (1 - share) / 2**16) ** 0.5
    assert abs(float(rounded.mean()) - float(value)) < 5 * standard_error


@pytest.mark.parametrize("bits", [0, 0xFFFF, -1])
def test_no_bfloat16_number_changes_and_nan_and_infinity_stay(bits):
    numbers = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    rounded = round_stochastically(numbers.float(), torch.full((2**16,), bits, dtype=torch.int32))
    same = rounded.view(torch.int16) == numbers.view(torch.int16)
    assert bool((same | numbers.isnan()).all())
    assert bool(rounded[numbers.isnan()].isnan().all())
    patterns = torch.tensor([0x7F800001, 0x7FFFFFFF, -1], dtype=torch.int32)  # NaN in float32 only
    value = patterns.view(torch.float32)
    assert round_stochastically(value, torch.full_like(patterns, bits)).isnan().all()


@pytest.mark.device
def test_a_gpu_computes_the_same_bits_and_rounded_values():
    value = torch.linspace(-3, 3, 2**16)
    expected = round_stochastically(value, random_bits(ELEMENTS, KEY))
    bits = random_bits(ELEMENTS.cuda(), KEY.cuda())
    assert torch.equal(expected, round_stochastically(value.cuda(), bits).cpu())
