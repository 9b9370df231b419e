"""Find a backbone's shape: by a short name, in a folder, or in a model's config.json on the hub."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from encore.errors import InputError
from encore.model_files import ModelRole
from encore.training.plan.kinds import shape_from_config
from encore.training.plan.named import SHAPE_NAMES, named_shape
from encore.training.plan.shapes import ModelShape

_BACKBONE = ModelRole(name="backbone", error=InputError)


def find_shape(model: str, *, revision: str | None = None) -> ModelShape:
    """The shape of a backbone; of its files at most config.json is read.

    Args:
        model: A folder with config.json, a short name (`SHAPE_NAMES`), or a hub id.
        revision: Commit, branch or tag of a hub id.

    Raises:
        InputError: nothing of that name, a damaged config.json, an unknown kind of model.
    """
    folder = Path(model).expanduser()
    if folder.is_dir():
        return shape_from_config(_read(folder / "config.json"), name=folder.resolve().name)
    if (shape := named_shape(model)) is not None:
        return shape
    if "/" not in model:
        raise InputError(
            f"backbone {model!r}: no such folder; expected one with config.json, a hub id such as "
            f"meta-llama/Llama-3.1-8B-Instruct, or one of {', '.join(SHAPE_NAMES)}"
        )
    return shape_from_config(_BACKBONE.find(model, revision=revision).config, name=model)


def _read(path: Path) -> dict[str, Any]:
    try:
        loaded: Any = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError(
            f"backbone {str(path.parent)!r}: no config.json in the folder; expected a Hugging Face "
            "model folder (save_pretrained writes one)"
        ) from error
    except (OSError, ValueError) as error:
        raise InputError(
            f"{path}: cannot be read as JSON: {error}; save the model again"
        ) from error
    if not isinstance(loaded, dict):
        raise InputError(
            f"{path}: holds a {type(loaded).__name__}, expected an object; save the model again"
        )
    return loaded
