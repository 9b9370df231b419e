"""A model with everything an optimizer may meet, and steps of training it."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from encore.training.optimizers.step_optimizer import AdamSettings, StepOptimizer

SETTINGS = AdamSettings(weight_decay=0.1)
VOCABULARY = 40
WIDTH = 24


class TinyModel(nn.Module):
    """Tied embeddings, a layer that runs twice, a float32 head, a parameter no loss reaches."""

    def __init__(self, *, dtype: torch.dtype = torch.bfloat16) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)

        def drawn(*shape: int) -> nn.Parameter:
            return nn.Parameter((torch.randn(shape, generator=generator) * 0.2).to(dtype))

        self.embedding = drawn(VOCABULARY, WIDTH)
        self.output = self.embedding
        self.layer = drawn(WIDTH, WIDTH)
        self.unused = drawn(3)
        self.head = nn.Parameter(torch.randn(1, WIDTH, generator=generator))
        self.checkpointing: str | None = None

    def forward(self, token_ids: Tensor) -> Tensor:
        hidden = F.embedding(token_ids, self.embedding)
        for _ in range(2):
            hidden = self._run(self._block, hidden)
        logits = self._run(self._logits, hidden)
        return (
            logits.float().logsumexp(-1).mean()
            + F.linear(hidden.float(), self.head).square().mean()
        )

    def _run(self, part, hidden: Tensor) -> Tensor:
        if self.checkpointing is None:
            return part(hidden)
        return checkpoint(part, hidden, use_reentrant=self.checkpointing == "reentrant")

    def _block(self, hidden: Tensor) -> Tensor:
        return hidden + torch.tanh(F.linear(hidden, self.layer))

    def _logits(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.output)


def train(
    model: TinyModel,
    optimizer: StepOptimizer,
    *,
    steps: range,
    microbatches: int = 2,
) -> list[float | None]:
    """The gradient norms of some steps; batches and learning rates follow from the step alone."""
    norms = []
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        for microbatch in range(microbatches):
            token_ids = torch.randint(0, VOCABULARY, (5, 7), generator=generator)
            loss = model(token_ids)
            if microbatch == microbatches - 1:
                optimizer.arm(step=step, learning_rate=1e-3 / (1 + step))
            loss.backward()
        norms.append(optimizer.finish())
    return norms


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def snapshot(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in tensors.items()}


def assert_same_bits(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> None:
    assert left.keys() == right.keys()
    for name, tensor in left.items():
        assert tensor.dtype == right[name].dtype, name
        assert torch.equal(tensor, right[name]), name
