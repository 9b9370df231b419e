"""Stochastic rounding to bfloat16, with random bits that are a function of what they are for.

A bfloat16 number is a float32 without its last 16 bits. Adding 16 random bits before cutting them
off rounds up with exactly the probability that keeps the mean: tiny updates are lost one by one but
not on average. The bits are a hash of (seed, step, parameter number, element), so that a resumed
run needs no generator state, and a tensor may be processed in any pieces, on any device.
"""

from __future__ import annotations

import hashlib
import struct

import torch
from torch import Tensor

#: Elements are numbered in 32 bits.
MAX_ELEMENTS = 2**31

# Rounds and constants of Chris Wellons' "lowbias32" (public domain): a change of any input bit
# changes each output bit with probability 1/2 to within 0.17 %. As signed 32-bit numbers.
_MULTIPLIER_1 = 0x7FEB352D
_MULTIPLIER_2 = 0x846CA68B - 2**32
#: Starts a second stream from the first: the golden ratio's 32 bits.
_SECOND_STREAM = 0x9E3779B9 - 2**32

_LOW_16 = 0xFFFF
_HIGH_16 = -0x10000


def stream_key(*, seed: int, step: int, parameter: int) -> tuple[int, int]:
    """Two signed 32-bit numbers that differ between seeds, steps and parameters."""
    text = struct.pack("<Qqq", seed, step, parameter)
    first, second = struct.unpack("<ii", hashlib.blake2b(text, digest_size=8).digest())
    return first, second


def random_bits(element: Tensor, key: Tensor) -> Tensor:
    """32 random bits for each element.

    Args:
        element: Numbers of the elements, int32.
        key: `stream_key` as int32, shape [2].

    Returns:
        int32, like ``element``: any 16 of its bits serve `round_stochastically`.
    """
    return _mixed(_mixed(element ^ key[0]) ^ key[1])


def further_bits(bits: Tensor) -> Tensor:
    """32 more, where 32 are not enough."""
    return _mixed(bits ^ _SECOND_STREAM)


def round_stochastically(value: Tensor, bits: Tensor) -> Tensor:
    """Values as bfloat16, each up or down so that its expectation is the value itself.

    Numbers that bfloat16 can hold never change; NaN and infinity pass.

    Args:
        value: float32.
        bits: int32 of the same shape, of which the lowest 16 are used.
    """
    raised = value.view(torch.int32) + (bits & _LOW_16)
    rounded = (raised & _HIGH_16).view(torch.float32)
    # On NaN the addition would run over into the sign; the plain cast keeps it.
    return torch.where(torch.isfinite(value), rounded, value).to(torch.bfloat16)


def high_bits(bits: Tensor) -> Tensor:
    """The upper 16 bits, for a second use of the same 32."""
    return (bits >> 16) & _LOW_16


def _mixed(x: Tensor) -> Tensor:
    """A bijection of 32-bit integers without visible structure. Multiplication wraps around."""
    x = (x ^ ((x >> 16) & 0xFFFF)) * _MULTIPLIER_1  # masked: >> repeats the sign bit
    x = (x ^ ((x >> 15) & 0x1FFFF)) * _MULTIPLIER_2
    return x ^ ((x >> 16) & 0xFFFF)
