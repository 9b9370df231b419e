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
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from encore.core.errors import EncoreError, InputError
from encore.core.files import atomic_folder, file_sha256, write_json
from encore.training.disk import check_room, named_when_full
from encore.training.evaluation import TrainingDivergedError
from encore.training.optimizers import copy_whole, trainable_parameters
from encore.training.ranks import local_part
from encore.training.run_folder import TrainingRun, refuse_other_identity

if TYPE_CHECKING:
    from encore.training.batches import Training
    from encore.training.optimizers import StepOptimizer

logger = logging.getLogger(__name__)

WEIGHTS_FILE = "weights.safetensors"
OPTIMIZER_FILE = "optimizer.safetensors"
STATE_FILE = "state.json"
_NAME = re.compile(r"step-(\d{8})")


#: State, weights and optimizer state, on the CPU. The state holds the step, the run's identity
#: (another run must not continue from here) and the evaluation of this step or None.
Checkpoint = tuple[dict[str, Any], dict[str, Tensor], dict[str, Tensor]]


class CheckpointManager:
    """Writes a run's trained weights and optimizer state to the disk and reads them back.

    Of several processes each reads a checkpoint, whole, and keeps its shards; rank 0 writes.

    Args:
        training: Adapters and shards set up.
        optimizer: Of the trainable parameters.
        run: Whose checkpoints.
    """

    def __init__(self, training: Training, optimizer: StepOptimizer, run: TrainingRun) -> None:
        self._optimizer, self._ranks = optimizer, training.ranks
        self._folder, self._keep = run.checkpoints_dir, training.config.keep_checkpoints
        self.weights = trainable_parameters(training.model)
        # The same settings mean other formats on other devices: a GPU's bfloat16 is not for a CPU.
        dtype = str(next(training.model.trunk.parameters()).dtype).removeprefix("torch.")
        self._identity = {**run.identity, "weights": {"dtype": dtype}}

    def restore(self) -> Mapping[str, Any] | None:
        """Go back to the newest whole checkpoint; its state, None where there is none.

        Raises:
            InputError: It belongs to another run or has other weights than this model.
            EncoreError: Processes that see other disks.
        """
        checkpoint = newest_checkpoint(self._folder, identity=self._identity)
        if not self._ranks.agree(0 if checkpoint is None else checkpoint[0]["step"]):
            raise EncoreError(
                f"{self._folder}: not every process can read the same checkpoint; expected one "
                "disk that all of them see: run the same command again, or train in one process"
            )
        if checkpoint is None:
            return None
        state, weights, optimizer = checkpoint
        path = checkpoint_path(self._folder, state["step"])
        copy_whole(self.weights, weights, what=f"{path}: weight")
        copy_whole(self._optimizer.state(), optimizer, what=f"{path}: state of")
        return state

    def first_not_finite(self) -> str | None:
        """The first trained weight that holds NaN or infinity, in any process's shard."""
        bad = [~torch.isfinite(local_part(tensor)).all() for tensor in self.weights.values()]
        num_bad = self._ranks.summed(torch.stack(bad).cpu().long()).tolist()
        return next(
            (name for name, count in zip(self.weights, num_bad, strict=True) if count), None
        )

    def save(self, step: int, *, evaluation: Mapping[str, Any] | None) -> Path:
        """Write the checkpoint of a step; where it is.

        Raises:
            TrainingDivergedError: A weight that is no number: it would make the last good
                checkpoint the wrong one.
            NoRoomError: The disk is too full; older checkpoints are kept.
        """
        if name := self.first_not_finite():
            raise TrainingDivergedError(what=f"weight {name} is not a finite number", step=step)
        tensors = {
            WEIGHTS_FILE: self._ranks.whole(self.weights),
            OPTIMIZER_FILE: self._ranks.whole(self._optimizer.state()),
        }
        if self._ranks.is_rank_zero:
            self._write(step, evaluation, tensors)
        self._ranks.wait()  # all or none go on from a checkpoint
        return checkpoint_path(self._folder, step)

    def _write(
        self,
        step: int,
        evaluation: Mapping[str, Any] | None,
        tensors: Mapping[str, Mapping[str, Tensor]],
    ) -> None:
        """Put a checkpoint on disk whole or not at all, then delete all but the newest ones.

        Later steps than this one can only be checkpoints that were refused: they are deleted too.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        path, purpose = checkpoint_path(self._folder, step), f"the checkpoint of step {step}"
        num_bytes = sum(one.nbytes for content in tensors.values() for one in content.values())
        check_room(self._folder, num_bytes, purpose=purpose)
        older = [other for other in checkpoint_steps(self._folder) if other < step]
        last = f"the checkpoint of step {older[-1]} is kept" if older else "there is none before it"
        full = named_when_full(self._folder, purpose=purpose, kept=last)
        with full, atomic_folder(path) as temporary:
            files = {}
            for name, content in tensors.items():
                whole = {key: tensor.detach().contiguous() for key, tensor in content.items()}
                save_file(whole, temporary / name)
                files[name] = file_sha256(temporary / name)
            state: dict[str, Any] = {"step": step, "identity": self._identity}
            state |= {"evaluation": evaluation, "files": files}
            state["sha256"] = _digest(state)
            write_json(temporary / STATE_FILE, state)
        for other in {*checkpoint_steps(self._folder)} - {*[*older, step][-self._keep :]}:
            shutil.rmtree(checkpoint_path(self._folder, other))


def checkpoint_path(folder: Path, step: int) -> Path:
    """Where the checkpoint of a step is."""
    return folder / f"step-{step:08d}"


def checkpoint_steps(folder: Path) -> tuple[int, ...]:
    """The steps that have a checkpoint, whole or damaged, ascending."""
    found = (_NAME.fullmatch(path.name) for path in folder.glob("step-*"))
    return tuple(sorted(int(name[1]) for name in found if name))


def newest_checkpoint(folder: Path, *, identity: Mapping[str, Any]) -> Checkpoint | None:
    """The newest checkpoint that is whole; a damaged one is named in a warning and passed over.

    Args:
        folder: Where the run's checkpoints are; need not exist.
        identity: Of the run that wants to continue.

    Returns:
        None where there is no checkpoint, or none that is whole.

    Raises:
        InputError: The newest readable checkpoint belongs to another run: the first difference.
    """
    steps = checkpoint_steps(folder)
    for step in reversed(steps):
        path = checkpoint_path(folder, step)
        try:
            state = _read_state(path, step)
            refuse_other_identity(state["identity"], identity, place=path)
            weights, optimizer = (
                _read_tensors(path / name, state) for name in (WEIGHTS_FILE, OPTIMIZER_FILE)
            )
            return state, weights, optimizer
        except InputError:
            raise
        except _DAMAGE as damage:
            logger.warning(
                "checkpoint %s is damaged (%s) and not used; going back to the one before it",
                path,
                damage,
            )
    if steps:
        logger.warning("%s: no checkpoint is whole; training starts from the beginning", folder)
    return None


#: What reading a damaged checkpoint raises.
_DAMAGE = (OSError, ValueError, KeyError, TypeError, AttributeError)


def _digest(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _read_state(path: Path, step: int) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads((path / STATE_FILE).read_text(encoding="utf-8"))
        if content.pop("sha256") != _digest(content):
            raise ValueError("it does not match its SHA-256")
        if content["step"] != step:
            raise ValueError(f"it is of step {content['step']}")
    except _DAMAGE as error:
        raise ValueError(f"{STATE_FILE}: {error}") from error
    return content


def _read_tensors(path: Path, state: Mapping[str, Any]) -> dict[str, Tensor]:
    if file_sha256(path) != state["files"].get(path.name):
        raise ValueError(f"{path.name} does not match its SHA-256")
    return load_file(path)
