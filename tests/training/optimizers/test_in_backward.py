"""Updates in the backward pass are those after it, gradients are freed, runs resume to the bit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from encore.errors import EncoreError, InputError
from encore.training.optimizers.adamw import PlainAdamW
from encore.training.optimizers.step_optimizer import (
    NonFiniteGradientError,
    StepOptimizer,
    trainable_parameters,
)
from encore.training.optimizers.stochastic import StochasticAdamW
from tests.training.optimizers.tiny import (
    SETTINGS,
    VOCABULARY,
    TinyModel,
    assert_same_bits,
    snapshot,
    train,
    weights,
)

TOKENS = torch.arange(VOCABULARY)[None]


def stochastic(model: nn.Module, **options: bool) -> StochasticAdamW:
    return StochasticAdamW(trainable_parameters(model), settings=SETTINGS, seed=5, **options)


def plain(model: nn.Module) -> PlainAdamW:
    return PlainAdamW(trainable_parameters(model), settings=SETTINGS)


@pytest.mark.parametrize("microbatches", [1, 3])
@pytest.mark.parametrize("checkpointing", [None, "non-reentrant"])
def test_in_the_backward_pass_and_after_it_are_the_same_to_the_bit(microbatches, checkpointing):
    results, norms = [], []
    for is_in_backward in (True, False):
        model = TinyModel()
        model.checkpointing = checkpointing
        optimizer = stochastic(model, is_in_backward=is_in_backward)
        norms.append(train(model, optimizer, steps=range(4), microbatches=microbatches))
        results.append(weights(model) | optimizer.state())
    assert_same_bits(*results)
    assert norms[0] == pytest.approx(norms[1], rel=1e-12)  # added up in another order


def test_gradients_are_gone_when_the_armed_backward_pass_ends():
    model = TinyModel()
    optimizer = stochastic(model)
    model(TOKENS).backward()
    assert model.layer.grad is not None, "not armed: gradients accumulate"
    optimizer.arm(step=0, learning_rate=1e-3)
    model(TOKENS).backward()
    assert all(parameter.grad is None for parameter in model.parameters())
    optimizer.finish()


def test_never_do_two_gradients_exist_at_once():
    """Seen from hooks that come after the optimizer's: no other parameter has one."""
    model = TinyModel()
    optimizer = stochastic(model)
    alive = []
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(
            lambda _: alive.append(sum(p.grad is not None for p in model.parameters()))
        )
    optimizer.arm(step=0, learning_rate=1e-3)
    model(TOKENS).backward()
    optimizer.finish()
    assert alive == [0, 0, 0]  # embedding, layer and head; the fourth is reached by no loss


def test_the_norm_is_that_of_the_whole_gradient():
    model, reference = TinyModel(), TinyModel()
    reference(TOKENS).backward()
    expected = sum(
        float(p.grad.double().square().sum()) for p in reference.parameters() if p.grad is not None
    )
    for optimizer in (stochastic(model), plain(model)):
        model.load_state_dict(reference.state_dict())
        optimizer.arm(step=0, learning_rate=1e-3)
        model(TOKENS).backward()
        assert optimizer.finish() == pytest.approx(expected**0.5, rel=1e-5)


def test_a_tied_parameter_is_one_parameter():
    model = TinyModel()
    optimizer = stochastic(model)
    names = {name.split("/")[0] for name in optimizer.state()}
    assert names == {"embedding", "layer", "unused", "head", "num_updates"}
    train(model, optimizer, steps=range(1))
    assert model.output is model.embedding


def test_a_parameter_no_loss_reaches_keeps_its_value():
    model = TinyModel()
    before = model.unused.detach().clone()
    train(model, stochastic(model), steps=range(2))
    assert torch.equal(model.unused, before)


def test_reentrant_checkpointing_is_refused_where_it_would_update_twice():
    model = TinyModel()
    model.checkpointing = "reentrant"
    optimizer = stochastic(model)
    optimizer.arm(step=0, learning_rate=1e-3)
    with pytest.raises(EncoreError, match=r"arrived twice .* use_reentrant=False"):
        model(TOKENS).backward()


def test_finish_without_arm_is_our_own_mistake():
    with pytest.raises(AssertionError, match="arm"):
        stochastic(TinyModel()).finish()


# --- not a number ---------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("make", [stochastic, plain])
def test_a_gradient_that_is_not_finite_is_named(make, value):
    model = TinyModel()
    optimizer = make(model)
    optimizer.arm(step=0, learning_rate=1e-3)
    (model(TOKENS) + (model.layer * value).sum()).backward()
    with pytest.raises(
        NonFiniteGradientError, match="gradient of layer: NaN or infinity"
    ) as caught:
        optimizer.finish()
    assert caught.value.names == ("layer",)
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize(
    "make", [plain, lambda model: stochastic(model, is_in_backward=False)], ids=["plain", "after"]
)
def test_after_the_backward_pass_nothing_is_spoilt_by_it(make):
    model = TinyModel()
    optimizer = make(model)
    before, state = weights(model), snapshot(optimizer.state())
    optimizer.arm(step=0, learning_rate=1e-3)
    (model(TOKENS) * float("nan")).backward()
    with pytest.raises(NonFiniteGradientError, match="embedding, layer, head"):
        optimizer.finish()
    assert_same_bits(before, weights(model))
    moments = {name: tensor for name, tensor in optimizer.state().items() if "moment" in name}
    assert_same_bits({name: state[name] for name in moments}, moments)


# --- state ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [stochastic, plain])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_resumed_run_is_the_undisturbed_one_to_the_bit(make, dtype, tmp_path: Path):
    undisturbed = TinyModel(dtype=dtype)
    optimizer = make(undisturbed)
    train(undisturbed, optimizer, steps=range(6))

    interrupted = TinyModel(dtype=dtype)
    first = make(interrupted)
    train(interrupted, first, steps=range(3))
    save_file(first.state(), tmp_path / "optimizer.safetensors")
    save_file(weights(interrupted), tmp_path / "weights.safetensors")

    resumed = TinyModel(dtype=dtype)
    resumed.load_state_dict(load_file(tmp_path / "weights.safetensors"), strict=False)
    second = make(resumed)
    second.load_state(load_file(tmp_path / "optimizer.safetensors"))
    train(resumed, second, steps=range(3, 6))
    assert_same_bits(weights(undisturbed) | optimizer.state(), weights(resumed) | second.state())


def test_the_state_of_another_model_is_refused():
    model = TinyModel()
    state = snapshot(stochastic(model).state())
    optimizer: StepOptimizer = stochastic(model)
    wrong = {
        "missing": state | {},
        "float32": state | {"layer/first_moment": state["layer/first_moment"].float()},
        "[9]": state | {"layer/first_moment": torch.zeros(9, dtype=torch.bfloat16)},
    }
    del wrong["missing"]["layer/first_moment"]
    for what, bad in wrong.items():
        with pytest.raises(InputError, match="optimizer state layer/first_moment") as caught:
            optimizer.load_state(bad)
        assert what in str(caught.value)
    with pytest.raises(InputError, match="optimizer state other: int64"):
        optimizer.load_state(state | {"other": torch.zeros(3, dtype=torch.int64)})


def test_a_model_without_trainable_parameters_is_refused():
    model = TinyModel().requires_grad_(False)
    with pytest.raises(InputError, match="TinyModel has no trainable parameter"):
        trainable_parameters(model)


def test_a_parameter_that_is_not_contiguous_is_refused():
    model = nn.Module()
    model.weight = nn.Parameter(torch.zeros(3, 4).T)
    with pytest.raises(InputError, match=r"weight of shape \(4, 3\) is not contiguous"):
        trainable_parameters(model)
