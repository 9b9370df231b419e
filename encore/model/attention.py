"""Attention over the segments of a packed row: each token sees its own sequence and no other.

Legend: H query heads, K key heads, L tokens of the row, S segments, D head dimension.

Registered with transformers under the name of `register_segment_attention`, it gets the plan as a
keyword of the trunk's forward. A keyword is bound into every checkpointed layer call, so the
recomputation in the backward pass sees the same plan; a context variable would be gone by then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import bidirectional_mask_function

from encore.core.errors import InputError
from encore.model.layouts import Segment

SEGMENT_ATTENTION = "encore-segments"

_KERNEL_DTYPES = (torch.bfloat16, torch.float16)
_MAX_KERNEL_HEAD_DIM = 256
_KERNEL_CAPABILITY = (8, 0)


def register_segment_attention() -> str:
    """Make this attention known to transformers and return its name for ``attn_implementation``."""
    AttentionInterface.register(SEGMENT_ATTENTION, segment_attention)
    # An implementation without a mask function is never given the padding mask at all.
    AttentionMaskInterface.register(SEGMENT_ATTENTION, key_mask)
    return SEGMENT_ATTENTION


@dataclass(eq=False)
class SegmentPlan:
    """The segments of one packed row in the forms attention wants, each made once, on first use.

    Attributes:
        segments: In order, together the whole row.
        is_causal: Whether a token sees only what comes before it.
        device: Where masks and indices go.
    """

    segments: Sequence[Segment]
    is_causal: bool
    device: torch.device

    @cached_property
    def length_S(self) -> list[int]:
        """Tokens of each segment."""
        return [segment.num_queries for segment in self.segments]

    @cached_property
    def max_keys(self) -> int:
        """Keys of the segment that has most."""
        return max(segment.num_keys for segment in self.segments)

    @cached_property
    def context_S(self) -> list[int | None]:
        """Index of the segment that is each segment's context, None where there is none."""
        place = {segment: index for index, segment in enumerate(self.segments)}
        return [place[one.context] if one.context else None for one in self.segments]

    @cached_property
    def mask_S(self) -> list[Any]:
        """Of a segment with a context: True where query [q] sees key [context + q]; else None.

        Causal attention aligned to the lower right: all of the context, then the segment's past.
        """

        def mask(queries: int, keys: int) -> Tensor:
            every = torch.ones(queries, keys, dtype=torch.bool, device=self.device)
            return every.tril_(keys - queries)

        return [one.context and mask(one.num_queries, one.num_keys) for one in self.segments]

    @cached_property
    def kernel_arguments(self) -> tuple[Any, Any, int, int]:
        """Where each segment's queries begin in the row, and the end; the same of keys; the most.

        Int32, shape [S + 1] each. To a segment's keys belong those of its context.
        """
        lengths = (self.length_S, [segment.num_keys for segment in self.segments])
        queries, keys = (
            torch.tensor([0, *each]).cumsum(0, dtype=torch.int32).to(self.device)
            for each in lengths
        )
        return queries, keys, max(self.length_S), self.max_keys

    @cached_property
    def key_index(self) -> Any:
        """Which of the row's keys each segment reads, one segment after the other.

        None where no segment has a context: the row's own order.
        """
        parts = [part for one in self.segments for part in (one.context, one) if part]
        if len(parts) == len(self.segments):
            return None
        return torch.cat([torch.arange(part.start, part.stop) for part in parts]).to(self.device)


def key_mask(*, attention_mask: Any = None, mask_function: Any = None, **_: Any) -> Any:
    """What transformers puts on attention scores: nothing, or an encoder's padding, [B, 1, 1, L].

    A causal trunk's rows are padded on the right, where no real token looks; a packed row is
    handled by its plan.
    """
    if attention_mask is None:
        return None
    assert mask_function is bidirectional_mask_function, "only encoders get a padding mask"
    return attention_mask[:, None, None, :]


def segment_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    segment_plan: SegmentPlan | None = None,
    **_: Any,
) -> tuple[Any, None]:
    """Attention of one layer, in transformers' form: ([B, L, H, D], None).

    Args:
        module: The attention layer; ``is_causal`` says how it looks.
        query: [B, H, L, D].
        key: [B, K, L, D].
        value: As key.
        attention_mask: From `key_mask`; of padded rows only.
        dropout: On attention weights.
        scaling: Of scores before the softmax.
        sliding_window: The layer's window in tokens: longer sequences are refused.
        segment_plan: Of a packed row; None for padded rows.
        _: What else architectures pass on; those in `encore.model.trunks` change no score by it.

    Raises:
        InputError: a sequence longer than the window.
    """
    longest = key.shape[2] if segment_plan is None else segment_plan.max_keys
    if sliding_window is not None and longest > sliding_window:
        raise InputError(
            f"attention window {sliding_window} tokens: a sequence of {longest} is longer, which "
            "is not computed here; give a max_length of at most the window"
        )
    if segment_plan is None:
        inputs = (query, key, value, attention_mask)
        output, _ = sdpa_attention_forward(module, *inputs, dropout=dropout, scaling=scaling)
        return output, None
    if query.is_cuda and kernel_takes(
        query.dtype,
        query.shape[-1],
        capability=torch.cuda.get_device_capability(query.device),
        dropout=dropout,
    ):
        from torch.nn.attention.varlen import varlen_attn

        return attend_at_once(query, key, value, segment_plan, scaling, varlen_attn), None
    return attend_one_by_one(query, key, value, segment_plan, scaling, dropout=dropout), None


def attend_one_by_one(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    plan: SegmentPlan,
    scaling: float | None,
    *,
    dropout: float = 0.0,
) -> Tensor:
    """Segment by segment with torch's attention; [1, L, H, D].

    Rows are taken apart with one split and put together with one concatenation: slicing instead
    would make the backward pass write a row of zeros for every segment.
    """
    queries, keys, values = (t.split(plan.length_S, dim=2) for t in (query, key, value))
    outputs = []
    for index, context in enumerate(plan.context_S):
        segment_key, segment_value = keys[index], values[index]
        if context is not None:
            segment_key = torch.cat([keys[context], segment_key], dim=2)
            segment_value = torch.cat([values[context], segment_value], dim=2)
        output = scaled_dot_product_attention(
            queries[index],
            segment_key,
            segment_value,
            attn_mask=plan.mask_S[index],
            dropout_p=dropout,
            is_causal=plan.is_causal and context is None,
            scale=scaling,
            enable_gqa=query.shape[1] != key.shape[1],  # faster than repeating keys, 2-13 % on CPU
        )
        outputs.append(output.transpose(1, 2))
    return torch.cat(outputs, dim=1)


def attend_at_once(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    plan: SegmentPlan,
    scaling: float | None,
    kernel: Callable[..., Any],
) -> Tensor:
    """All segments in one call of a variable-length kernel; [1, L, H, D].

    Args:
        query: [1, H, L, D].
        key: [1, K, L, D].
        value: As key.
        plan: The row's segments.
        scaling: Of scores before the softmax.
        kernel: With the signature of `torch.nn.attention.varlen.varlen_attn`, causal aligned to
            the lower right where a segment has more keys than queries (flash attention since 2.1).
    """
    rows = [t[0].transpose(0, 1) for t in (key, value)]  # [L, K, D]
    if plan.key_index is not None:
        rows = [row.index_select(0, plan.key_index) for row in rows]
    output = kernel(
        query[0].transpose(0, 1),
        *rows,
        *plan.kernel_arguments,
        scale=scaling,
        window_size=(-1, 0) if plan.is_causal else (-1, -1),
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return output[None]


def kernel_takes(
    dtype: torch.dtype, head_dim: int, *, capability: tuple[int, int], dropout: float
) -> bool:
    """Whether flash attention of torch computes this; older GPUs (T4, V100) have no kernel.

    Args:
        dtype: Of queries and keys.
        head_dim: Of one head.
        capability: Compute capability of the GPU.
        dropout: On attention weights.
    """
    return (
        capability >= _KERNEL_CAPABILITY
        and dtype in _KERNEL_DTYPES
        and dropout == 0.0
        and head_dim <= _MAX_KERNEL_HEAD_DIM
        and head_dim % 8 == 0
    )
