"""Update the shards of a small bfloat16 layer in two processes; `test_ranks` launches it."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn
from torch.distributed.tensor import distribute_tensor

from encore.training.distributed import joined_ranks
from encore.training.stochastic_adamw import StochasticAdamW
from encore.training.training_options import TrainingConfig

NUM_UPDATES = 5


def layer() -> nn.Linear:
    """Return a layer with seven rows, so that the shards of two processes differ in size."""
    generator = torch.Generator().manual_seed(1)
    module = nn.Linear(33, 7, dtype=torch.bfloat16)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return module


def optimizer_of(module: nn.Module) -> StochasticAdamW:
    # With 16 elements, chunks of the whole and of the shards begin at different elements.
    return StochasticAdamW(
        dict(module.named_parameters()), TrainingConfig(seed=3), chunk_elements=16
    )


def gradient_of(parameter: torch.Tensor, *, step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(parameter.shape, generator=generator).to(torch.bfloat16)


def update(module: nn.Module, optimizer: StochasticAdamW, *, shard) -> list[float]:
    """Take some steps; return the norm of the gradient of each."""
    norms = []
    for step in range(1, NUM_UPDATES + 1):
        optimizer.before_last_backward(step=step, learning_rate=1e-2)
        for parameter in module.parameters():
            parameter.grad = shard(gradient_of(parameter, step=step), parameter)
        norms.append(optimizer.finish())
    return norms


def main(out: Path) -> None:
    with joined_ranks("cpu") as ranks:
        module = layer()
        ranks.shard_module(module)
        optimizer = optimizer_of(module)

        def shard(gradient, parameter):
            return distribute_tensor(gradient, parameter.device_mesh, parameter.placements)

        norms = update(module, optimizer, shard=shard)
        tensors = ranks.gather({**dict(module.named_parameters()), **optimizer.state()})
        if ranks.is_rank_zero:
            save_file({**tensors, "norms": torch.tensor(norms)}, out)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
