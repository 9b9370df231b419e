"""Several processes, one a GPU, that train one model together: FSDP2, started by a launcher.

``torchrun --nproc-per-node N -m encore.cli train …`` and ``accelerate launch …`` start the
processes and end all of them when one dies. Torch's ``fully_shard`` cuts weights, gradients and
optimizer states into shards, layer by layer; pairs are dealt to the processes, and every update is
that of the whole step. What is written is whole: a run may go on with another number of processes.

Shown on CPUs with gloo (tests/training/test_ranks.py). With NCCL on several GPUs the same calls
are made, but no machine with several was at hand: neither speed nor memory was measured there.
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
from encore.model.backbone_config import BackboneConfig

if TYPE_CHECKING:
    from encore.model.reward_model import MultiHeadRewardModel
    from encore.training.training_config import TrainingConfig

#: Others wait while rank 0 writes a checkpoint; the launcher notices who has died.
_TIMEOUT = timedelta(hours=2)
#: gloo's threads give the tensors of the last collective back to Python after it has returned. One
#: that comes when the interpreter is already ending aborts the process (8 of 100 times in a small
#: script), so they get time while nobody holds the interpreter's lock.
_SETTLING_SECONDS = 0.2
#: Settings that several processes can have.
_ALLOWED: Mapping[str, tuple[str | None, ...]] = {
    "method": ("full",),
    "head_init": ("zero", "own"),
    # Each pass must be one forward pass in every process.
    "layout": ("packed", "prefix-shared"),
    # A shard does not know the norm of the whole parameter.
    "clip_gradient": (None,),
}


class Ranks:
    """This process among those that train one model; without a mesh it is alone.

    Attributes:
        rank: Which one, from 0; rank 0 reports and writes.
        count: How many there are.
    """

    def __init__(self, mesh: Any = None) -> None:
        self._mesh = mesh
        self.rank = 0 if mesh is None else int(mesh.get_local_rank())
        self.count = 1 if mesh is None else int(mesh.size())

    @property
    def is_rank_zero(self) -> bool:
        """Whether this process reports and writes."""
        return self.rank == 0

    def check(self, config: TrainingConfig) -> None:
        """Refuse what needs one process.

        Raises:
            InputError: A setting that several processes cannot have; what to give instead.
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

    def loading(self, backbone: BackboneConfig, *, device: str) -> tuple[BackboneConfig, str]:
        """How and where a backbone is loaded that is to train on a kind of device.

        Several processes load it in the device's format on the CPU: no GPU need hold it whole.
        """
        if self.count == 1:
            return backbone, device
        if device == "cuda" and backbone.dtype == "auto":
            backbone = backbone.model_copy(update={"dtype": "bfloat16"})
        return backbone, "cpu"

    def shard(self, model: MultiHeadRewardModel) -> None:
        """Cut a loaded model into the processes' shards, in place.

        Layer by layer; the heads apart, whose number format may be another.
        """
        if self.count == 1:
            return
        names = set(model.trunk._no_split_modules or ())
        layers = [module for module in model.trunk.modules() if type(module).__name__ in names]
        for module in (*layers, model.heads, model):
            self.shard_module(module)

    def shard_module(self, module: Any) -> None:
        """Cut one module; gradients of its shards are summed over the processes in float32."""
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        # Parameters are shards again after every forward pass, also the root's: an evaluation
        # leaves nothing whole.
        fully_shard(
            module,
            mesh=self._mesh,
            reshard_after_forward=True,
            mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.float32),
        )
        # A loss is divided by the terms of the whole step: gradients are summed, not averaged.
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)

    def wait(self) -> None:
        """Until every process has come here."""
        self.summed(torch.zeros(1))

    def agree(self, number: int) -> bool:
        """Whether every process has the same number; all of them get the answer."""
        # The largest of the number and of its negative, which is the smallest.
        both = torch.tensor([number, -number])
        if self.count > 1:
            distributed.all_reduce(both, op=distributed.ReduceOp.MAX)
        return bool(both.sum() == 0)

    def summed(self, tensor: Tensor) -> Tensor:
        """The sum over all processes of a CPU tensor; every process gets it."""
        if self.count == 1:
            return tensor
        total = tensor.clone()
        distributed.all_reduce(total)
        return total

    def whole(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Tensors put together from their shards, on the CPU; only rank 0 gets them.

        One after the other, so that a GPU holds one whole tensor at a time.
        """
        if self.count == 1:
            return tensors
        gathered: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            full = tensor.detach().full_tensor() if _is_sharded(tensor) else tensor.detach()
            if self.is_rank_zero:
                gathered[name] = full.cpu()
        return gathered

    def gather(self, model: MultiHeadRewardModel) -> None:
        """Make rank 0's model whole, to be saved; it cannot be trained further."""
        if self.count == 1:
            return
        for name, tensor in self.whole(dict(model.named_parameters())).items():
            path, _, attribute = name.rpartition(".")
            setattr(model.get_submodule(path), attribute, nn.Parameter(tensor))


@contextlib.contextmanager
def joined_ranks(device: str) -> Iterator[Ranks]:
    """Join the processes that a launcher started, for the length of the block.

    Without a launcher (no ``WORLD_SIZE`` above 1 in the environment) nothing happens.

    Args:
        device: ``cpu`` or ``cuda``.

    Raises:
        InputError: Processes on several machines, or more of them than GPUs.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) <= 1:
        yield Ranks()
        return
    from torch.distributed.device_mesh import init_device_mesh

    _check_launch(device)
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
    # An accelerate config with FSDP has transformers load zeros in all processes but the first.
    os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"] = "false"
    if sys.platform == "linux":  # all are on this machine, whose name need not resolve
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    distributed.init_process_group(backend, timeout=_TIMEOUT)
    try:
        ranks = Ranks(init_device_mesh(device, (distributed.get_world_size(),)))
        yield ranks
        ranks.wait()  # for rank 0, which may still be writing the model
    except RuntimeError as error:
        # gloo says only in words that a collective failed because a process is gone.
        if not isinstance(error, distributed.DistError) and "gloo" not in str(error):
            raise
        first_line = str(error).strip().partition("\n")[0]
        raise EncoreError(
            f"a connection to another process of this run broke ({first_line}); finished "
            "checkpoints are kept: see what the others said, put this right and start all of them "
            "again"
        ) from error
    # After an error the launcher ends all of them; leaving the group could wait for a dead one.
    distributed.destroy_process_group()
    time.sleep(_SETTLING_SECONDS)


def _check_launch(device: str) -> None:
    """Refuse a launch that cannot work."""
    count = int(os.environ["WORLD_SIZE"])
    here = int(os.environ.get("LOCAL_WORLD_SIZE", count))
    problem = ""
    if here != count:
        problem = (
            f"{here} of the processes are on this machine; expected all: launch on one machine"
        )
    elif device == "cuda" and count > torch.cuda.device_count():
        problem = (
            f"this machine has {torch.cuda.device_count()} GPUs; expected at most one process a "
            "GPU: lower --nproc-per-node"
        )
    if problem:
        raise InputError(f"WORLD_SIZE {count}: {problem}")


# --- shards -------------------------------------------------------------------------------------
# FSDP2 cuts a parameter along its first dimension into equal numbers of rows, the last shards
# shorter or empty (torch.chunk), so a shard is one stretch of the flattened tensor.


def local_part(tensor: Tensor) -> Tensor:
    """What this process holds of a tensor, sharing its memory: the tensor itself unless sharded."""
    if not _is_sharded(tensor):
        return tensor
    with torch.no_grad():
        return tensor.to_local()


def first_element(tensor: Tensor) -> int:
    """The element of the flattened whole tensor that this process's part begins with."""
    return _first_row(tensor) * int(tensor.shape[1:].numel())


def put_whole(target: Tensor, source: Tensor) -> None:
    """Copy a whole tensor into one of the same shape, of which this process may hold a part."""
    with torch.no_grad():
        part = local_part(target)
        is_part = part is not target
        part.copy_(source.narrow(0, _first_row(target), len(part)) if is_part else source)


def shard_group(tensors: Iterable[Tensor]) -> Any:
    """The processes that hold the sharded ones among some tensors; None where none is sharded."""
    sharded = next((tensor for tensor in tensors if _is_sharded(tensor)), None)
    return None if sharded is None else sharded.device_mesh.get_group()


def _is_sharded(tensor: Tensor) -> bool:
    """Whether other processes hold parts of it (a DTensor)."""
    return hasattr(tensor, "to_local")


def _first_row(tensor: Tensor) -> int:
    if not _is_sharded(tensor):
        return 0
    mesh: Any = tensor.device_mesh
    rows_each = -(-int(tensor.shape[0]) // int(mesh.size()))
    return min(rows_each * int(mesh.get_local_rank()), int(tensor.shape[0]))
