"""Checkpoints of a training run: written completely or not at all, and verified when read.

A checkpoint is a folder ``step-00000100/`` with ``weights.safetensors`` (the trained parameters),
``optimizer.safetensors`` and ``state.json``, which holds the SHA-256 of both files and of itself.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import shutil
from collections.abc import Mapping
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from encore.core.errors import EncoreError, InputError
from encore.core.files import atomic_folder, file_sha256, write_json
from encore.training.disk_space import check_free_space, report_full_disk
from encore.training.distributed import local_part
from encore.training.evaluation import TrainingDivergedError
from encore.training.optimizers import restore_tensors, trainable_parameters
from encore.training.run_folder import TrainingRun, check_same_run

if TYPE_CHECKING:
    from encore.training.batches import Training
    from encore.training.optimizers import StepOptimizer

logger = logging.getLogger(__name__)

WEIGHTS_FILE = "weights.safetensors"
OPTIMIZER_FILE = "optimizer.safetensors"
STATE_FILE = "state.json"
_NAME = re.compile(r"step-(\d{8})")


#: Content of state.json, weights and optimizer tensors, on the CPU. The state holds the step, the
#: run's identity (another run must not continue from here) and the step's evaluation or None.
Checkpoint = tuple[dict[str, Any], dict[str, Tensor], dict[str, Tensor]]


class CheckpointManager:
    """Writer and reader of a run's trained weights and optimizer state.

    With several processes, each reads the whole checkpoint and keeps its shards. Rank 0 writes.

    Args:
        training: Model with its adapters and shards, and settings.
        optimizer: Optimizer of the trainable parameters.
        run: Run whose checkpoints are written and read.
    """

    def __init__(self, training: Training, optimizer: StepOptimizer, run: TrainingRun) -> None:
        self._optimizer, self._ranks = optimizer, training.ranks
        self._folder, self._keep = run.checkpoints_dir, training.config.keep_checkpoints
        self.weights = trainable_parameters(training.model)
        # dtype "auto" means bfloat16 on a GPU and float32 on a CPU: one must not resume the other.
        dtype = str(next(training.model.trunk.parameters()).dtype).removeprefix("torch.")
        self._identity = {**run.identity, "weights": {"dtype": dtype}}

    def restore(self) -> Mapping[str, Any] | None:
        """Restore the newest intact checkpoint and return its state; None if there is none.

        Raises:
            InputError: The checkpoint belongs to another run or does not fit the model.
            EncoreError: The processes read different checkpoints.
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
        restore_tensors(self.weights, weights, label=f"{path}: weight")
        restore_tensors(self._optimizer.state(), optimizer, label=f"{path}: state of")
        return state

    def save(self, step: int, *, evaluation: Mapping[str, Any] | None) -> Path:
        """Write the checkpoint of a step and return its folder.

        Raises:
            TrainingDivergedError: A weight is not finite. Nothing is written, so that the newest
                checkpoint stays a good one.
            NoRoomError: The disk is too full. Older checkpoints are kept.
        """
        is_bad = [~torch.isfinite(local_part(tensor)).all() for tensor in self.weights.values()]
        num_bad_shards = self._ranks.sum(torch.stack(is_bad).cpu().long()).tolist()
        if not_finite := [*compress(self.weights, num_bad_shards)]:
            problem = f"weight {not_finite[0]} is not a finite number"
            raise TrainingDivergedError(problem=problem, step=step)
        tensors = {
            WEIGHTS_FILE: self._ranks.gather(self.weights),
            OPTIMIZER_FILE: self._ranks.gather(self._optimizer.state()),
        }
        if self._ranks.is_rank_zero:
            self._write(step, evaluation, tensors)
        self._ranks.wait()  # so that all processes continue after the checkpoint exists
        return checkpoint_path(self._folder, step)

    def _write(
        self,
        step: int,
        evaluation: Mapping[str, Any] | None,
        tensors: Mapping[str, Mapping[str, Tensor]],
    ) -> None:
        """Write a checkpoint completely or not at all, then delete all but the newest ones.

        Checkpoints of later steps were found damaged when the run resumed, so they are deleted too.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        path, purpose = checkpoint_path(self._folder, step), f"the checkpoint of step {step}"
        num_bytes = sum(tensor.nbytes for file in tensors.values() for tensor in file.values())
        check_free_space(self._folder, num_bytes, purpose=purpose)
        earlier = [number for number in checkpoint_steps(self._folder) if number < step]
        kept_work = "there is none before it"
        if earlier:
            kept_work = f"the checkpoint of step {earlier[-1]} is kept"
        full_disk = report_full_disk(self._folder, purpose=purpose, kept_work=kept_work)
        with full_disk, atomic_folder(path) as temporary:
            files = {}
            for file_name, tensors_by_name in tensors.items():
                contiguous = {
                    name: tensor.detach().contiguous() for name, tensor in tensors_by_name.items()
                }
                save_file(contiguous, temporary / file_name)
                files[file_name] = file_sha256(temporary / file_name)
            state: dict[str, Any] = {"step": step, "identity": self._identity}
            state |= {"evaluation": evaluation, "files": files}
            state["sha256"] = _digest(state)
            write_json(temporary / STATE_FILE, state)
        kept_steps = {*[*earlier, step][-self._keep :]}
        for obsolete_step in {*checkpoint_steps(self._folder)} - kept_steps:
            shutil.rmtree(checkpoint_path(self._folder, obsolete_step))


def checkpoint_path(folder: Path, step: int) -> Path:
    """Return the folder of a step's checkpoint."""
    return folder / f"step-{step:08d}"


def checkpoint_steps(folder: Path) -> tuple[int, ...]:
    """Return the steps that have a checkpoint, intact or damaged, in ascending order."""
    names = (_NAME.fullmatch(path.name) for path in folder.glob("step-*"))
    return tuple(sorted(int(name[1]) for name in names if name))


def newest_checkpoint(folder: Path, *, identity: Mapping[str, Any]) -> Checkpoint | None:
    """Read the newest intact checkpoint. A warning names each damaged one that is skipped.

    Args:
        folder: Folder of the run's checkpoints; it need not exist.
        identity: Identity of the run that resumes.

    Returns:
        The checkpoint, or None if no checkpoint is intact.

    Raises:
        InputError: The newest readable checkpoint belongs to another run; the message names the
            first difference.
    """
    steps = checkpoint_steps(folder)
    for step in reversed(steps):
        path = checkpoint_path(folder, step)
        try:
            state = _read_state(path, step)
            check_same_run(state["identity"], identity, path=path)
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


#: Errors that reading a damaged checkpoint raises.
_DAMAGE = (OSError, ValueError, KeyError, TypeError, AttributeError)


def _digest(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _read_state(path: Path, step: int) -> dict[str, Any]:
    """Read state.json of a checkpoint, and verify its digest and its step."""
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
    """Read a file of tensors, after its digest was found equal to that of state.json."""
    if file_sha256(path) != state["files"].get(path.name):
        raise ValueError(f"{path.name} does not match its SHA-256")
    return load_file(path)
