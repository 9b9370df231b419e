"""The MoE baseline: a small network reads the prompt and weighs the heads anew for each one.

Backbone and heads stay as they are. The paper names "a three-layer MLP" and cites ArmoRM, whose
published settings are the defaults here. A gate is not linear in the heads, so it cannot be folded
into one.

Suffixes: P pairs, B pairs of a batch, D hidden, R heads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional as F

from encore.core.errors import EncoreError, InputError
from encore.core.files import atomic_path, write_json
from encore.training.baselines.linear_probe import minimise_logistic
from encore.training.training_config import GateConfig

GATE_FILE = "gate.json"
WEIGHTS_FILE = "gate.safetensors"
_ROWS_PER_BLOCK = 8192
#: Bounds of the scale times the root mean square of the margins: it has no finite optimum where
#: every pair is ranked as people did, and is 0 where most are ranked the other way round.
_MIN_STANDARD_SCALE, _MAX_STANDARD_SCALE = 0.1, 1e3

_Floats = NDArray[np.float32]


class GatingNetwork(nn.Module):  # type: ignore[misc]  # mypy sees torch as Any here
    """Hidden layers with ReLU and dropout, then a softmax over heads.

    Args:
        num_inputs: D.
        head_ids: The R heads that it weighs, in order.
        config: Its shape and training.
    """

    def __init__(self, num_inputs: int, head_ids: Sequence[str], config: GateConfig) -> None:
        super().__init__()
        self.num_inputs, self.head_ids, self.config = num_inputs, tuple(head_ids), config
        sizes = [num_inputs, *[config.hidden_size] * config.num_hidden_layers]
        layers: list[Any] = []
        for size, next_size in pairwise(sizes):
            layers += [nn.Linear(size, next_size), nn.ReLU(), nn.Dropout(config.dropout)]
        self.layers = nn.Sequential(*layers, nn.Linear(sizes[-1], len(self.head_ids)))
        # Weights that sum to 1 bound the margins, and heads that predict ratings have margins of
        # a few hundredths: at scale 1 the loss is nearly linear, and its optimum is one-hot.
        self.log_scale = nn.Parameter(torch.zeros(()))

    def forward(self, prompt_BD: Any) -> Any:
        """The weights of the heads, [B, D] -> [B, R]."""
        return F.softmax(self.layers(prompt_BD) / self.config.temperature, dim=-1)

    def weights(self, prompt_PD: _Floats) -> _Floats:
        """The weight of every head for each prompt, shape [P, R]: none negative, sums of 1."""
        with torch.inference_mode():
            blocks = [self(rows) for rows in _tensor(prompt_PD).split(_ROWS_PER_BLOCK)]
            return np.asarray(torch.cat(blocks).numpy())

    def mean_loss(self, prompt_PD: _Floats, margin_PR: _Floats) -> float:
        """Mean Bradley-Terry loss of the gated margins score(chosen) - score(rejected)."""
        gated_P = (self.weights(prompt_PD) * margin_PR).sum(axis=1, dtype=np.float64)
        return float(np.logaddexp(0, -math.exp(self.log_scale.detach()) * gated_P).mean())


def best_constant_weights(margin_PR: NDArray[Any]) -> tuple[NDArray[np.float64], float]:
    """The best weights times their scale for margins score(chosen) - score(rejected), and the loss.

    Weights are on the simplex and the same for every prompt. Times a scale they are any vector
    without negative entries, so that this is a logistic regression with bounds: convex, with one
    optimum. A gate that reads the prompt should not have a larger loss on the same pairs.

    Args:
        margin_PR: Of the pairs under every head, shape [P, R].
    """
    margin_PR = np.asarray(margin_PR, dtype=np.float64)
    spread = float(np.sqrt(np.square(margin_PR).mean())) or 1.0
    num_heads = margin_PR.shape[1]
    weight_R, loss = minimise_logistic(  # bounded: infinite for separable pairs
        margin_PR / spread, np.full(num_heads, 1 / num_heads), most=_MAX_STANDARD_SCALE
    )
    return weight_R / spread, loss


def fit_gate(
    prompt_PD: _Floats,
    margin_PR: _Floats,
    *,
    head_ids: Sequence[str],
    config: GateConfig,
    device: str = "cpu",
    on_step: Callable[[float], object] = lambda _loss: None,
) -> GatingNetwork:
    """Train a gate on pairs whose margins are known; it is on the CPU, in evaluation mode.

    The loss sees the gated margins times a scale, which changes no ranking. The scale starts where
    it is best for uniform weights, is trained as a logarithm, and is set to its optimum for the
    trained weights at the end. The same inputs and seed give the same gate, bit by bit, on the same
    CPU.

    Args:
        prompt_PD: State where the assistant's turn begins, [P, D]: see `prompt_tokens`.
        margin_PR: Head scores of the preferred responses minus those of the others, shape [P, R].
        head_ids: The R heads.
        config: Its shape and training.
        device: Where to train.
        on_step: Called with each step's loss.

    Raises:
        EncoreError: A loss that is not finite.
    """
    prompt, margin = _tensor(prompt_PD).to(device), _tensor(margin_PR).to(device)
    with torch.random.fork_rng(devices=[prompt.device] if prompt.is_cuda else []):
        torch.manual_seed(config.seed)
        network = GatingNetwork(prompt.shape[1], head_ids, config)
        network.to(device)
        _set_scale(network, margin_PR.mean(axis=1))
        _take_steps(network, prompt, margin, on_step)
    network.cpu()
    network.eval()
    _set_scale(network, (network.weights(prompt_PD) * margin_PR).sum(axis=1))
    return network


def _take_steps(
    network: GatingNetwork, prompt: Any, margin: Any, on_step: Callable[[float], object]
) -> None:
    config = network.config
    optimizer = torch.optim.AdamW(network.parameters(), weight_decay=config.weight_decay)
    [group] = optimizer.param_groups
    for step in range(1, config.num_steps + 1):
        fall = (1 + math.cos(math.pi * (step - 1) / config.num_steps)) / 2
        group["lr"] = config.learning_rate * fall
        # The pairs of a step are a function of seed and step alone.
        generator = np.random.default_rng([config.seed, step])
        size = min(config.batch_pairs, len(prompt))
        rows = generator.choice(len(prompt), size=size, replace=False)
        rows_B = torch.from_numpy(rows).to(prompt.device)
        optimizer.zero_grad()
        gated_B = (network(prompt[rows_B]) * margin[rows_B]).sum(dim=-1)
        loss = F.softplus(-network.log_scale.exp() * gated_B).mean()
        found = float(loss.detach())
        if not math.isfinite(found):
            raise EncoreError(
                f"gate: the loss is {found} at step {step}; expected a finite number: check the "
                "prompts' states and the scores, or lower the learning rate"
            )
        loss.backward()
        optimizer.step()
        on_step(found)


class _Description(BaseModel):
    """What `gate.json` says."""

    config: GateConfig
    head_ids: tuple[str, ...]
    num_inputs: int


def save_gate(folder: Path, gate: GatingNetwork) -> None:
    """Write a gate's weights, then its description, each whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: tensor.contiguous() for name, tensor in gate.state_dict().items()}
    with atomic_path(folder / WEIGHTS_FILE) as temporary:
        save_file(weights, temporary)
    about = _Description(config=gate.config, head_ids=gate.head_ids, num_inputs=gate.num_inputs)
    write_json(folder / GATE_FILE, about)


def load_gate(folder: Path, *, head_ids: Sequence[str]) -> GatingNetwork:
    """Read a gate back, in evaluation mode on the CPU.

    Args:
        folder: Where `save_gate` wrote it.
        head_ids: The heads of the model it is to be used with.

    Raises:
        InputError: Missing or damaged files; a gate of other heads.
    """
    try:
        about = _Description.model_validate_json((folder / GATE_FILE).read_bytes())
        gate = GatingNetwork(about.num_inputs, about.head_ids, about.config)
        gate.load_state_dict(load_file(folder / WEIGHTS_FILE))
    except (OSError, ValueError, SafetensorError, RuntimeError) as error:
        reason = " ".join(str(error).split("\n")[:3])
        raise InputError(
            f"gate {folder}: no {GATE_FILE} and {WEIGHTS_FILE} of a gate ({reason}); train it again"
        ) from error
    if tuple(head_ids) != gate.head_ids:
        raise InputError(
            f"gate {folder}: it weighs {len(gate.head_ids)} heads ({', '.join(gate.head_ids)}), "
            f"the model has {len(head_ids)} ({', '.join(head_ids)}); train a gate for this model"
        )
    gate.eval()
    return gate


def _set_scale(network: GatingNetwork, margin_P: NDArray[Any]) -> None:
    """Set the scale to the optimum for these margins of a weighted sum."""
    if not np.isfinite(margin_P).all():
        return  # the first step says what is wrong
    smallest = _MIN_STANDARD_SCALE / (float(np.sqrt(np.square(margin_P).mean())) or 1.0)
    [scale], _ = best_constant_weights(margin_P[:, None])
    with torch.no_grad():
        network.log_scale.fill_(math.log(max(scale, smallest)))


def _tensor(array: NDArray[Any]) -> Any:
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32))
