"""What a forward pass keeps for the backward pass, in bytes a token, read off the layers' code.

Symbols: D hidden, I intermediate, Q query heads' width, K key heads' width, e bytes of a number.
Autograd keeps an input of an operation where the gradient needs it; what several operations need is
one tensor and counted once. Attention is a kernel that never holds the scores of all pairs of
tokens (flash attention): it keeps queries, keys, values, its output and one float32 a head.

A Llama layer in transformers keeps
    twice RMSNorm: float32 copy of the input 4D, normalised eD, result eD (the matrices' input), 4
    attention: eQ + 2 eK (the rotation keeps only its angles), output eQ, 4 a head
    feed-forward: gate, activated gate, up and product: 4 eI
A BERT layer keeps its input eD, attention the same, twice LayerNorm: sum eD, result eD, 8; before
and after the activation 2 eI; and on CUDA a dropout mask of one byte for each of 2 D.
"""

from __future__ import annotations

from dataclasses import dataclass

from encore.training.plan.shapes import ModelShape

_FLOAT32 = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapters:
    """Low-rank adapters on every matrix of a layer.

    Adapters of a wider format than the trunk's activations keep a copy of each matrix's input.
    """

    rank: int
    bytes_per_number: int

    def num_layer_parameters(self, shape: ModelShape) -> int:
        """Of one layer: ``rank`` times inputs plus outputs of each matrix."""
        return self.rank * sum(inputs + outputs for inputs, outputs in matrices(shape))


def matrices(shape: ModelShape) -> tuple[tuple[int, int], ...]:
    """(inputs, outputs) of each matrix of one layer."""
    hidden, inner = shape.hidden_size, shape.intermediate_size
    ways_up = ((hidden, inner),) * (1 + shape.is_gated)
    return (
        (hidden, shape.query_size),
        (hidden, shape.key_size),
        (hidden, shape.key_size),
        (shape.query_size, hidden),
        *ways_up,
        (inner, hidden),
    )


def layer_bytes(
    shape: ModelShape, *, bytes_per_number: int, adapters: Adapters | None = None
) -> int:
    """Kept by one layer for one token, gradient checkpointing aside.

    Args:
        shape: The backbone.
        bytes_per_number: Of activations: 2 for bfloat16, 4 for float32.
        adapters: Given: the layer's own weights are frozen, so that what only their gradients need
            is not kept; each adapter keeps its input and ``rank`` numbers.
    """
    kept = (
        _attention_bytes(shape, bytes_per_number)
        + _feed_forward_bytes(shape, bytes_per_number)
        + _norm_bytes(shape, bytes_per_number, is_frozen=adapters is not None)
    )
    return kept if adapters is None else kept + _adapter_bytes(shape, bytes_per_number, adapters)


def kept_bytes(
    shape: ModelShape,
    *,
    num_tokens: int,
    bytes_per_number: int,
    is_checkpointed: bool,
    adapters: Adapters | None = None,
) -> int:
    """Kept by a whole forward pass over ``num_tokens`` at its fullest, in bytes.

    Without checkpointing: the sum over layers. With it: the input of every layer, and everything
    of the one layer that is being computed again.
    """
    layer = layer_bytes(shape, bytes_per_number=bytes_per_number, adapters=adapters)
    if is_checkpointed:
        layers = shape.num_layers * bytes_per_number * shape.hidden_size + layer
    else:
        layers = shape.num_layers * layer
    return num_tokens * (layers + _outside_bytes(shape, bytes_per_number))


def backward_bytes(shape: ModelShape, *, num_tokens: int, bytes_per_number: int) -> int:
    """What the backward pass adds when memory is fullest, in bytes.

    That is as it enters a layer, all of which is still kept: the gradient that comes in, and that
    of the feed-forward block's widest vector. From there on more is freed than made.
    """
    return num_tokens * bytes_per_number * (shape.intermediate_size + shape.hidden_size)


def forward_bytes(shape: ModelShape, *, num_tokens: int, bytes_per_number: int) -> int:
    """Alive at once where nothing is kept for a backward pass: a frozen trunk under a probe."""
    inner = (2 + shape.is_gated) * shape.intermediate_size
    return num_tokens * (
        bytes_per_number * (inner + 2 * shape.hidden_size) + _FLOAT32 * shape.hidden_size
    )


def _attention_bytes(shape: ModelShape, e: int) -> int:
    kept = e * (2 * shape.query_size + 2 * shape.key_size) + _FLOAT32 * shape.num_heads
    if shape.query_key_norms == "none":
        return kept
    width = shape.query_size + shape.key_size
    is_whole = shape.query_key_norms == "whole"
    num_norms = 2 if is_whole else shape.num_heads + shape.num_kv_heads
    normalised = _FLOAT32 if shape.norm == "rms-float32" else e
    return kept + (_FLOAT32 + normalised) * width + _FLOAT32 * num_norms


def _feed_forward_bytes(shape: ModelShape, e: int) -> int:
    return e * (4 if shape.is_gated else 2) * shape.intermediate_size


def _norm_bytes(shape: ModelShape, e: int, *, is_frozen: bool) -> int:
    """Norms and the inputs of matrices that come out of them."""
    hidden = shape.hidden_size
    if shape.norm == "layer":
        masks = 2 * hidden if shape.dropout else 0
        return 2 * (2 * e * hidden + 2 * _FLOAT32) + masks
    fed = 2 * e * hidden  # a third and fourth norm feed a sum, which keeps nothing
    if shape.norm == "rms-float32":  # the weight is applied in float32
        return shape.num_norms_per_layer * _FLOAT32 * (2 * hidden + 1) + fed
    normalised = 0 if is_frozen else e * hidden
    return shape.num_norms_per_layer * (_FLOAT32 * (hidden + 1) + normalised) + fed


def _adapter_bytes(shape: ModelShape, e: int, adapters: Adapters) -> int:
    width = adapters.bytes_per_number
    inputs = [inputs for inputs, _ in matrices(shape)]
    numbers = adapters.rank * len(inputs)
    if width <= e:
        return width * numbers
    # The copies replace what the frozen matrices would have kept.
    replaced = 2 * shape.hidden_size + shape.intermediate_size
    return width * (sum(inputs) + numbers) - e * replaced


def _outside_bytes(shape: ModelShape, e: int) -> int:
    """Before the first and after the last layer, for one token."""
    if shape.norm == "layer":  # the sum of embeddings, its norm, its dropout mask
        return e * shape.hidden_size + 2 * _FLOAT32 + (shape.hidden_size if shape.dropout else 0)
    angles = 2 * e * shape.head_dim
    normalised = _FLOAT32 if shape.norm == "rms-float32" else e
    return angles + (_FLOAT32 + normalised) * shape.hidden_size + _FLOAT32
