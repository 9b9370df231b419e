"""Scores of the pairs that a training with head 0 held out, in a file of the model folder.

``held_out_scores.safetensors`` has ``score_P2R`` (float32, [P, 2, R], the chosen response first,
heads in head order) and ``group_P`` (int64, [P]). This module imports no torch.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from encore.core.errors import InputError

HELD_OUT_FILE = "held_out_scores.safetensors"
_DESCRIPTION_FILE = "reward_model.json"  # `encore.model.saved_model` writes it


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HeldOutScores:
    """Scores of P held-out pairs under R heads after the last step.

    Attributes:
        score_P2R: Centred scores, the chosen response first; float32, shape [P, 2, R].
        group_P: Group of each pair: pairs of one prompt share it; int64, shape [P].
    """

    score_P2R: NDArray[np.float32]
    group_P: NDArray[np.int64]


def write_held_out_scores(folder: Path, scores: HeldOutScores) -> None:
    """Write the file of held-out scores into a model folder that is being written."""
    tensors = {"score_P2R": scores.score_P2R, "group_P": scores.group_P}
    save_file(
        {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()},
        folder / HELD_OUT_FILE,
    )


def read_held_out_scores(folder: Path) -> HeldOutScores | None:
    """Read the held-out scores of a model folder; None if it has none.

    Raises:
        InputError: The file is damaged.
    """
    path = folder / HELD_OUT_FILE
    if not path.is_file():
        return None
    try:
        tensors = load_file(path)
        score_P2R, group_P = tensors["score_P2R"], tensors["group_P"]
        if score_P2R.shape[:2] != (len(group_P), 2) or not np.isfinite(score_P2R).all():
            raise ValueError(f"scores of shape {score_P2R.shape} for {len(group_P)} pairs")
        return HeldOutScores(score_P2R=score_P2R, group_P=group_P)
    except (OSError, SafetensorError, LookupError, ValueError) as error:
        raise InputError(
            f"{path}: cannot be used ({type(error).__name__}: {error}); copy the model folder again"
        ) from error


def read_heads(model: Path) -> tuple[tuple[str, ...], HeldOutScores | None]:
    """Read the head ids and the held-out scores of a training run's or a model's folder.

    Raises:
        InputError: There is no model, or its held-out scores are damaged.
    """
    folder = model / "model" if (model / "model").is_dir() else model
    path = folder / _DESCRIPTION_FILE
    try:
        head_ids = tuple(json.loads(path.read_bytes())["head_ids"])
    except (OSError, ValueError, LookupError) as error:
        raise InputError(
            f"{path}: missing or damaged ({type(error).__name__}); expected a folder that `encore "
            "train` wrote"
        ) from error
    return head_ids, read_held_out_scores(folder)
