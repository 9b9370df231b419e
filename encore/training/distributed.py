"""Train one model with several processes, one on each GPU, by FSDP2.

``torchrun --nproc-per-node N -m encore.cli train …`` and ``accelerate launch …`` start the
processes, and end all of them when one dies. Torch's ``fully_shard`` divides weights, gradients and
optimizer states into shards, layer by layer. Each process computes its share of a step's pairs, and
every update is that of the whole step. Files contain whole tensors, so a run may continue with
another number of processes.

Tests run on CPUs with gloo (tests/training/test_distributed.py). On GPUs the same calls use NCCL,
but no machine with several GPUs was available: neither speed nor memory was measured there.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, distributed, nn

from encore.core.errors import EncoreError, InputError
from encore.model.backbone_options import BackboneConfig

if TYPE_CHECKING:
    from encore.model.reward_model import MultiHeadRewardModel
    from encore.training.training_options import TrainingConfig

#: Longest wait for a collective: the other processes wait while rank 0 writes a checkpoint. The
#: launcher, not this timeout, detects a dead process.
_TIMEOUT = timedelta(hours=2)
#: gloo's threads release the tensors of the last collective after the call has returned. If the
#: interpreter is already shutting down, this aborts the process (8 of 100 runs of a small script).
#: So the process sleeps for this time before it ends.
_SETTLING_SECONDS = 0.2
#: Values of settings that work with several processes.
_ALLOWED: Mapping[str, tuple[str | None, ...]] = {
    "method": ("full",),
    "head_init": ("zero", "own"),
    # Each pass must be one forward pass in every process.
    "layout": ("packed", "prefix-shared"),
    # A process with one shard cannot compute the norm of the whole parameter.
    "clip_gradient": (None,),
}


class Ranks:
    """This process within the group of processes that train one model.

    Attributes:
        rank: Number of this process, from 0. Rank 0 reports and writes.
        count: Number of processes; 1 without a mesh.
    """

    def __init__(self, mesh: Any = None) -> None:
        self._mesh = mesh
        self.rank = 0 if mesh is None else int(mesh.get_local_rank())
        self.count = 1 if mesh is None else int(mesh.size())

    @property
    def is_rank_zero(self) -> bool:
        """Return True if this process reports and writes."""
        return self.rank == 0

    def check(self, config: TrainingConfig) -> None:
        """Raise if a setting does not work with this number of processes.

        Raises:
            InputError: Several processes cannot have a setting; the message says what to give.
        """
        allowed = dict(_ALLOWED) if self.count > 1 else {}
        if config.batch_pairs < self.count:
            allowed["batch_pairs"] = (f"at least {self.count}, a pair for each",)
        for name, values in allowed.items():
            if getattr(config, name) not in values:
                expected = " or ".join("none" if value is None else value for value in values)
                raise InputError(
                    f"{name} {getattr(config, name)!r} with {self.count} processes: expected "
                    f"{expected}; choose that, or train in one process"
                )

    def check_run_key(self, run_key: str) -> None:
        """Raise if another process trains another run.

        Raises:
            EncoreError: The processes read different data or backbones.
        """
        if not self.agree(int(run_key[:15], 16)):  # an int64 holds 15 hex digits
            raise EncoreError(
                f"run key {run_key}: another process read other data or another backbone; expected "
                "the same in all: wait until nothing changes them (a revision pins a model) and "
                "start again"
            )

    def loading_options(
        self, backbone: BackboneConfig, *, device: str
    ) -> tuple[BackboneConfig, str]:
        """Return the config and device with which to load a backbone that trains on a device.

        Several processes load it on the CPU in the number format of the device, so that no GPU has
        to hold the whole model.
        """
        if self.count == 1:
            return backbone, device
        if device == "cuda" and backbone.dtype == "auto":
            backbone = backbone.model_copy(update={"dtype": "bfloat16"})
        return backbone, "cpu"

    def shard(self, model: MultiHeadRewardModel) -> None:
        """Divide a loaded model into the shards of the processes, in place.

        Every layer is a unit of its own. So are the heads, whose number format may differ.
        """
        if self.count == 1:
            return
        names = set(model.trunk._no_split_modules or ())
        layers = [module for module in model.trunk.modules() if type(module).__name__ in names]
        for module in (*layers, model.heads, model):
            self.shard_module(module)

    def shard_module(self, module: Any) -> None:
        """Divide one module into shards, with gradients summed over processes in float32."""
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        # Reshard after every forward pass, the root module too: otherwise an evaluation would
        # leave whole parameters behind.
        fully_shard(
            module,
            mesh=self._mesh,
            reshard_after_forward=True,
            mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.float32),
        )
        # The loss is divided by the terms of the whole step, so gradients are summed, not averaged.
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)

    def wait(self) -> None:
        """Wait until every process has called this method."""
        self.sum(torch.zeros(1))

    def agree(self, number: int) -> bool:
        """Return True in all processes if all have the same number, else False in all."""
        # The maximum over the processes gives the largest number and the negative of the smallest.
        extremes = torch.tensor([number, -number])
        if self.count > 1:
            distributed.all_reduce(extremes, op=distributed.ReduceOp.MAX)
        return bool(extremes.sum() == 0)

    def sum(self, tensor: Tensor) -> Tensor:
        """Return the sum of a CPU tensor over all processes, in all of them."""
        if self.count == 1:
            return tensor
        total = tensor.clone()
        distributed.all_reduce(total)
        return total

    def gather(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return whole tensors from their shards, on the CPU of rank 0; empty in other processes.

        They are gathered one after the other, so that a GPU holds one whole tensor at a time.
        """
        if self.count == 1:
            return tensors
        gathered: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            full = tensor.detach().full_tensor() if _is_sharded(tensor) else tensor.detach()
            if self.is_rank_zero:
                gathered[name] = full.cpu()
        return gathered

    def gather_model(self, model: MultiHeadRewardModel) -> None:
        """Make the model of rank 0 whole, so that it can be saved; it cannot be trained further."""
        if self.count == 1:
            return
        for name, tensor in self.gather(dict(model.named_parameters())).items():
            path, _, attribute = name.rpartition(".")
            setattr(model.get_submodule(path), attribute, nn.Parameter(tensor))


@contextlib.contextmanager
def joined_ranks(device: str) -> Iterator[Ranks]:
    """Join the group of processes that a launcher started, inside the block.

    Without a launcher (no ``WORLD_SIZE`` above 1 in the environment) the process is alone.

    Args:
        device: ``cpu`` or ``cuda``.

    Raises:
        InputError: The processes are on several machines, or there are more of them than GPUs.
        EncoreError: The connection to another process broke.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) <= 1:
        yield Ranks()
        return
    from torch.distributed.device_mesh import init_device_mesh

    _check_launch(device)
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
    # An accelerate config with FSDP makes transformers load zeros in all processes but rank 0.
    os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"] = "false"
    if sys.platform == "linux":  # all are on this machine, whose host name may not resolve
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    distributed.init_process_group(backend, timeout=_TIMEOUT)
    try:
        ranks = Ranks(init_device_mesh(device, (distributed.get_world_size(),)))
        yield ranks
        ranks.wait()  # for rank 0, which may still be writing the model
    except RuntimeError as error:
        # gloo reports a lost process only in the message of the error.
        if not isinstance(error, distributed.DistError) and "gloo" not in str(error):
            raise
        first_line = str(error).strip().partition("\n")[0]
        raise EncoreError(
            f"a connection to another process of this run broke ({first_line}); finished "
            "checkpoints are kept: see the errors of the other processes, mend the cause and start "
            "all of them again"
        ) from error
    # Not after an error: the launcher then ends all processes, and this could wait for a dead one.
    distributed.destroy_process_group()
    time.sleep(_SETTLING_SECONDS)


def _check_launch(device: str) -> None:
    """Raise if processes are on other machines, or if there are more processes than GPUs."""
    count = int(os.environ["WORLD_SIZE"])
    num_local = int(os.environ.get("LOCAL_WORLD_SIZE", count))
    problem = ""
    if num_local != count:
        problem = (
            f"{num_local} of the processes are on this machine; expected all: launch on one machine"
        )
    elif device == "cuda" and count > torch.cuda.device_count():
        problem = (
            f"this machine has {torch.cuda.device_count()} GPUs; expected at most one process a "
            "GPU: lower --nproc-per-node"
        )
    if problem:
        raise InputError(f"WORLD_SIZE {count}: {problem}")


# --- shards -------------------------------------------------------------------------------------
# FSDP2 divides a parameter along its first dimension into equal numbers of rows; the last shards
# may be shorter or empty (torch.chunk). So a shard is one range of the flattened tensor.


def local_part(tensor: Tensor) -> Tensor:
    """Return this process's shard of a tensor, sharing its memory; all of it if not sharded."""
    if not _is_sharded(tensor):
        return tensor
    with torch.no_grad():
        return tensor.to_local()


def first_element(tensor: Tensor) -> int:
    """Return the index, in the flattened whole tensor, of the first element of this shard."""
    return _first_row(tensor) * int(tensor.shape[1:].numel())


def copy_to_shard(target: Tensor, source: Tensor) -> None:
    """Copy a whole tensor into a tensor of the same shape; if it is sharded, into its shard."""
    with torch.no_grad():
        shard = local_part(target)
        is_sharded = shard is not target
        shard.copy_(source.narrow(0, _first_row(target), len(shard)) if is_sharded else source)


def shard_group(tensors: Iterable[Tensor]) -> Any:
    """Return the group of processes that hold the shards of tensors; None if none is sharded."""
    sharded = next((tensor for tensor in tensors if _is_sharded(tensor)), None)
    return None if sharded is None else sharded.device_mesh.get_group()


def _is_sharded(tensor: Tensor) -> bool:
    """Return True for a DTensor, of which other processes hold parts."""
    return hasattr(tensor, "to_local")


def _first_row(tensor: Tensor) -> int:
    """Return the index of the first row of this process's shard."""
    if not _is_sharded(tensor):
        return 0
    mesh: Any = tensor.device_mesh
    rows_each = -(-int(tensor.shape[0]) // int(mesh.size()))
    return min(rows_each * int(mesh.get_local_rank()), int(tensor.shape[0]))
