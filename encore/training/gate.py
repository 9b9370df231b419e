"""The MoE baseline: a small network reads the prompt and weighs the heads anew for each one.

Backbone and heads stay as they are. The paper names "a three-layer MLP" and cites ArmoRM, whose
published settings are the defaults here. A gate is no linear head: it cannot be folded into one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F

from encore.errors import EncoreError, InputError
from encore.files import atomic_path, atomic_write_bytes

# Suffixes: P pairs, B pairs of a batch, D hidden, R heads.

GATE_FILE = "gate.json"
WEIGHTS_FILE = "gate.safetensors"
_ROWS_PER_BLOCK = 8192

_Floats = NDArray[np.float32]


class GateConfig(BaseModel):
    """How a gate is built and trained; defaults as in ArmoRM (Wang et al., 2024)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    hidden_size: int = Field(default=1024, ge=1, description="Units of a hidden layer.")
    num_hidden_layers: int = Field(default=3, ge=1, description="Hidden layers.")
    dropout: float = Field(default=0.2, ge=0, lt=1, description="After each hidden layer.")
    temperature: float = Field(default=10.0, gt=0, description="Of the softmax over heads.")
    learning_rate: float = Field(default=1e-3, gt=0, description="AdamW's, falling as a cosine.")
    weight_decay: float = Field(default=0.0, ge=0, description="AdamW's.")
    num_steps: int = Field(default=2000, ge=1, description="Optimizer steps.")
    batch_pairs: int = Field(default=1024, ge=1, description="Pairs a step, drawn anew each time.")
    seed: int = Field(default=0, ge=0, description="Of initial weights, batches and dropout.")


@dataclass(frozen=True, slots=True, kw_only=True)
class GateRecord:
    """One step: its number from 1, the loss before it, its learning rate."""

    step: int
    loss: float
    learning_rate: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainedGate:
    """A gate and how it came about.

    Attributes:
        network: In evaluation mode.
        head_ids: The R heads that it weighs, in order.
        config: Its shape and training.
        log: One record a step; empty for a gate that was loaded.
    """

    network: GatingNetwork
    head_ids: tuple[str, ...]
    config: GateConfig
    log: tuple[GateRecord, ...] = ()

    def weights(self, prompt_PD: _Floats) -> _Floats:
        """The weight of every head for each prompt, shape [P, R]: none negative, sums of 1."""
        blocks = [np.empty((0, len(self.head_ids)), dtype=np.float32)]
        with torch.inference_mode():
            for start in range(0, len(prompt_PD), _ROWS_PER_BLOCK):
                prompt_BD = torch.from_numpy(_float32(prompt_PD[start : start + _ROWS_PER_BLOCK]))
                blocks.append(self.network(prompt_BD).numpy())
        return np.concatenate(blocks)

    def rewards(self, prompt_PD: _Floats, score_PR: _Floats) -> _Floats:
        """The weighted sum of centred head scores [P, R] for each prompt, shape [P]."""
        return np.asarray((self.weights(prompt_PD) * score_PR).sum(axis=1), dtype=np.float32)


class GatingNetwork(nn.Module):  # type: ignore[misc]  # mypy sees torch as Any here
    """Hidden layers with ReLU and dropout, then a softmax over heads.

    Args:
        num_inputs: D.
        num_heads: R.
        config: Its shape.
    """

    def __init__(self, num_inputs: int, num_heads: int, config: GateConfig) -> None:
        super().__init__()
        sizes = [num_inputs, *[config.hidden_size] * config.num_hidden_layers]
        layers: list[Any] = []
        for size, next_size in pairwise(sizes):
            layers += [nn.Linear(size, next_size), nn.ReLU(), nn.Dropout(config.dropout)]
        self.layers = nn.Sequential(*layers, nn.Linear(sizes[-1], num_heads))
        self.temperature = config.temperature
        # Weights that sum to 1 bound the margins; the loss sees them times a free scale, which
        # ranks nothing differently.
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, prompt_BD: Any) -> Any:
        """The weights of the heads, [B, D] -> [B, R]."""
        return F.softmax(self.layers(prompt_BD) / self.temperature, dim=-1)

    def loss(self, prompt_BD: Any, margin_BR: Any) -> Any:
        """Mean Bradley-Terry loss of the gated margins score(chosen) - score(rejected)."""
        gated_B = self.scale * (self(prompt_BD) * margin_BR).sum(dim=-1)
        return F.softplus(-gated_B).mean()


def train_gate(
    prompt_PD: _Floats,
    score_chosen_PR: _Floats,
    score_rejected_PR: _Floats,
    *,
    head_ids: Sequence[str],
    config: GateConfig | None = None,
    device: str = "cpu",
    on_step: Callable[[GateRecord], None] | None = None,
) -> TrainedGate:
    """Train a gate on pairs whose head scores are known.

    The same inputs and seed give the same gate, bit by bit, on the same machine's CPU.

    Args:
        prompt_PD: State where the assistant's turn begins, shape [P, D], from
            `encore.training.embeddings.embed_prompts`.
        score_chosen_PR: Centred head scores of the preferred responses, shape [P, R].
        score_rejected_PR: The same of the other responses.
        head_ids: The R heads.
        config: None: ArmoRM's.
        device: Where to train; the finished gate is on the CPU.
        on_step: Told about every step.

    Raises:
        InputError: No pairs; scores, heads and prompts that do not belong together.
        EncoreError: A loss that is not finite: at which step.
    """
    config = config or GateConfig()
    _check_inputs(prompt_PD, score_chosen_PR, score_rejected_PR, head_ids)
    prompt = torch.from_numpy(_float32(prompt_PD)).to(device)
    margin = torch.from_numpy(_float32(score_chosen_PR - score_rejected_PR)).to(device)
    devices = [prompt.device] if prompt.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(config.seed)
        network = GatingNetwork(prompt.shape[1], len(head_ids), config).to(device)
        optimizer = torch.optim.AdamW(
            network.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay
        )
        log = []
        for step in range(1, config.num_steps + 1):
            record = _step(network, optimizer, prompt, margin, step=step, config=config)
            log.append(record)
            if on_step is not None:
                on_step(record)
    return TrainedGate(
        network=network.cpu().eval(), head_ids=tuple(head_ids), config=config, log=tuple(log)
    )


def save_gate(folder: Path, gate: TrainedGate) -> None:
    """Write a gate's weights, then its description, each whole or not at all.

    Raises:
        OSError: as the file system reports it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: tensor.contiguous() for name, tensor in gate.network.state_dict().items()}
    with atomic_path(folder / WEIGHTS_FILE) as temporary:
        save_file(weights, temporary)
    description = {
        "config": gate.config.model_dump(),
        "head_ids": list(gate.head_ids),
        "num_inputs": gate.network.layers[0].in_features,
    }
    atomic_write_bytes(folder / GATE_FILE, json.dumps(description, indent=1).encode() + b"\n")


def load_gate(folder: Path, *, head_ids: Sequence[str] | None = None) -> TrainedGate:
    """Read a gate back, in evaluation mode on the CPU.

    Args:
        folder: Where `save_gate` wrote it.
        head_ids: The heads of the model it is to be used with (None: not checked).

    Raises:
        InputError: Missing or damaged files; a gate of other heads.
    """
    description = _read_description(folder)
    if head_ids is not None and tuple(head_ids) != description.head_ids:
        raise InputError(
            f"gate {folder}: it weighs {len(description.head_ids)} heads "
            f"({', '.join(description.head_ids)}), the model has {len(head_ids)} "
            f"({', '.join(head_ids)}); train a gate for this model"
        )
    network = GatingNetwork(description.num_inputs, len(description.head_ids), description.config)
    path = folder / WEIGHTS_FILE
    try:
        with safe_open(path, framework="pt") as file:
            network.load_state_dict({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118 - no mapping
    except (OSError, SafetensorError, RuntimeError) as error:
        raise InputError(
            f"{path}: no weights of this gate ({str(error).splitlines()[0]}); train it again"
        ) from error
    return TrainedGate(
        network=network.eval(), head_ids=description.head_ids, config=description.config
    )


class _Description(BaseModel):
    """What `gate.json` says."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    config: GateConfig
    head_ids: tuple[str, ...]
    num_inputs: int


def _read_description(folder: Path) -> _Description:
    path = folder / GATE_FILE
    try:
        return _Description.model_validate_json(path.read_bytes())
    except FileNotFoundError as error:
        raise InputError(f"gate {folder}: no {GATE_FILE} in it; train a gate first") from error
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        where = ".".join(map(str, problem["loc"])) or "file"
        raise InputError(f"{path}: damaged, {where}: {problem['msg']}; train it again") from error


def _step(
    network: GatingNetwork,
    optimizer: Any,
    prompt_PD: Any,
    margin_PR: Any,
    *,
    step: int,
    config: GateConfig,
) -> GateRecord:
    num_done = (step - 1) / config.num_steps
    learning_rate = config.learning_rate * (1 + math.cos(math.pi * num_done)) / 2
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
    rows_B = torch.from_numpy(_rows(len(prompt_PD), step=step, config=config))
    rows_B = rows_B.to(prompt_PD.device)
    optimizer.zero_grad()
    loss = network.loss(prompt_PD[rows_B], margin_PR[rows_B])
    loss_value = float(loss.detach())
    if not math.isfinite(loss_value):
        raise EncoreError(
            f"gate: the loss is {loss_value} at step {step}; expected a finite number: check the "
            "prompts' states and the scores, or lower the learning rate"
        )
    loss.backward()
    optimizer.step()
    return GateRecord(step=step, loss=loss_value, learning_rate=learning_rate)


def _rows(num_pairs: int, *, step: int, config: GateConfig) -> NDArray[np.int64]:
    """The pairs of a step: a function of seed and step alone."""
    generator = np.random.default_rng([config.seed, step])
    size = min(config.batch_pairs, num_pairs)
    return generator.choice(num_pairs, size=size, replace=False).astype(np.int64)


def _float32(array: NDArray[Any]) -> _Floats:
    return np.ascontiguousarray(array, dtype=np.float32)


def _check_inputs(
    prompt_PD: _Floats,
    score_chosen_PR: _Floats,
    score_rejected_PR: _Floats,
    head_ids: Sequence[str],
) -> None:
    num_pairs = len(prompt_PD)
    if num_pairs == 0:
        raise InputError("gate: no pairs to learn from; expected at least one")
    expected = (num_pairs, len(head_ids))
    for name, score_PR in (("chosen", score_chosen_PR), ("rejected", score_rejected_PR)):
        if score_PR.shape != expected:
            raise InputError(
                f"gate: scores of {name} have shape {score_PR.shape}, expected {expected}: a row "
                "for each of the prompts, a column for each head"
            )
