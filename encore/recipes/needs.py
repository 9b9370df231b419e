"""Whether a machine can hold what a recipe runs, looked at before hours are spent.

Lower bounds from config.json alone: weights, and for training the optimizer's averages. A model of
an unknown kind is passed over: its engine says what it lacks.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Collection
from dataclasses import dataclass

from encore.config import JudgeConfig
from encore.errors import EncoreError, InputError
from encore.model.config import BackboneConfig
from encore.recipes.recipe import Recipe
from encore.recipes.shipped import SHAPE_OF
from encore.training.backbone_shape import BackboneShape, find_shape
from encore.training.config import TrainingConfig

_GIB = 1 << 30
_HALF_BYTES, _FLOAT_BYTES = 2, 4
_8BIT_STATES = 2
_ASK_CUDA = (
    "from torch import cuda; places = range(cuda.device_count()); "
    "print(min(cuda.get_device_properties(place).total_memory for place in places))"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What a process can use.

    Attributes:
        num_gpus: That torch sees.
        gpu_bytes: Memory of the smallest of them; 0 without any.
        memory_bytes: The machine's own.
    """

    num_gpus: int
    gpu_bytes: int
    memory_bytes: int

    @property
    def words(self) -> str:
        """For people."""
        if self.num_gpus == 0:
            return f"no GPU and {_gib(self.memory_bytes)} of memory"
        each = " each" if self.num_gpus > 1 else ""
        return f"{self.num_gpus} GPU{'s' * (self.num_gpus > 1)} of {_gib(self.gpu_bytes)}{each}"


def this_machine() -> Machine:
    """The machine of this process."""
    import torch

    num_gpus = torch.cuda.device_count()  # asks the driver alone, as `is_available` does not
    return Machine(
        num_gpus=num_gpus,
        gpu_bytes=_gpu_bytes() if num_gpus else 0,
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    )


def _gpu_bytes() -> int:
    """Asked for in a process of its own: a judge's engine forks, and CUDA must not be in use then.

    The variables that choose GPUs hold there too.
    """
    command = [sys.executable, "-c", _ASK_CUDA]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - fixed
    if answer.returncode != 0:
        raise EncoreError(
            "this machine's GPUs do not answer "
            f"({' '.join(answer.stderr.split()[-20:])}); run `encore doctor`"
        )
    return int(answer.stdout)


def refuse_judge_too_large(judge: JudgeConfig, *, machine: Machine) -> None:
    """Compare the judge's weights with what its devices have.

    Weights that are quantized or kept outside the GPU are passed over.

    Raises:
        InputError: They do not fit: how much they take, what is here, and what to do.
    """
    if {"quantization", "cpu_offload_gb"} & judge.engine_args.keys():
        return
    shape = _shape(judge.model, revision=judge.revision)
    if shape is None:
        return
    num_bytes = _FLOAT_BYTES if judge.dtype == "float32" else _HALF_BYTES
    needed = (shape.num_parameters + shape.num_output_parameters) * num_bytes
    num_used = min(_num_devices(judge), machine.num_gpus)
    if needed <= (num_used * machine.gpu_bytes if num_used else machine.memory_bytes):
        return
    advice = "rate where they fit and bring the study back, or give a smaller judge with --judge"
    if needed <= machine.num_gpus * machine.gpu_bytes:
        advice = f"use them all: --engine-arg tensor_parallel_size={machine.num_gpus}"
    raise InputError(
        f"judge {judge.model!r}: its weights alone take {_gib(needed)}; this machine has "
        f"{machine.words}{f', of which it would use {num_used}' if num_used else ''}; {advice}"
    )


def refuse_training_too_large(
    recipe: Recipe, *, machine: Machine, done: Collection[str] = ()
) -> None:
    """Compare each training's weights and optimizer with one GPU, or with the machine's memory.

    Args:
        recipe: What is to be run.
        machine: Where.
        done: Stages that were finished before, perhaps elsewhere.

    Raises:
        InputError: They do not fit: how much they take, and what is here.
    """
    rows = [(row.stage, row.backbone, row.training) for row in recipe.rows]
    for stage, backbone, training in (("train", recipe.backbone, recipe.training), *rows):
        shape = None if stage in done else _shape(backbone.model, revision=backbone.revision)
        if shape is None:
            continue
        needed = shape.num_parameters * _training_bytes(backbone, training, machine=machine)
        if needed > (machine.gpu_bytes or machine.memory_bytes):
            raise InputError(
                f"recipe {recipe.name}, stage {stage}: {backbone.model!r} takes at least "
                f"{_gib(needed)} of memory, and this machine has {machine.words}; run the recipe "
                "where it fits (docs/recipes.md says what each one takes), or only rate here, with "
                "`encore rate`"
            )


def _training_bytes(
    backbone: BackboneConfig, training: TrainingConfig | None, *, machine: Machine
) -> int:
    """Of one parameter: its weight, and AdamW's two averages of its gradient where it learns."""
    is_half = backbone.dtype == "bfloat16" or (backbone.dtype == "auto" and machine.num_gpus > 0)
    weight = _HALF_BYTES if is_half else _FLOAT_BYTES
    if training is None or training.method != "full":
        return weight
    return weight + (_8BIT_STATES if training.optimizer == "adamw-8bit" else 2 * weight)


def _shape(model: str, *, revision: str | None) -> BackboneShape | None:
    try:
        return find_shape(SHAPE_OF.get(model, model), revision=revision)
    except InputError:  # of another kind, or not to be had: opening it says so in its own words
        return None


def _num_devices(judge: JudgeConfig) -> int:
    """Values that are no number of devices are refused by the engine."""
    sizes = (judge.engine_args.get(f"{kind}_parallel_size", 1) for kind in ("tensor", "pipeline"))
    return math.prod(size for size in sizes if isinstance(size, int) and size > 0)


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / _GIB:,.0f} GiB"
