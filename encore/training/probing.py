"""Method ``probe``: the backbone stays as it is, its heads are solved in closed form."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from encore.training.config import TrainingConfig
from encore.training.embeddings import Embeddings, OnProgress, embed_examples
from encore.training.probe import fit_bradley_terry, fit_ridge_with_offsets
from encore.training.ridge import RidgeFit

if TYPE_CHECKING:
    from encore.model.reward_model import MultiHeadRewardModel
    from encore.training.examples import TrainingExamples

# Suffixes: D hidden, R heads.


def solve_heads(
    model: MultiHeadRewardModel,
    examples: TrainingExamples,
    config: TrainingConfig,
    *,
    cache: Path,
    pad_token_id: int,
    on_embedded: OnProgress | None,
) -> NDArray[np.float64]:
    """Put the best linear heads on the frozen backbone into the model.

    Hidden states are kept on disk as they come: a killed process loses at most one file of them.

    Args:
        model: Its trunk is read, its heads are written.
        examples: The pairs to learn from, centred.
        config: Objective, layout and microbatches are read.
        cache: The folder for hidden states.
        pad_token_id: For padded rows.
        on_embedded: Told about embedded pairs.

    Returns:
        What belongs to the heads' centres, shape [R]: see `encore.training.splits.move_centres`.
    """
    embeddings = embed_examples(
        model,
        examples,
        layout=config.layout,
        cache=cache,
        tokens_per_microbatch=config.microbatch_tokens(model.heads.weight.device.type),
        pad_token_id=pad_token_id,
        on_progress=on_embedded,
    )
    fit = _fit(embeddings, examples, config)
    with torch.no_grad():
        model.heads.weight.copy_(torch.from_numpy(fit.head_RD))
    return fit.offset_R


def _fit(embeddings: Embeddings, examples: TrainingExamples, config: TrainingConfig) -> RidgeFit:
    if config.objective == "bradley-terry":
        fit = fit_bradley_terry(
            embeddings.chosen_PD,
            embeddings.rejected_PD,
            group_P=examples.group_P,
            seed=config.seed,
        )
        return RidgeFit(head_RD=fit.head_D[np.newaxis], offset_R=np.zeros(1))
    return fit_ridge_with_offsets(
        np.concatenate([embeddings.chosen_PD, embeddings.rejected_PD]),
        np.concatenate([examples.target_chosen_PR, examples.target_rejected_PR]),
    )
