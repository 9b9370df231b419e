"""A training run in a tracker's words: flat parameters, tags, metrics by name."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from encore.training.records import TrainingPlan

#: Of a step record; the step itself is the metric's place.
_NO_METRICS = frozenset({"step"})
#: Of `training.json`: sentences for the run's description.
_PROSE = ("notes", "synthetic")
_PLAN_FIELDS = (
    *("num_steps", "steps_per_epoch", "num_pairs", "num_evaluation_pairs"),
    *("num_tokens_per_epoch", "num_parameters", "num_trained_parameters", "device"),
)


def step_values(record: Mapping[str, Any]) -> dict[str, float]:
    """Metrics of a step; what was not measured is not there."""
    return dict(_numbers("train", record))


def evaluation_values(record: Mapping[str, Any]) -> dict[str, float]:
    """Metrics of an evaluation; those of a head are named ``eval/r2/HEAD``."""
    return dict(_numbers("eval", record))


def run_params(
    manifest: Mapping[str, Any], *, plan: TrainingPlan | None, about: Mapping[str, str]
) -> dict[str, str]:
    """Everything a run is made of, flat: ``config.learning_rate``, ``data_sha256``, versions."""
    identity = manifest["identity"]
    rest = {name: manifest[name] for name in manifest if name not in ("identity", *_PROSE)}
    params = dict(_texts("", {**identity, **rest}))
    if plan is not None:
        params |= {f"plan.{name}": _text(getattr(plan, name)) for name in _PLAN_FIELDS}
    return params | dict(about)


def run_tags(manifest: Mapping[str, Any], *, out: Path, about: Mapping[str, str]) -> dict[str, str]:
    """What a run is searched by, and what a reader should know of it first."""
    texts = {**dict(_texts("", manifest["identity"])), **about}
    digests = {name: value for name, value in texts.items() if name.endswith("sha256")}
    notes = [str(note) for note in manifest.get("notes", ())]
    synthetic = ", ".join(map(str, manifest.get("synthetic", ())))
    if synthetic:
        notes.insert(0, f"**Synthetic: {synthetic}.** Figures are an example, not evidence.")
    return {
        "encore.out": str(out.resolve()),
        "encore.synthetic": synthetic or "no",
        **{f"encore.{name}": value for name, value in digests.items()},
        **({"mlflow.note.content": "\n\n".join(notes)} if notes else {}),
    }


def _numbers(prefix: str, record: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in record.items():
        if isinstance(value, Mapping):
            yield from _numbers(f"{prefix}/{name.removesuffix('_by_head')}", value)
        elif isinstance(value, int | float) and name not in _NO_METRICS:
            yield f"{prefix}/{name}", float(value)


def _texts(prefix: str, value: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, item in value.items():
        if isinstance(item, Mapping):
            yield from _texts(f"{prefix}{name}.", item)
        else:
            yield f"{prefix}{name}", _text(item)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
