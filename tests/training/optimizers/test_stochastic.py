"""Bfloat16 weights that move as float32 ones do."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from encore.errors import InputError
from encore.training.optimizers.step_optimizer import AdamSettings, StepOptimizer
from encore.training.optimizers.stochastic import StochasticAdamW
from tests.training.optimizers.tiny import SETTINGS, TinyModel, assert_same_bits, train, weights

NUM_WEIGHTS = 4096

# Torch's compiler imports a part of torch that torch itself deprecates.
quiet_compiler = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")


def drift(optimizer: StepOptimizer, weight: nn.Parameter, *, num_steps: int, learning_rate: float):
    """How far the mean moved under gradients that scatter around 1."""
    before = weight.detach().double().mean()
    generator = torch.Generator().manual_seed(1)
    gradients = 1 + 0.3 * torch.randn(16, NUM_WEIGHTS, generator=generator)
    for step in range(num_steps):
        weight.grad = gradients[step % 16].to(weight.dtype)
        optimizer.arm(step=step, learning_rate=learning_rate)
        optimizer.finish()
    return float(weight.detach().double().mean() - before)


class RoundToNearest:
    """Torch's AdamW on bfloat16 weights."""

    def __init__(self, weight: nn.Parameter) -> None:
        self.optimizer = torch.optim.AdamW([weight], weight_decay=0.0)

    def arm(self, *, step: int, learning_rate: float) -> None:
        self.optimizer.param_groups[0]["lr"] = learning_rate

    def finish(self) -> None:
        self.optimizer.step()


def three_drifts(*, num_steps: int, learning_rate: float) -> dict[str, float]:
    start = 0.02 * torch.randn(NUM_WEIGHTS, generator=torch.Generator().manual_seed(0))
    start = start.bfloat16()
    drifts = {}
    for name in ("float32", "stochastic", "nearest"):
        weight = nn.Parameter(start.float() if name == "float32" else start.clone())
        optimizer = (
            RoundToNearest(weight)
            if name == "nearest"
            else StochasticAdamW({"weight": weight}, settings=AdamSettings(), seed=0)
        )
        drifts[name] = drift(optimizer, weight, num_steps=num_steps, learning_rate=learning_rate)
    return drifts


# At |w| = 0.02 neighbouring bfloat16 numbers are 1.2e-4 apart: an update of 5e-6 or 1e-7 is less
# than half of that, so rounding to nearest loses it. Adam moves a weight by about the learning rate
# a step, together 0.01. The mean of 4,096 weights then has a standard error of about
# 1.2e-4 sqrt(num_steps lr / 1.2e-4) / 64 = 1.7e-5 from the rounding: 0.2 % of the drift.


def test_tiny_updates_add_up_as_in_float32():
    drifts = three_drifts(num_steps=2_000, learning_rate=5e-6)
    assert drifts["float32"] == pytest.approx(-0.01, rel=0.05)
    assert drifts["stochastic"] == pytest.approx(drifts["float32"], rel=0.01)
    # Only the few weights so near to zero that 5e-6 is no tiny update move a little.
    assert abs(drifts["nearest"]) < 0.15 * abs(drifts["float32"])


@pytest.mark.full
def test_a_hundred_thousand_tiny_updates_add_up_as_in_float32():
    drifts = three_drifts(num_steps=100_000, learning_rate=1e-7)
    assert drifts["float32"] == pytest.approx(-0.01, rel=0.05)
    assert drifts["stochastic"] == pytest.approx(drifts["float32"], rel=0.01)
    assert abs(drifts["nearest"]) < 0.01 * abs(drifts["float32"])


def test_float32_parameters_get_torchs_adamw():
    ours, theirs = TinyModel(dtype=torch.float32), TinyModel(dtype=torch.float32)
    optimizer = StochasticAdamW(dict(ours.named_parameters()), settings=SETTINGS, seed=0)
    reference = torch.optim.AdamW(theirs.parameters(), weight_decay=SETTINGS.weight_decay)

    class Torchs:
        def arm(self, *, step: int, learning_rate: float) -> None:
            reference.param_groups[0]["lr"] = learning_rate

        def finish(self) -> None:
            reference.step()
            reference.zero_grad()

    train(ours, optimizer, steps=range(6))
    train(theirs, Torchs(), steps=range(6))
    for name, weight in weights(ours).items():
        torch.testing.assert_close(weight, weights(theirs)[name], rtol=1e-5, atol=1e-7)


def test_one_update_rounds_what_float32_arithmetic_gives():
    # With betas (0.9, 0.999) the first moments are 0.1 g and 0.001 g², and the step is lr sign(g).
    weight = nn.Parameter(torch.full((2**15,), 1.0, dtype=torch.bfloat16))
    optimizer = StochasticAdamW({"weight": weight}, settings=AdamSettings(), seed=0)
    weight.grad = torch.full_like(weight, 3.0)
    optimizer.arm(step=0, learning_rate=1e-3)
    optimizer.finish()
    state = {name: tensor.double() for name, tensor in optimizer.state().items()}
    moved = weight.detach().double()
    # 1 - 0.001 lies between 1 - 2^-8 = 0.99609 and 1; 0.3 and 0.009 between their neighbours.
    assert moved.unique().tolist() == [1 - 2**-8, 1.0]
    for tensor, expected in (
        (moved, 0.999),
        (state["weight/first_moment"], 0.3),
        (state["weight/second_moment"], 0.009),
    ):
        # Neighbours are at most 2^-8 apart, relatively; five standard errors of the mean.
        assert float(tensor.mean()) == pytest.approx(expected, rel=5 * 2**-9 / 2**7.5)
        assert len(tensor.unique()) == 2


@pytest.mark.parametrize("chunk_elements", [7, 100, 576, 10_000])
def test_results_do_not_depend_on_the_pieces(chunk_elements: int):
    results = []
    for chunk in (None, chunk_elements):
        model = TinyModel()
        optimizer = StochasticAdamW(
            dict(model.named_parameters()), settings=SETTINGS, seed=0, chunk_elements=chunk
        )
        train(model, optimizer, steps=range(2))
        results.append(weights(model) | optimizer.state())
    assert_same_bits(*results)


def test_seeds_and_steps_change_the_rounding():
    results = []
    for seed, steps in ((0, range(3)), (1, range(3)), (0, range(3))):
        model = TinyModel()
        train(
            model,
            StochasticAdamW(dict(model.named_parameters()), settings=SETTINGS, seed=seed),
            steps=steps,
        )
        results.append(weights(model)["layer"])
    assert torch.equal(results[0], results[2])
    assert not torch.equal(results[0], results[1])


def test_half_precision_is_refused():
    weight = nn.Parameter(torch.zeros(3, dtype=torch.float16))
    with pytest.raises(InputError, match="weight is float16; expected bfloat16 or float32"):
        StochasticAdamW({"weight": weight}, settings=SETTINGS, seed=0)


@pytest.mark.full
@quiet_compiler
def test_the_compiled_update_is_the_same_to_rounding():
    # Compiled arithmetic may fuse a multiplication with an addition, so a number may lie on the
    # other side of the random threshold now and then; the bits themselves are the same.
    weight = torch.randn(5_000, generator=torch.Generator().manual_seed(0)).bfloat16()
    results = []
    for is_compiled in (False, True):
        parameter = nn.Parameter(weight.clone())
        optimizer = StochasticAdamW(
            {"weight": parameter},
            settings=SETTINGS,
            seed=0,
            chunk_elements=2_048,
            is_compiled=is_compiled,
        )
        for step in range(3):
            parameter.grad = torch.randn(
                5_000, generator=torch.Generator().manual_seed(step)
            ).bfloat16()
            optimizer.arm(step=step, learning_rate=1e-3)
            optimizer.finish()
        results.append(parameter.detach().float())
    assert float((results[0] != results[1]).double().mean()) < 0.01
    torch.testing.assert_close(*results, rtol=2**-7, atol=0.0)


@pytest.mark.device
@quiet_compiler
def test_a_gpu_trains_as_a_cpu_does():
    results = []
    for device in ("cpu", "cuda"):
        model = TinyModel().to(device)
        parameters = dict(model.named_parameters())
        optimizer = StochasticAdamW(parameters, settings=SETTINGS, seed=0)
        for parameter in parameters.values():
            generator = torch.Generator().manual_seed(parameter.numel())
            gradient = torch.randn(parameter.shape, generator=generator)
            parameter.grad = gradient.to(device, parameter.dtype)
        optimizer.arm(step=0, learning_rate=1e-3)
        optimizer.finish()
        results.append({name: weight.cpu() for name, weight in weights(model).items()})
    for name, weight in results[0].items():
        assert float((weight != results[1][name]).double().mean()) < 0.01, name
        torch.testing.assert_close(weight, results[1][name], rtol=2**-7, atol=1e-6)
