"""Low-rank adapters (Hu et al., "LoRA") on a reward model's trunk, by peft.

The trunk's own weights stay frozen; adapters and heads are trained. Merging adds each adapter to
the matrix it belongs to: the saved model is an ordinary one and needs no peft.
"""

from __future__ import annotations

from typing import Any

import torch


def add_adapters(model: Any, *, rank: int, alpha: int, seed: int) -> None:
    """Put an adapter beside every linear layer of the trunk and freeze everything but the heads.

    The model's scores do not change: the second matrix of an adapter begins at 0. Adapters have the
    trunk's number format, so that in bfloat16 they run at full speed; the stochastically rounded
    optimizer keeps them from stalling there.

    Args:
        model: A reward model (``trunk`` and ``heads``), changed in place.
        rank: Of the adapters.
        alpha: Their output is multiplied by alpha / rank.
        seed: Of the first matrix's random start.
    """
    from peft import LoraConfig, inject_adapter_in_model

    trunk = model.trunk
    trunk.requires_grad_(False)
    config = LoraConfig(r=rank, lora_alpha=alpha, lora_dropout=0.0, target_modules="all-linear")
    device = next(trunk.parameters()).device
    with torch.random.fork_rng([device.index or 0] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        inject_adapter_in_model(config, trunk)
    model.heads.requires_grad_(True)


def merge_adapters(model: Any) -> None:
    """Add every adapter to its matrix and remove it, in place; without adapters nothing happens.

    The model's scores stay the same to rounding in the trunk's number format. Every parameter
    requires a gradient afterwards, as in a model that was never adapted.
    """
    from peft.tuners.tuners_utils import BaseTunerLayer

    trunk = model.trunk
    named = list(trunk.named_modules())
    adapted = [(name, module) for name, module in named if isinstance(module, BaseTunerLayer)]
    for name, module in adapted:
        module.merge(safe_merge=True)
        parent_name, _, child_name = name.rpartition(".")
        setattr(trunk.get_submodule(parent_name), child_name, module.get_base_layer())
    if adapted:
        del trunk.peft_config  # left by peft; nothing of it is in the trunk any more
        trunk.requires_grad_(True)
