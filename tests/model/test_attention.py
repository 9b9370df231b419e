"""Attention over segments in three ways: by segment, in one kernel call, and by its definition."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from encore.core.errors import InputError
from encore.model.attention import (
    SegmentPlan,
    attend_by_kernel,
    attend_by_segment,
    segment_attention,
    supports_varlen_attention,
)
from encore.model.layouts import Segment

HEADS, KEY_HEADS, DIM = 4, 2, 8
# A shared beginning of 5 tokens, two sequences that continue it (3 and 4 tokens), and two sequences
# that share nothing (6 tokens and 1 token).
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


def row_mask(segments, *, is_causal: bool) -> torch.Tensor:
    """Return the mask [L, L] of the whole row: the definition that both implementations meet."""
    length = segments[-1].stop
    mask = torch.zeros(length, length, dtype=torch.bool)
    for segment in segments:
        for query in range(segment.start, segment.stop):
            if segment.context:
                mask[query, segment.context.start : segment.context.stop] = True
            stop = query + 1 if is_causal else segment.stop
            mask[query, segment.start : stop] = True
    return mask


def attend_by_definition(query, key, value, mask):
    key, value = (t.repeat_interleave(HEADS // KEY_HEADS, dim=1) for t in (key, value))
    scores = (query @ key.transpose(2, 3) * SCALE).masked_fill(~mask, -math.inf)
    return (scores.softmax(-1) @ value).transpose(1, 2)


def varlen_stand_in(query, key, value, cu_q, cu_k, max_q, max_k, *, scale, window_size, enable_gqa):
    """Compute what `torch.nn.attention.varlen.varlen_attn` does, in plain torch.

    Causal masks are aligned to the lower right.
    """
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


#: The sequences of an encoder share nothing: the same row as three sequences.
UNSHARED = [Segment(start=start, stop=stop) for start, stop in ((0, 12), (12, 18), (18, 19))]


@pytest.mark.parametrize(("segments", "is_causal"), [(SEGMENTS, True), (UNSHARED, False)])
def test_both_implementations_equal_the_definition_of_attention(segments, is_causal):
    plan = SegmentPlan(segments, is_causal=is_causal, device=torch.device("cpu"))
    mask = row_mask(segments, is_causal=is_causal)
    expected = outputs_and_gradients(lambda *qkv: attend_by_definition(*qkv, mask))
    for attend in (
        lambda *qkv: attend_by_segment(*qkv, plan, SCALE),
        lambda *qkv: attend_by_kernel(*qkv, plan, SCALE, varlen_stand_in),
    ):
        output, gradients = outputs_and_gradients(attend)
        torch.testing.assert_close(output, expected[0], atol=1e-5, rtol=0)
        torch.testing.assert_close(gradients, expected[1], atol=1e-5, rtol=1e-4)


def test_flash_attention_is_used_only_where_it_has_a_kernel():
    case = {"dtype": torch.bfloat16, "head_dim": 128, "capability": (8, 0), "dropout": 0.0}
    assert supports_varlen_attention(**case)
    for changed in (
        {"capability": (7, 5)},  # T4
        {"dtype": torch.float32},
        {"head_dim": 264},
        {"head_dim": 100},
        {"dropout": 0.1},
    ):
        assert not supports_varlen_attention(**{**case, **changed})


@pytest.mark.device
@pytest.mark.skipif(not torch.cuda.is_available(), reason="flash attention needs a GPU")
def test_flash_attention_is_aligned_to_the_lower_right():
    from torch.nn.attention.varlen import varlen_attn

    inputs = [t.detach().cuda().bfloat16().requires_grad_() for t in queries_keys_values()]
    plan = SegmentPlan(SEGMENTS, is_causal=True, device=torch.device("cuda"))
    fast = attend_by_kernel(*inputs, plan, SCALE, varlen_attn)
    loop = attend_by_segment(*inputs, plan, SCALE)
    torch.testing.assert_close(fast, loop, atol=2e-2, rtol=2e-2)
    gradients = [torch.autograd.grad(out.square().sum(), inputs) for out in (fast, loop)]
    torch.testing.assert_close(*gradients, atol=5e-2, rtol=5e-2)


def test_a_sequence_longer_than_the_attention_window_is_refused():
    inputs, layer = queries_keys_values(), torch.nn.Module()
    plan = SegmentPlan(SEGMENTS, is_causal=True, device=torch.device("cpu"))
    with pytest.raises(InputError, match="attention window 8 tokens: a sequence of 9 is longer"):
        segment_attention(layer, *inputs, None, segment_plan=plan, sliding_window=8)
    # A window that no sequence is longer than changes nothing.
    output, _ = segment_attention(layer, *inputs, None, segment_plan=plan, sliding_window=9)
    torch.testing.assert_close(output, attend_by_segment(*inputs, plan, None))
