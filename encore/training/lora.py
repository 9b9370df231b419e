"""Low-rank adapters (Hu et al., "LoRA") for the trunk of a reward model, by peft.

The trunk's weights are frozen; adapters and heads are trained. Merging adds each adapter to its
matrix, so the saved model is an ordinary model that needs no peft.
"""

from __future__ import annotations

from typing import Any

import torch


def add_adapters(model: Any, *, rank: int, alpha: int, seed: int) -> Any:
    """Add an adapter to every linear layer of the trunk, and freeze the trunk's weights.

    The scores do not change at first, because the second matrix of an adapter starts at 0. Adapters
    have the number format of the trunk, so that they run at full speed in bfloat16. There the
    stochastically rounded optimizer keeps their training from stalling.

    Args:
        model: Reward model (``trunk`` and ``heads``), changed in place.
        rank: Rank of the adapters.
        alpha: Scale of the adapters: their output is multiplied by alpha / rank.
        seed: Seed of the first matrix's random start.

    Returns:
        The adapters, for `merge_adapters`.
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
    """Add every adapter to its matrix, and remove the adapters, in place.

    Scores change only by rounding in the trunk's number format. Afterwards every parameter requires
    a gradient, as in a model without adapters.
    """
    adapters.merge_and_unload(safe_merge=True).requires_grad_(True)
