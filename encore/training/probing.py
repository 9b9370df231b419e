"""Method ``probe``: the backbone stays as it is, its heads are solved in closed form."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from encore.training.config import TrainingConfig
from encore.training.embeddings import Embeddings, OnProgress, embed_examples
from encore.training.probe import fit_bradley_terry, fit_ridge

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
) -> None:
    """Put the best linear heads on the frozen backbone into the model.

    Hidden states are kept on disk as they come: a killed process loses at most one file of them.

    Args:
        model: Its trunk is read, its heads are written.
        examples: The pairs to learn from, centred.
        config: Objective, layout and microbatches are read.
        cache: The folder for hidden states.
        pad_token_id: For padded rows.
        on_embedded: Told about embedded pairs.
    """
    embeddings = embed_examples(
        model,
        examples,
        layout=config.layout,
        cache=cache,
        tokens_per_microbatch=config.tokens_per_microbatch,
        pad_token_id=pad_token_id,
        on_progress=on_embedded,
    )
    head_RD = _heads(embeddings, examples, config)
    with torch.no_grad():
        model.heads.weight.copy_(torch.from_numpy(head_RD))


def _heads(
    embeddings: Embeddings, examples: TrainingExamples, config: TrainingConfig
) -> NDArray[np.float64]:
    if config.objective == "bradley-terry":
        fit = fit_bradley_terry(
            embeddings.chosen_PD,
            embeddings.rejected_PD,
            group_P=examples.group_P,
            seed=config.seed,
        )
        return fit.head_D[np.newaxis]
    return fit_ridge(
        np.concatenate([embeddings.chosen_PD, embeddings.rejected_PD]),
        np.concatenate([examples.target_chosen_PR, examples.target_rejected_PR]),
    )
