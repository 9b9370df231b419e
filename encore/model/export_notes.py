"""What a plain export says of itself beside the files that transformers reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from encore.errors import InputError

#: The file by which a folder is known as an export.
EXPORT_FILE = "encore_export.json"
#: Under which a model's metadata keeps what its one head was folded from: weights, mean, scheme,
#: params, entropy_nats and weights_provenance, as `EXPORT_FILE` has them.
COMPOSED = "composed"
_OF_COMPOSED = {"weights", "mean", "scheme", "params", "entropy_nats", "weights_provenance"}


class _ExportFile(BaseModel):
    """The part of the file that a model opened from the folder goes on with."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    kind: Literal["heads", "composed"]
    labels: tuple[str, ...]
    mean: dict[str, float]
    model_metadata: dict[str, Any]
    mean_of_reward: float | None = None
    weights: dict[str, float] | None = None
    scheme: str | None = None
    params: dict[str, float | str] = {}
    entropy_nats: dict[str, float] = {}
    weights_provenance: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _composed_has_weights(self) -> Self:
        if self.kind == "composed" and (self.weights is None or self.mean_of_reward is None):
            raise ValueError("a composed export has weights and the mean of its reward")
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportNotes:
    """What an export says of its labels.

    Attributes:
        mean_R: What to add to each label's score where it is shown to people.
        metadata: What the model's training recorded; with key `COMPOSED`, what the one head of a
            composed export was folded from.
    """

    mean_R: Sequence[float]
    metadata: Mapping[str, Any]


def read_export_notes(path: Path, *, labels: Sequence[str]) -> ExportNotes:
    """The notes of an export.

    Args:
        path: Of the model's `EXPORT_FILE`.
        labels: Of the model, as config.json names them.

    Raises:
        InputError: A file that does not belong to these labels, or is damaged.
    """
    try:
        found = _ExportFile.model_validate_json(path.read_bytes())
        is_composed = found.kind == "composed"
        mean = {found.labels[0]: found.mean_of_reward or 0.0} if is_composed else found.mean
        means = [mean[label] for label in found.labels]
    except (OSError, ValidationError, LookupError) as error:
        raise InputError(
            f"{path}: does not describe this model ({type(error).__name__}); export again"
        ) from error
    if tuple(labels) != found.labels:
        raise InputError(
            f"{path}: labels {list(found.labels)}, but config.json has {list(labels)}; export again"
        )
    composed = {COMPOSED: found.model_dump(include=_OF_COMPOSED)} if is_composed else {}
    return ExportNotes(mean_R=means, metadata=found.model_metadata | composed)
