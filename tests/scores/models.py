"""A study and the smallest real reward model: what tests of scoring use."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from encore.model.loading import load_reward_model, load_tokenizer
from encore.model.saved_model import save_model
from tests.training.studies import RULES, backbone_config, make_backbone


def make_model(
    folder: Path, *, head_ids: Sequence[str] = RULES, seed: int = 0, **metadata: object
) -> Path:
    """A reward model of two layers with random heads; its means are 0.5, 0.25, 0.125 and so on."""
    backbone = folder.with_name(f"{folder.name}-backbone")
    config = backbone_config(backbone if backbone.is_dir() else make_backbone(backbone))
    model = load_reward_model(config, head_ids=head_ids)
    with torch.no_grad():
        generator = torch.Generator().manual_seed(seed)
        model.heads.weight.normal_(generator=generator)
        model.mean_R.copy_(0.5 ** torch.arange(1, len(head_ids) + 1))
    save_model(folder, model, load_tokenizer(config), metadata=metadata)
    return folder
