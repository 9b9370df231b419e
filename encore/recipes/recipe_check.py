"""Check a recipe before its long stages: its names, its data, and the memory of this machine.

The memory is checked before anything is downloaded, with lower bounds: weights, and for training
the optimizer's averages. A model of an unknown kind is not checked: its engine reports what is
missing.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass

import psutil

from encore.benchmarks.benchmark_pairs import configured_pairs
from encore.benchmarks.definition import load_benchmark
from encore.core.errors import InputError
from encore.data.rule_sets import load_rule_set
from encore.judges.gpu_groups import GPU_VARIABLE, visible_gpus
from encore.judges.judge_options import JudgeConfig
from encore.model.backbone_options import BackboneConfig
from encore.model.backbone_shape import find_shape
from encore.recipes.recipe import Recipe
from encore.training.training_options import TrainingConfig
from encore.weighting.schemes import load_scheme

_GIB = 1 << 30
#: Short names in `encore plan` of models whose dimensions are known without asking the hub.
_SHAPE_BY_MODEL = {
    "meta-llama/Meta-Llama-3-70B-Instruct": "llama-3-70b",
    "meta-llama/Meta-Llama-3-8B-Instruct": "llama-3-8b",
    "meta-llama/Llama-3.1-8B-Instruct": "llama-3.1-8b",
    "Skywork/Skywork-Reward-Llama-3.1-8B-v0.2": "llama-3.1-8b",
    "sfairXC/FsfairX-LLaMA3-RM-v0.1": "llama-3-8b",
}


def check_names(recipe: Recipe) -> None:
    """Check that the recipe's schemes, rules and benchmark exist.

    Raises:
        EncoreError: One does not exist. The message names it and the known ones.
    """
    load_scheme(recipe.weighing.scheme)
    recipe.benchmark.rows.check_schemes()
    load_rule_set(recipe.rating.rules)
    for pairs_config in (recipe.benchmark.pairs, *recipe.further_benchmarks):
        load_benchmark(pairs_config.benchmark)


def check_readable(recipe: Recipe) -> None:
    """Check that the benchmark's rows and each backbone's config and tokenizer can be read.

    Weights are not fetched. A model behind a licence is found before hours of rating are spent.

    Raises:
        EncoreError: Something cannot be read. The message names it and the reason.
    """
    from encore.model.load_backbone import load_tokenizer  # brings transformers

    try:
        configured_pairs(recipe.benchmark.pairs)
    except InputError as error:
        # A failure of the network stays the cause, because another attempt may succeed.
        raise InputError(f"{error} (a recipe's option: --benchmark-data)") from error.__cause__
    for _, backbone, training in recipe.models:
        # A downloaded model that is an untouched row may be of a kind that cannot be trained.
        load_tokenizer(backbone, is_as_downloaded=training is None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Devices and memory that a process can use.

    Attributes:
        num_gpus: Number of visible GPUs.
        gpu_bytes: Memory of the smallest GPU in bytes; 0 without a GPU.
        memory_bytes: Main memory in bytes.
    """

    num_gpus: int
    gpu_bytes: int
    memory_bytes: int

    def __str__(self) -> str:
        if self.num_gpus == 0:
            return f"no GPU and {_gib(self.memory_bytes)} of memory"
        return f"{self.num_gpus} × GPU of {_gib(self.gpu_bytes)}"


def this_machine() -> Machine:
    """Return the devices and memory of this machine.

    The facts come from the driver, not from CUDA: a judge's engine forks, and CUDA must not be
    initialized before.

    Raises:
        InputError: The driver does not say how much memory the visible GPUs have.
    """
    gpus, gpu_bytes = visible_gpus(), 0
    if gpus:
        command = ["nvidia-smi", f"--id={','.join(gpus)}", "--query-gpu=memory.total"]
        try:
            memory_lines = subprocess.check_output([*command, "--format=csv,noheader,nounits"])  # noqa: S603
        except (OSError, subprocess.CalledProcessError) as error:
            raise InputError(
                f"GPUs {','.join(gpus)} are visible, but nvidia-smi does not say how much memory "
                f"they have ({error}); set {GPU_VARIABLE} to nothing to run without them"
            ) from error
        gpu_bytes = min(map(int, memory_lines.split())) << 20
    memory_bytes = psutil.virtual_memory().total
    return Machine(num_gpus=len(gpus), gpu_bytes=gpu_bytes, memory_bytes=memory_bytes)


def refuse_judge_too_large(judge: JudgeConfig, *, machine: Machine) -> None:
    """Refuse a judge whose weights exceed the memory of its devices.

    A judge behind a server, quantized weights and weights outside the GPU are not checked.

    Raises:
        InputError: The weights do not fit. The message says their size, the memory and the advice.
    """
    if judge.backend == "http":
        return
    num_weights = _num_weights(judge.model, judge.revision, has_output=True)
    if num_weights is None or {"quantization", "cpu_offload_gb"} & judge.engine_args.keys():
        return
    needed_bytes = num_weights * (4 if judge.dtype == "float32" else 2)
    num_used = min(judge.num_devices, machine.num_gpus)
    if needed_bytes <= (num_used * machine.gpu_bytes if num_used else machine.memory_bytes):
        return
    advice = "rate where they fit and bring the study back, or give a smaller judge with --judge"
    if needed_bytes <= machine.num_gpus * machine.gpu_bytes:
        advice = f"use them all: --engine-arg tensor_parallel_size={machine.num_gpus}"
    raise InputError(
        f"judge {judge.model!r}: its weights alone take {_gib(needed_bytes)}; this machine has "
        f"{machine}{f', of which it would use {num_used}' if num_used else ''}; {advice}"
    )


def refuse_training_too_large(
    backbone: BackboneConfig, training: TrainingConfig | None, *, stage: str, machine: Machine
) -> None:
    """Refuse a training whose weights and AdamW averages exceed one GPU, or the main memory.

    Raises:
        InputError: They do not fit. The message says how much they take, and the memory.
    """
    num_weights = _num_weights(backbone.model, backbone.revision)
    if num_weights is None:
        return
    is_half = backbone.dtype == "bfloat16" or (backbone.dtype == "auto" and machine.num_gpus > 0)
    is_full = training is not None and training.method == "full"
    needed_bytes = num_weights * (2 if is_half else 4) * (3 if is_full else 1)
    if needed_bytes > (machine.gpu_bytes or machine.memory_bytes):
        raise InputError(
            f"stage {stage}: {backbone.model!r} takes at least {_gib(needed_bytes)} of memory, and "
            f"this machine has {machine}; run the recipe where it fits, or only `encore rate` here"
        )


def _num_weights(model: str, revision: str | None, *, has_output: bool = False) -> int | None:
    try:
        shape = find_shape(_SHAPE_BY_MODEL.get(model, model), revision=revision)
    except InputError:  # unknown or not reachable: opening the model reports the reason
        return None
    return shape.num_parameters + (shape.num_output_parameters if has_output else 0)


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / _GIB:,.0f} GiB"
