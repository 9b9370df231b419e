"""Attention over the segments of a packed row: each token sees its own sequence and no other.

Legend: H query heads, K key heads, L tokens of the row, S segments, D head dimension.

`register_segment_attention` registers it with transformers. The trunk's forward method gets the
segment plan as a keyword argument. Gradient checkpointing stores the keyword arguments of every
layer call, so the recomputation in the backward pass uses the same plan. A context variable would
have been reset by then.
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
    """Register this attention with transformers; return its name for ``attn_implementation``."""
    AttentionInterface.register(SEGMENT_ATTENTION, segment_attention)
    # Without a registered mask function, transformers would not pass the padding mask on.
    AttentionMaskInterface.register(SEGMENT_ATTENTION, padding_mask)
    return SEGMENT_ATTENTION


@dataclass(eq=False)
class SegmentPlan:
    """The segments of one packed row, in the forms that attention needs.

    Each form is computed on first use and kept, because every layer needs the same ones.

    Attributes:
        segments: Segments in row order; together they are the whole row.
        is_causal: True if a token sees only earlier tokens.
        device: Device of masks and indices.
    """

    segments: Sequence[Segment]
    is_causal: bool
    device: torch.device

    @cached_property
    def length_S(self) -> list[int]:
        """Number of tokens of each segment."""
        return [segment.num_queries for segment in self.segments]

    @cached_property
    def max_keys(self) -> int:
        """Largest number of keys of a segment, its context included."""
        return max(segment.num_keys for segment in self.segments)

    @cached_property
    def context_S(self) -> list[int | None]:
        """Index of each segment's context segment, or None if it has no context."""
        index_of = {segment: index for index, segment in enumerate(self.segments)}
        return [index_of[segment.context] if segment.context else None for segment in self.segments]

    @cached_property
    def mask_S(self) -> list[Any]:
        """Boolean mask [queries, keys] of each segment with a context; None for the others.

        True where a query sees a key: all of the context, and the segment's own tokens up to the
        query (causal attention aligned to the lower right).
        """

        def mask(segment: Segment) -> Tensor:
            shape = (segment.num_queries, segment.num_keys)
            ones = torch.ones(shape, dtype=torch.bool, device=self.device)
            return ones.tril_(segment.num_keys - segment.num_queries)

        return [mask(segment) if segment.context else None for segment in self.segments]

    @cached_property
    def kernel_arguments(self) -> tuple[Any, Any, int, int]:
        """Arguments of a variable-length kernel, in its order.

        They are the start offsets of the segments' queries and of their keys (int32, shape [S + 1],
        with the end as the last offset), the most queries and the most keys of a segment. The keys
        of a segment include those of its context.
        """
        num_keys_S = [segment.num_keys for segment in self.segments]
        query_offsets, key_offsets = (
            torch.tensor([0, *num_tokens]).cumsum(0, dtype=torch.int32).to(self.device)
            for num_tokens in (self.length_S, num_keys_S)
        )
        return query_offsets, key_offsets, max(self.length_S), self.max_keys

    @cached_property
    def key_index(self) -> Any:
        """Indices of the row's keys in the order in which the segments read them.

        None if no segment has a context: the keys are then read in row order.
        """
        parts = [part for segment in self.segments for part in (segment.context, segment) if part]
        if len(parts) == len(self.segments):
            return None
        return torch.cat([torch.arange(part.start, part.stop) for part in parts]).to(self.device)


def padding_mask(*, attention_mask: Any = None, mask_function: Any = None, **_: Any) -> Any:
    """Return the mask of an encoder's padding, [B, 1, 1, L], or None if nothing is masked.

    A causal trunk needs no mask: its rows are padded on the right, which no real token sees. A
    packed row has no padding; its segment plan says what each token sees.
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
    """Compute the attention of one layer; return it as transformers expects: ([B, L, H, D], None).

    Args:
        module: Attention layer; its ``is_causal`` holds for padded rows.
        query: Queries, shape [B, H, L, D].
        key: Keys, shape [B, K, L, D].
        value: Values, shape [B, K, L, D].
        attention_mask: Mask from `padding_mask`; only for padded rows.
        dropout: Dropout rate of attention weights.
        scaling: Factor of the scores before the softmax.
        sliding_window: The layer's window in tokens. Longer sequences are refused.
        segment_plan: Plan of a packed row; None for padded rows.
        _: Further arguments of an architecture. For those in `encore.model.architectures`
            they change no score.

    Raises:
        InputError: A sequence is longer than the window.
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
    if query.is_cuda and supports_varlen_attention(
        query.dtype,
        query.shape[-1],
        capability=torch.cuda.get_device_capability(query.device),
        dropout=dropout,
    ):
        from torch.nn.attention.varlen import varlen_attn

        return attend_by_kernel(query, key, value, segment_plan, scaling, varlen_attn), None
    return attend_by_segment(query, key, value, segment_plan, scaling, dropout=dropout), None


def attend_by_segment(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    plan: SegmentPlan,
    scaling: float | None,
    *,
    dropout: float = 0.0,
) -> Tensor:
    """Compute attention segment by segment with torch; return [1, L, H, D].

    The row is divided by one split and assembled by one concatenation. With slices instead, the
    backward pass would write a row of zeros for every segment.
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


def attend_by_kernel(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    plan: SegmentPlan,
    scaling: float | None,
    kernel: Callable[..., Any],
) -> Tensor:
    """Compute the attention of all segments in one call of a kernel; return [1, L, H, D].

    Args:
        query: Queries, shape [1, H, L, D].
        key: Keys, shape [1, K, L, D].
        value: Values, shape [1, K, L, D].
        plan: Segments of the row.
        scaling: Factor of the scores before the softmax.
        kernel: Function with the signature of `torch.nn.attention.varlen.varlen_attn`. If a segment
            has more keys than queries, its causal mask is aligned to the lower right (flash
            attention since 2.1).
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


def supports_varlen_attention(
    dtype: torch.dtype, head_dim: int, *, capability: tuple[int, int], dropout: float
) -> bool:
    """Return True if torch's flash attention has a kernel; older GPUs (T4, V100) have none.

    Args:
        dtype: Number format of queries and keys.
        head_dim: Width of one head.
        capability: Compute capability of the GPU, e.g. ``(9, 0)``.
        dropout: Dropout rate of attention weights.
    """
    return (
        capability >= _KERNEL_CAPABILITY
        and dtype in _KERNEL_DTYPES
        and dropout == 0.0
        and head_dim <= _MAX_KERNEL_HEAD_DIM
        and head_dim % 8 == 0
    )
