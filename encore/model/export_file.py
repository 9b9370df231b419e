"""What a plain export says of itself beside the files that transformers reads."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from encore.errors import InputError

#: The file by which a folder is known as an export.
EXPORT_FILE = "encore_export.json"
#: Under which a model's metadata keeps what its one head was folded from.
COMPOSED = "composed"


class Composed(TypedDict):
    """What a composed export was folded from, as its `encore_export.json` says it."""

    weights: dict[str, float]
    mean: dict[str, float]
    scheme: str | None
    params: dict[str, float | str]
    entropy_nats: dict[str, float]
    weights_provenance: dict[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportNotes:
    """The part of `encore_export.json` that a model opened from the folder goes on with.

    Attributes:
        mean_by_label: What to add to a score where it is shown to people.
        metadata: What the model's training recorded; with key `COMPOSED`, what the one head of a
            composed export was folded from.
    """

    mean_by_label: Mapping[str, float]
    metadata: Mapping[str, Any]


def read_export_notes(path: Path, *, labels: Sequence[str]) -> ExportNotes | None:
    """The notes of an export; None where there is no such file: the model is none of ours.

    Args:
        path: Of the model's `EXPORT_FILE`.
        labels: Of the model, as config.json names them.

    Raises:
        InputError: A file that does not belong to these labels, or is damaged.
    """
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        known = [str(label) for label in content["labels"]]
        composed = _composed(content) if content["kind"] == "composed" else None
        mean = content["mean"] if composed is None else {known[0]: content["mean_of_reward"]}
        notes = ExportNotes(
            mean_by_label={label: float(mean[label]) for label in known},
            metadata=dict(content["model_metadata"])
            | ({} if composed is None else {COMPOSED: composed}),
        )
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise InputError(
            f"{path}: does not describe this model ({type(error).__name__}: {error}); export again"
        ) from error
    if list(labels) != known:
        raise InputError(
            f"{path}: labels {known}, but config.json has {list(labels)}; export again"
        )
    return notes


def _composed(content: Mapping[str, Any]) -> Composed:
    weights = _numbers(content["weights"])
    mean = _numbers(content["mean"])
    scheme, provenance = content["scheme"], content["weights_provenance"]
    return Composed(
        weights=weights,
        mean={rule: mean[rule] for rule in weights},
        scheme=None if scheme is None else str(scheme),
        params=dict(content["params"]),
        entropy_nats=_numbers(content["entropy_nats"]),
        weights_provenance=None if provenance is None else dict(provenance),
    )


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    return {rule: float(value) for rule, value in values.items()}
