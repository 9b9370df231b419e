"""Checkpoints of a training run: on disk whole or not at all, believed only after their digests.

Layout: ``step-00000100/`` with ``weights.safetensors`` (the parameters that are trained),
``optimizer.safetensors`` and ``state.json``, which holds the SHA-256 of both and, last, of itself.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from encore.files import atomic_folder, file_sha256
from encore.training.disk import check_room, named_when_full, tensor_bytes
from encore.training.identity import canonical_json, refuse_other_identity

logger = logging.getLogger(__name__)

WEIGHTS_FILE = "weights.safetensors"
OPTIMIZER_FILE = "optimizer.safetensors"
STATE_FILE = "state.json"
_FORMAT_VERSION = 1
_NAME = re.compile(r"step-(\d{8})")


class _DamagedError(Exception):
    """Why a checkpoint cannot be believed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointState:
    """What a checkpoint knows besides tensors.

    Attributes:
        step: How many steps its weights have behind them.
        identity: What the run is, to the last setting: another one must not continue from here.
        environment: Machine and versions; another one may end with other last bits.
        evaluation: The last evaluation at this step, as JSON; None where none was made.
    """

    step: int
    identity: Mapping[str, Any]
    environment: Mapping[str, Any]
    evaluation: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Checkpoint:
    """A checkpoint that passed its digests, in memory; tensors by name, on the CPU."""

    path: Path
    state: CheckpointState
    weights: dict[str, Tensor]
    optimizer: dict[str, Tensor]


def checkpoint_path(folder: Path, step: int) -> Path:
    """Where the checkpoint of a step is."""
    return folder / f"step-{step:08d}"


def checkpoint_steps(folder: Path) -> tuple[int, ...]:
    """The steps that have a checkpoint, whole or damaged, ascending."""
    found = (_NAME.fullmatch(path.name) for path in folder.glob("step-*"))
    return tuple(sorted(int(name[1]) for name in found if name))


def write_checkpoint(
    folder: Path,
    state: CheckpointState,
    *,
    weights: Mapping[str, Tensor],
    optimizer: Mapping[str, Tensor],
    keep: int,
) -> Path:
    """Put a checkpoint on disk whole or not at all, then delete all but the newest ``keep``.

    Later steps than this one can only be checkpoints that were refused: they are deleted too.

    Args:
        folder: Where the run's checkpoints are; made if it is not there.
        state: Of the step.
        weights: The parameters that are trained.
        optimizer: The optimizer's states.
        keep: How many to keep, at least 1.

    Returns:
        The checkpoint's folder.

    Raises:
        NoRoomError: The disk is too full, before or while writing; older checkpoints are kept.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = checkpoint_path(folder, state.step)
    purpose = f"the checkpoint of step {state.step}"
    check_room(folder, tensor_bytes(weights) + tensor_bytes(optimizer), purpose=purpose)
    kept = [step for step in checkpoint_steps(folder) if step < state.step]
    last = f"the checkpoint of step {kept[-1]} is kept" if kept else "there is none before it"
    with named_when_full(folder, purpose=purpose, kept=last), atomic_folder(path) as temporary:
        _save(weights, temporary / WEIGHTS_FILE)
        _save(optimizer, temporary / OPTIMIZER_FILE)
        (temporary / STATE_FILE).write_text(_state_json(state, temporary), encoding="utf-8")
    _prune(folder, newest=state.step, keep=keep)
    return path


def newest_checkpoint(folder: Path, *, identity: Mapping[str, Any]) -> Checkpoint | None:
    """The newest checkpoint that is whole; a damaged one is named in a warning and passed over.

    Args:
        folder: Where the run's checkpoints are; need not exist.
        identity: What the run that wants to continue is.

    Returns:
        None where there is no checkpoint, or none that is whole.

    Raises:
        InputError: The newest readable checkpoint belongs to another run: the first difference.
    """
    steps = checkpoint_steps(folder)
    for step in reversed(steps):
        path = checkpoint_path(folder, step)
        try:
            state, digests = _read_state(path)
            if state.step != step:
                raise _DamagedError(f"{STATE_FILE} is of step {state.step}")
            refuse_other_identity(state.identity, identity, place=str(path))
            return _load(path, state, digests)
        except _DamagedError as damage:
            logger.warning(
                "checkpoint %s is damaged (%s) and not used; going back to the one before it",
                path,
                damage,
            )
    if steps:
        logger.warning("%s: no checkpoint is whole; training starts from the beginning", folder)
    return None


# --- writing ------------------------------------------------------------------------------------


def _save(tensors: Mapping[str, Tensor], path: Path) -> None:
    save_file({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, path)


def _state_json(state: CheckpointState, folder: Path) -> str:
    content = {
        "format": _FORMAT_VERSION,
        "step": state.step,
        "identity": state.identity,
        "environment": state.environment,
        "evaluation": state.evaluation,
        "files": {name: file_sha256(folder / name) for name in (WEIGHTS_FILE, OPTIMIZER_FILE)},
    }
    return json.dumps({**content, "sha256": _digest(content)}, indent=2, ensure_ascii=False) + "\n"


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical_json(content).encode()).hexdigest()


def _prune(folder: Path, *, newest: int, keep: int) -> None:
    steps = checkpoint_steps(folder)
    kept = {step for step in steps if step <= newest}
    kept = set(sorted(kept)[-keep:])
    for step in set(steps) - kept:
        shutil.rmtree(checkpoint_path(folder, step))


# --- reading ------------------------------------------------------------------------------------


def _read_state(path: Path) -> tuple[CheckpointState, dict[str, str]]:
    """The state and the files' recorded digests."""
    try:
        content = json.loads((path / STATE_FILE).read_text(encoding="utf-8"))
        recorded = content.pop("sha256")
        if recorded != _digest(content):
            raise _DamagedError(f"{STATE_FILE} does not match its SHA-256")
        if content["format"] != _FORMAT_VERSION:
            raise _DamagedError(f"format {content['format']!r}, expected {_FORMAT_VERSION}")
        state = CheckpointState(
            step=content["step"],
            identity=content["identity"],
            environment=content["environment"],
            evaluation=content["evaluation"],
        )
        return state, content["files"]
    except FileNotFoundError as error:
        raise _DamagedError(f"{STATE_FILE} is missing") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _DamagedError(f"{STATE_FILE} cannot be read: {error}") from error


def _load(path: Path, state: CheckpointState, digests: Mapping[str, str]) -> Checkpoint:
    tensors: dict[str, dict[str, Tensor]] = {}
    for name in (WEIGHTS_FILE, OPTIMIZER_FILE):
        try:
            if file_sha256(path / name) != digests.get(name):
                raise _DamagedError(f"{name} does not match its SHA-256")
            tensors[name] = load_file(path / name)
        except FileNotFoundError as error:
            raise _DamagedError(f"{name} is missing") from error
        except (OSError, SafetensorError) as error:
            raise _DamagedError(f"{name} cannot be read: {error}") from error
    return Checkpoint(
        path=path, state=state, weights=tensors[WEIGHTS_FILE], optimizer=tensors[OPTIMIZER_FILE]
    )
