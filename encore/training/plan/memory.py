"""The memory table: weights, gradients, optimizer states, activations, workspace."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from encore.training.plan.activations import (
    Adapters,
    backward_bytes,
    forward_bytes,
    kept_bytes,
)
from encore.training.plan.recipes import Recipe
from encore.training.plan.shapes import ModelShape

_GIB = 1024**3
_FLOAT32 = 4
#: cuBLAS keeps 32 MiB on Hopper; logits are R numbers a response, too few to count.
_LIBRARY_BYTES = 32 * 1024**2


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a step asks of memory.

    Attributes:
        num_tokens: Computed at once, in the largest microbatch.
        is_accumulating: Whether a step has more than one microbatch. Then gradients stay from the
            first to the last, whatever the optimizer does in the backward pass.
        is_checkpointed: Whether activations are computed again in the backward pass.
        num_heads: Rules.
        lora_rank: Of adapters.
    """

    num_tokens: int
    is_accumulating: bool
    is_checkpointed: bool = True
    num_heads: int = 10
    lora_rank: int = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTable:
    """Memory of one training process, in GiB, when it is fullest."""

    weights: float
    gradients: float
    optimizer_states: float
    activations: float
    workspace: float

    @property
    def model_and_optimizer(self) -> float:
        """What is there whatever the batch: weights, gradients and optimizer states."""
        return self.weights + self.gradients + self.optimizer_states

    @property
    def total(self) -> float:
        """All of it."""
        return self.model_and_optimizer + self.activations + self.workspace

    def as_dict(self) -> dict[str, Any]:
        """The rows and their sum, in GiB to three places."""
        rows = {**asdict(self), "total": self.total}
        return {f"{name}_gib": round(value, 3) for name, value in rows.items()}


def memory_table(shape: ModelShape, recipe: Recipe, load: Load) -> MemoryTable:
    """The memory that a recipe needs on one GPU.

    The heads (float32, plain AdamW) are in the first three rows; the vocabulary-sized output layer
    of a language model is in none, because a reward model does not load it.
    """
    heads = load.num_heads * shape.hidden_size
    heads_trained = 0 if recipe.method == "probe" else heads
    adapters = (
        Adapters(rank=load.lora_rank, bytes_per_number=recipe.adapter_bytes[0])
        if recipe.method == "lora"
        else None
    )
    num_adapted = shape.num_layers * adapters.num_layer_parameters(shape) if adapters else 0
    weight, gradient, state = (num_adapted * width for width in recipe.adapter_bytes)
    activations, workspace = _working_bytes(shape, recipe, load, adapters)
    return MemoryTable(
        weights=(shape.num_parameters * recipe.weight_bytes + weight + heads * _FLOAT32) / _GIB,
        gradients=(_gradient_bytes(shape, recipe, load) + gradient + heads_trained * _FLOAT32)
        / _GIB,
        optimizer_states=(_state_bytes(shape, recipe) + state + heads_trained * 2 * _FLOAT32)
        / _GIB,
        activations=activations / _GIB,
        workspace=(workspace + _LIBRARY_BYTES) / _GIB,
    )


def _gradient_bytes(shape: ModelShape, recipe: Recipe, load: Load) -> int:
    """Of all parameters, or of one layer where each gradient is freed as soon as it is applied."""
    if recipe.is_in_backward and not load.is_accumulating:
        return shape.num_layer_parameters * recipe.gradient_bytes
    return shape.num_parameters * recipe.gradient_bytes


def _state_bytes(shape: ModelShape, recipe: Recipe) -> int:
    scales = 2 * _FLOAT32 * shape.num_parameters // recipe.state_block if recipe.state_block else 0
    return shape.num_parameters * recipe.state_bytes + scales


def _working_bytes(
    shape: ModelShape, recipe: Recipe, load: Load, adapters: Adapters | None
) -> tuple[int, int]:
    """(activations, workspace) at the fullest moment of a step."""
    e = recipe.weight_bytes
    if recipe.method == "probe":
        return forward_bytes(shape, num_tokens=load.num_tokens, bytes_per_number=e), 0
    activations = kept_bytes(
        shape,
        num_tokens=load.num_tokens,
        bytes_per_number=e,
        is_checkpointed=load.is_checkpointed,
        adapters=adapters,
    )
    in_layers = backward_bytes(shape, num_tokens=load.num_tokens, bytes_per_number=e)
    # The embedding's dense gradient comes last, when all activations are gone, and 8-bit libraries
    # update a float32 copy of a weight and of its gradient: counted where that is more than what
    # was there before.
    copies = 2 * _FLOAT32 if recipe.state_block else 0
    at_the_end = shape.num_embedding_parameters * (recipe.gradient_bytes + copies) - activations
    return activations, max(in_layers, at_the_end)
