"""Low-rank adapters (Hu et al., "LoRA") on a reward model's trunk, by peft.

The trunk's own weights stay frozen; adapters and heads are trained. Merging adds each adapter to
the matrix it belongs to: the saved model is an ordinary one and needs no peft.
"""

from __future__ import annotations

from typing import Any

import torch


def add_adapters(model: Any, *, rank: int, alpha: int, seed: int) -> Any:
    """Put an adapter beside every linear layer of the trunk and freeze everything but the heads.

    The model's scores do not change: the second matrix of an adapter begins at 0. Adapters have the
    trunk's number format, so that in bfloat16 they run at full speed; the stochastically rounded
    optimizer keeps them from stalling there.

    Args:
        model: A reward model (``trunk`` and ``heads``), changed in place.
        rank: Of the adapters.
        alpha: Their output is multiplied by alpha / rank.
        seed: Of the first matrix's random start.

    Returns:
        What `merge_adapters` takes.
    """
    from peft import LoraConfig, LoraModel

    trunk = model.trunk
    trunk.requires_grad_(False)
    config = LoraConfig(r=rank, lora_alpha=alpha, lora_dropout=0.0, target_modules="all-linear")
    device = next(trunk.parameters()).device
    with torch.random.fork_rng([device.index or 0] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        adapters = LoraModel(trunk, config, "default")
    model.heads.requires_grad_(True)
    return adapters


def merge_adapters(adapters: Any) -> None:
    """Add every adapter to its matrix and remove it, in place.

    The model's scores stay the same to rounding in the trunk's number format. Every parameter
    requires a gradient afterwards, as in a model that was never adapted.
    """
    adapters.merge_and_unload(safe_merge=True).requires_grad_(True)
