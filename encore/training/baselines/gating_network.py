"""The gating network of the MoE baseline: it reads a prompt and weighs the heads for it.

Backbone and heads do not change. The paper names "a three-layer MLP" and cites ArmoRM, whose
published settings are the defaults here. A gate is not linear in the heads, so it cannot be folded
into one head.

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
from encore.training.training_options import GateConfig

GATE_FILE = "gate.json"
WEIGHTS_FILE = "gate.safetensors"
_ROWS_PER_BLOCK = 8192
#: Times that a training looks at the pairs that decide when it stops, and how many of these looks
#: without a smaller loss end it.
_NUM_LOOKS, _PATIENCE = 50, 10
#: Bounds of the scale times the root mean square of the margins. Without them the scale would be
#: infinite if all pairs are ranked as people did, and 0 if most are ranked the other way.
_MIN_STANDARD_SCALE, _MAX_STANDARD_SCALE = 0.1, 1e3
#: A coordinate of the states that hardly varies is not enlarged.
_MIN_STANDARD_DEVIATION = 1e-6

_Floats = NDArray[np.float32]


class GatingNetwork(nn.Module):  # type: ignore[misc]  # mypy sees torch as Any here
    """A network of hidden layers with ReLU and dropout, and a softmax over heads.

    Args:
        num_inputs: D, the width of the prompt's state.
        head_ids: Ids of the weighed heads, in order.
        config: Layers, temperature and training settings.
    """

    def __init__(self, num_inputs: int, head_ids: Sequence[str], config: GateConfig) -> None:
        super().__init__()
        self.num_inputs, self.head_ids, self.config = num_inputs, tuple(head_ids), config
        sizes = [num_inputs, *[config.hidden_size] * config.num_hidden_layers]
        layers: list[Any] = []
        for size, next_size in pairwise(sizes):
            layers += [nn.Linear(size, next_size), nn.ReLU(), nn.Dropout(config.dropout)]
        self.layers = nn.Sequential(*layers, nn.Linear(sizes[-1], len(self.head_ids)))
        # Means and standard deviations of the training prompts: some coordinates of hidden states
        # are a hundred times as large as others, and would be all that the network sees.
        self.register_buffer("mean_D", torch.zeros(num_inputs))
        self.register_buffer("sd_D", torch.ones(num_inputs))
        #: Step after which the gate was taken; None if all steps count.
        self.best_step: int | None = None
        # Heads that predict ratings have margins of a few hundredths, and weights that sum to 1
        # cannot enlarge them. At scale 1 the loss is nearly linear, and its optimum is one-hot.
        self.log_scale = nn.Parameter(torch.zeros(()))

    def forward(self, prompt_BD: Any) -> Any:
        """Return the weights of the heads, [B, D] -> [B, R]."""
        standard_BD = (prompt_BD - self.mean_D) / self.sd_D
        return F.softmax(self.layers(standard_BD) / self.config.temperature, dim=-1)

    def loss(self, prompt_BD: Any, margin_BR: Any) -> Any:
        """Return the mean Bradley-Terry loss of the gated margins, [B, D] and [B, R] -> []."""
        gated_B = (self(prompt_BD) * margin_BR).sum(dim=-1)
        return F.softplus(-self.log_scale.exp() * gated_B).mean()

    def weights(self, prompt_PD: _Floats) -> _Floats:
        """Return the weight of every head for each prompt, shape [P, R]; rows sum to 1."""
        with torch.inference_mode():
            blocks = [self(rows) for rows in _tensor(prompt_PD).split(_ROWS_PER_BLOCK)]
            return np.asarray(torch.cat(blocks).numpy())

    def mean_loss(self, prompt_PD: _Floats, margin_PR: _Floats) -> float:
        """Return the mean Bradley-Terry loss of the gated margins (chosen minus rejected)."""
        gated_P = (self.weights(prompt_PD) * margin_PR).sum(axis=1, dtype=np.float64)
        return float(np.logaddexp(0, -math.exp(self.log_scale.detach()) * gated_P).mean())


def best_constant_weights(margin_PR: NDArray[Any]) -> tuple[NDArray[np.float64], float]:
    """Return the best weights that do not depend on the prompt, times their scale, and their loss.

    Weights on the simplex times a scale are any vector without negative entries. So this is a
    logistic regression with bounds: it is convex and has one optimum.

    Args:
        margin_PR: Margins score(chosen) - score(rejected) of the pairs under each head, [P, R].
    """
    margin_PR = np.asarray(margin_PR, dtype=np.float64)
    spread = float(np.sqrt(np.square(margin_PR).mean())) or 1.0
    num_heads = margin_PR.shape[1]
    weight_R, loss = minimise_logistic(  # without a bound: infinite for separable pairs
        margin_PR / spread, np.full(num_heads, 1 / num_heads), max_weight=_MAX_STANDARD_SCALE
    )
    return weight_R / spread, loss


def fit_gate(
    prompt_PD: _Floats,
    margin_PR: _Floats,
    *,
    head_ids: Sequence[str],
    config: GateConfig,
    is_stop_P: NDArray[np.bool_] | None = None,
    device: str = "cpu",
    on_step: Callable[[float], object] = lambda _loss: None,
) -> GatingNetwork:
    """Train a gate on the margins of pairs; return it on the CPU, in evaluation mode.

    The loss is computed from the gated margins times a scale, which changes no ranking. The scale
    starts at its optimum for uniform weights, is trained as a logarithm, and ends at its optimum
    for the trained weights. On the same CPU, the same inputs and seed give the same gate to the
    last bit.

    Args:
        prompt_PD: States at the beginning of the assistant's turn, [P, D]; see `prompt_tokens`.
        margin_PR: Head scores of the chosen responses minus those of the rejected ones, [P, R].
        head_ids: Ids of the R heads.
        config: Layers, temperature and training settings.
        is_stop_P: Pairs that are not learnt from. Of all looks at them the gate with the smallest
            loss is returned, with its scale at the optimum for them; None learns from all pairs to
            the last step.
        device: Device of the training.
        on_step: Function that receives each step's loss.

    Raises:
        EncoreError: A loss is not finite.
    """
    if is_stop_P is None:
        is_stop_P = np.zeros(len(prompt_PD), dtype=bool)
    learnt_prompt_PD, learnt_margin_PR = prompt_PD[~is_stop_P], margin_PR[~is_stop_P]
    prompt, margin = _tensor(learnt_prompt_PD).to(device), _tensor(learnt_margin_PR).to(device)
    with torch.random.fork_rng(devices=[prompt.device] if prompt.is_cuda else []):
        torch.manual_seed(config.seed)
        network = GatingNetwork(prompt.shape[1], head_ids, config)
        network.mean_D.copy_(prompt.mean(dim=0))
        network.sd_D.copy_(prompt.std(dim=0, correction=0).clamp_min(_MIN_STANDARD_DEVIATION))
        network.to(device)
        _set_scale(network, learnt_margin_PR.mean(axis=1))
        stop_pairs = [_tensor(array[is_stop_P]).to(device) for array in (prompt_PD, margin_PR)]
        _take_steps(network, prompt, margin, stop_pairs if is_stop_P.any() else None, on_step)
    network.cpu()
    network.eval()
    scale_P = is_stop_P if is_stop_P.any() else slice(None)
    _set_scale(network, (network.weights(prompt_PD[scale_P]) * margin_PR[scale_P]).sum(axis=1))
    return network


def _take_steps(
    network: GatingNetwork,
    prompt: Any,
    margin: Any,
    stop_pairs: Sequence[Any] | None,
    on_step: Callable[[float], object],
) -> None:
    """Train the network by AdamW with a learning rate that falls as a cosine.

    With ``stop_pairs`` (states and margins that are not learnt from) the network ends as it was
    when their loss was smallest, be it before the first step.
    """
    config = network.config
    best = None if stop_pairs is None else _BestState(network, *stop_pairs)
    look_every = math.ceil(config.num_steps / _NUM_LOOKS)
    optimizer = torch.optim.AdamW(network.parameters(), weight_decay=config.weight_decay)
    [group] = optimizer.param_groups
    for step in range(1, config.num_steps + 1):
        decay = (1 + math.cos(math.pi * (step - 1) / config.num_steps)) / 2
        group["lr"] = config.learning_rate * decay
        # The pairs of a step depend only on seed and step.
        generator = np.random.default_rng([config.seed, step])
        size = min(config.batch_pairs, len(prompt))
        rows = generator.choice(len(prompt), size=size, replace=False)
        rows_B = torch.from_numpy(rows).to(prompt.device)
        optimizer.zero_grad()
        loss = network.loss(prompt[rows_B], margin[rows_B])
        loss_value = float(loss.detach())
        if not math.isfinite(loss_value):
            raise EncoreError(
                f"gate: the loss is {loss_value} at step {step}; expected a finite number: check "
                "the prompts' states and the scores, or lower the learning rate"
            )
        loss.backward()
        optimizer.step()
        on_step(loss_value)
        if best is not None and step % look_every == 0 and not best.look(step):
            break
    if best is not None:
        network.load_state_dict(best.state)
        network.best_step = best.step


class _BestState:
    """The state of a network when the loss of the pairs that decide was smallest."""

    def __init__(self, network: GatingNetwork, prompt_BD: Any, margin_BR: Any) -> None:
        self._network, self._pairs = network, (prompt_BD, margin_BR)
        self._num_worse, self._loss = 0, math.inf
        self.step, self.state = 0, dict[str, Any]()
        self.look(0)

    def look(self, step: int) -> bool:
        """Compute the loss after a step. Return False if it has not fallen for too long."""
        self._network.eval()
        with torch.inference_mode():
            loss = float(self._network.loss(*self._pairs))
        self._network.train()
        self._num_worse += 1
        if loss < self._loss:
            state = self._network.state_dict().items()
            self.state = {name: tensor.clone() for name, tensor in state}
            self._loss, self.step, self._num_worse = loss, step, 0
        return self._num_worse < _PATIENCE


class _Description(BaseModel):
    """The content of `gate.json`."""

    config: GateConfig
    head_ids: tuple[str, ...]
    num_inputs: int


def save_gate(folder: Path, gate: GatingNetwork) -> None:
    """Write a gate's weights, then its description; each file is written completely or not."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: tensor.contiguous() for name, tensor in gate.state_dict().items()}
    with atomic_path(folder / WEIGHTS_FILE) as temporary:
        save_file(weights, temporary)
    description = _Description(
        config=gate.config, head_ids=gate.head_ids, num_inputs=gate.num_inputs
    )
    write_json(folder / GATE_FILE, description)


def load_gate(folder: Path, *, head_ids: Sequence[str]) -> GatingNetwork:
    """Load a gate in evaluation mode on the CPU.

    Args:
        folder: Folder that `save_gate` wrote.
        head_ids: Ids of the heads of the model that it shall weigh.

    Raises:
        InputError: Files are missing or damaged, or the gate weighs other heads.
    """
    try:
        description = _Description.model_validate_json((folder / GATE_FILE).read_bytes())
        gate = GatingNetwork(description.num_inputs, description.head_ids, description.config)
        standard = {"mean_D": gate.mean_D, "sd_D": gate.sd_D}  # a gate of version 0.1 has none
        gate.load_state_dict(standard | load_file(folder / WEIGHTS_FILE))
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
    """Set the scale to its optimum for these margins of a weighted sum of heads."""
    if not np.isfinite(margin_P).all():
        return  # the first step reports the error
    smallest = _MIN_STANDARD_SCALE / (float(np.sqrt(np.square(margin_P).mean())) or 1.0)
    [scale], _ = best_constant_weights(margin_P[:, None])
    with torch.no_grad():
        network.log_scale.fill_(math.log(max(scale, smallest)))


def _tensor(array: NDArray[Any]) -> Any:
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32))
