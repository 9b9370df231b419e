"""Attention over segments, three ways: one by one, in one kernel call, and written out."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from encore.core.errors import InputError
from encore.model.attention import (
    SegmentPlan,
    attend_at_once,
    attend_one_by_one,
    kernel_takes,
    segment_attention,
)
from encore.model.layouts import Segment

HEADS, KEY_HEADS, DIM = 4, 2, 8
# A beginning of 5, two that continue it (3 and 4), one alone (6), one token alone.
SHARED = Segment(start=0, stop=5)
SEGMENTS = [
    SHARED,
    *(Segment(start=start, stop=stop, context=SHARED) for start, stop in ((5, 8), (8, 12))),
    *(Segment(start=start, stop=stop) for start, stop in ((12, 18), (18, 19))),
]
LENGTH = SEGMENTS[-1].stop
SCALE = 1 / math.sqrt(DIM)


def queries_keys_values():
    generator = torch.Generator().manual_seed(0)
    return tuple(
        torch.randn(1, heads, LENGTH, DIM, generator=generator).requires_grad_()
        for heads in (HEADS, KEY_HEADS, KEY_HEADS)
    )


def allowed(segments, *, is_causal: bool) -> torch.Tensor:
    """The whole row's mask, written out: the definition the other two are measured by."""
    length = segments[-1].stop
    mask = torch.zeros(length, length, dtype=torch.bool)
    for segment in segments:
        for query in range(segment.start, segment.stop):
            if segment.context:
                mask[query, segment.context.start : segment.context.stop] = True
            stop = query + 1 if is_causal else segment.stop
            mask[query, segment.start : stop] = True
    return mask


def written_out(query, key, value, mask):
    key, value = (t.repeat_interleave(HEADS // KEY_HEADS, dim=1) for t in (key, value))
    scores = (query @ key.transpose(2, 3) * SCALE).masked_fill(~mask, -math.inf)
    return (scores.softmax(-1) @ value).transpose(1, 2)


def varlen_stand_in(query, key, value, cu_q, cu_k, max_q, max_k, *, scale, window_size, enable_gqa):
    """`torch.nn.attention.varlen.varlen_attn` in plain torch, causal aligned to the lower right."""
    assert cu_q.dtype == cu_k.dtype == torch.int32
    assert (max_q, max_k) == (cu_q.diff().max(), cu_k.diff().max())
    outputs = []
    for i in range(len(cu_q) - 1):
        q = query[cu_q[i] : cu_q[i + 1]].transpose(0, 1)[None]
        k, v = (t[cu_k[i] : cu_k[i + 1]].transpose(0, 1)[None] for t in (key, value))
        seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool)
        mask = seen.tril(k.shape[2] - q.shape[2]) if window_size == (-1, 0) else seen
        options = {"attn_mask": mask, "scale": scale, "enable_gqa": enable_gqa}
        outputs.append(scaled_dot_product_attention(q, k, v, **options)[0].transpose(0, 1))
    return torch.cat(outputs)


def outputs_and_gradients(attend):
    inputs = queries_keys_values()
    output = attend(*inputs)
    return output, torch.autograd.grad(output.square().sum(), inputs)


#: An encoder shares nothing: the same row as three sequences.
APART = [Segment(start=start, stop=stop) for start, stop in ((0, 12), (12, 18), (18, 19))]


@pytest.mark.parametrize(("segments", "is_causal"), [(SEGMENTS, True), (APART, False)])
def test_one_by_one_and_in_one_call_equal_the_mask_written_out(segments, is_causal):
    plan = SegmentPlan(segments, is_causal=is_causal, device=torch.device("cpu"))
    mask = allowed(segments, is_causal=is_causal)
    expected = outputs_and_gradients(lambda *qkv: written_out(*qkv, mask))
    for attend in (
        lambda *qkv: attend_one_by_one(*qkv, plan, SCALE),
        lambda *qkv: attend_at_once(*qkv, plan, SCALE, varlen_stand_in),
    ):
        output, gradients = outputs_and_gradients(attend)
        torch.testing.assert_close(output, expected[0], atol=1e-5, rtol=0)
        torch.testing.assert_close(gradients, expected[1], atol=1e-5, rtol=1e-4)


def test_flash_attention_is_used_only_where_it_has_a_kernel():
    case = {"dtype": torch.bfloat16, "head_dim": 128, "capability": (8, 0), "dropout": 0.0}
    assert kernel_takes(**case)
    for changed in (
        {"capability": (7, 5)},  # T4
        {"dtype": torch.float32},
        {"head_dim": 264},
        {"head_dim": 100},
        {"dropout": 0.1},
    ):
        assert not kernel_takes(**{**case, **changed})


@pytest.mark.device
@pytest.mark.skipif(not torch.cuda.is_available(), reason="flash attention needs a GPU")
def test_flash_attention_is_aligned_to_the_lower_right():
    from torch.nn.attention.varlen import varlen_attn

    inputs = [t.detach().cuda().bfloat16().requires_grad_() for t in queries_keys_values()]
    plan = SegmentPlan(SEGMENTS, is_causal=True, device=torch.device("cuda"))
    fast = attend_at_once(*inputs, plan, SCALE, varlen_attn)
    loop = attend_one_by_one(*inputs, plan, SCALE)
    torch.testing.assert_close(fast, loop, atol=2e-2, rtol=2e-2)
    gradients = [torch.autograd.grad(out.square().sum(), inputs) for out in (fast, loop)]
    torch.testing.assert_close(*gradients, atol=5e-2, rtol=5e-2)


def test_attention_that_is_not_computed_here_is_refused():
    inputs, layer = queries_keys_values(), torch.nn.Module()
    plan = SegmentPlan(SEGMENTS, is_causal=True, device=torch.device("cpu"))
    with pytest.raises(InputError, match="attention window 8 tokens: a sequence of 9 is longer"):
        segment_attention(layer, *inputs, None, segment_plan=plan, sliding_window=8)
    # A window that no sequence is longer than changes nothing.
    output, _ = segment_attention(layer, *inputs, None, segment_plan=plan, sliding_window=9)
    torch.testing.assert_close(output, attend_one_by_one(*inputs, plan, None))
