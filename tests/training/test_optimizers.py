"""Updates during and after the backward pass are equal, and gradients are freed at once."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from encore.core.errors import InputError
from encore.training.gradient_norms import NonFiniteGradientError
from encore.training.optimizers import (
    PlainAdamW,
    StepOptimizer,
    make_optimizer,
    restore_tensors,
    trainable_parameters,
)
from encore.training.stochastic_adamw import StochasticAdamW
from encore.training.training_options import TrainingConfig

CONFIG = TrainingConfig(weight_decay=0.1, seed=5)
VOCABULARY, WIDTH = 40, 24
TOKENS = torch.arange(VOCABULARY)[None]


class TinyModel(nn.Module):
    """A model with tied embeddings, a layer used twice, a float32 head, and an unused parameter."""

    def __init__(self, *, dtype: torch.dtype = torch.bfloat16) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)

        def random_weight(*shape: int) -> nn.Parameter:
            return nn.Parameter((torch.randn(shape, generator=generator) * 0.2).to(dtype))

        self.embedding = random_weight(VOCABULARY, WIDTH)
        self.output = self.embedding
        self.layer = random_weight(WIDTH, WIDTH)
        self.unused = random_weight(3)
        self.head = nn.Parameter(torch.randn(1, WIDTH, generator=generator))
        self.is_checkpointed = False

    def forward(self, token_ids: Tensor) -> Tensor:
        hidden = F.embedding(token_ids, self.embedding)
        for _ in range(2):
            hidden = self._run(lambda h: h + torch.tanh(F.linear(h, self.layer)), hidden)
        logits = self._run(lambda h: F.linear(h, self.output), hidden)
        score = F.linear(hidden.float(), self.head).square().mean()
        return logits.float().logsumexp(-1).mean() + score

    def _run(self, layer, hidden: Tensor) -> Tensor:
        if self.is_checkpointed:
            return checkpoint(layer, hidden, use_reentrant=False)
        return layer(hidden)


def stochastic(model: nn.Module, config: TrainingConfig = CONFIG, **options) -> StochasticAdamW:
    return StochasticAdamW(trainable_parameters(model), config, **options)


def plain(model: nn.Module) -> PlainAdamW:
    return PlainAdamW(trainable_parameters(model), CONFIG)


def train(model, optimizer: StepOptimizer, *, steps: range, microbatches: int = 2) -> list:
    """Take steps whose batches and rates follow from the step; return the gradient norms."""
    norms = []
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        for microbatch in range(microbatches):
            loss = model(torch.randint(0, VOCABULARY, (5, 7), generator=generator))
            if microbatch == microbatches - 1:
                optimizer.before_last_backward(step=step, learning_rate=1e-3 / (1 + step))
            loss.backward()
        norms.append(optimizer.finish())
    return norms


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def assert_same_bits(actual: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


def update(optimizer: StepOptimizer, weight: nn.Parameter, gradient: Tensor, *, rate: float = 1e-3):
    """Take one step with this gradient."""
    weight.grad = gradient.to(weight.dtype)
    optimizer.before_last_backward(step=0, learning_rate=rate)
    return optimizer.finish()


# --- in the backward pass -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("is_checkpointed", "clip_gradient", "microbatches"), [(False, 0.05, 1), (True, None, 3)]
)
def test_updates_during_and_after_the_backward_pass_in_any_chunks_have_the_same_bits(
    is_checkpointed, clip_gradient, microbatches
):
    config = CONFIG.model_copy(update={"clip_gradient": clip_gradient})
    results, norms = [], []
    for options in ({}, {"is_in_backward": False}, {"chunk_elements": 7}):
        model = TinyModel()
        model.is_checkpointed = is_checkpointed
        optimizer = stochastic(model, config, **options)
        norms.append(train(model, optimizer, steps=range(4), microbatches=microbatches))
        results.append(weights(model) | optimizer.state())
        assert_same_bits(results[0], results[-1])
        assert norms[-1] == pytest.approx(norms[0], rel=1e-12)  # summed in another order


def test_gradients_accumulate_until_the_last_pass_and_are_then_freed_one_by_one():
    """Hooks that run after those of the optimizer count the gradients that exist."""
    model = TinyModel()
    optimizer = stochastic(model)
    model(TOKENS).backward()
    assert model.layer.grad is not None, "before the last pass gradients accumulate"
    model.zero_grad()
    num_gradients = []
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(
            lambda _: num_gradients.append(sum(p.grad is not None for p in model.parameters()))
        )
    optimizer.before_last_backward(step=0, learning_rate=1e-3)
    model(TOKENS).backward()
    assert num_gradients == [0, 0, 0]  # embedding, layer and head; `unused` has no gradient
    before = model.unused.detach().clone()
    optimizer.finish()
    assert torch.equal(model.unused, before)


@pytest.mark.parametrize("optimizer", ["adamw", "adamw-stochastic"])
def test_a_gradient_is_clipped_by_its_own_norm(optimizer):
    """Norms 10 and 0.5, clipped at 1: each by its own norm, not by 10.0125, that of both."""
    model = nn.Module()
    model.large, model.small = nn.Parameter(torch.zeros(4)), nn.Parameter(torch.zeros(4))
    config = TrainingConfig(optimizer=optimizer, clip_gradient=1.0)
    built = make_optimizer(model, config)
    model.large.grad, model.small.grad = torch.full((4,), 5.0), torch.full((4,), 0.25)
    built.before_last_backward(step=0, learning_rate=1e-3)
    assert built.finish() == pytest.approx(10.0125, rel=1e-4)  # before clipping
    # After one step the first moment is 0.1 times the clipped gradient.
    moments = {
        name.split("/")[0]: float(tensor[0])
        for name, tensor in built.state().items()
        if name.endswith(("exp_avg", "first_moment"))
    }
    assert moments == pytest.approx({"large": 0.05, "small": 0.025}, rel=1e-4)


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "value"),
    [
        (stochastic, float("nan")),
        (plain, float("inf")),
        (lambda model: stochastic(model, is_in_backward=False), float("nan")),
    ],
)
def test_a_gradient_that_is_not_finite_is_named_and_changes_nothing_after_the_pass(make, value):
    model = TinyModel()
    optimizer = make(model)
    before = weights(model)
    optimizer.before_last_backward(step=0, learning_rate=1e-3)
    (model(TOKENS) + (model.layer * value).sum()).backward()
    with pytest.raises(NonFiniteGradientError, match="gradient of layer: NaN or inf") as caught:
        optimizer.finish()
    assert caught.value.names == ("layer",)
    assert all(parameter.grad is None for parameter in model.parameters())
    if make is not stochastic:
        assert_same_bits(weights(model), before)
        state = optimizer.state().items()
        assert not any(t.any() for name, t in state if not name.endswith(("num_updates", "step")))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"layer/first_moment": None}, "state layer/first_moment: missing in the checkpoint"),
        ({"layer/first_moment": torch.zeros(3)}, r"state layer/first_moment: float32\[3\]"),
        ({"other": torch.zeros(3)}, r"state other: float32\[3\] in the checkpoint, miss"),
    ],
)
def test_the_state_of_another_model_is_refused(changed, message):
    state = stochastic(TinyModel()).state()
    checkpoint = {name: t for name, t in (state | changed).items() if t is not None}
    with pytest.raises(InputError, match=message):
        restore_tensors(state, checkpoint, label="state")


# --- choice and constants of the optimizer --------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "name", "expected"),
    [
        (torch.bfloat16, "auto", StochasticAdamW),
        (torch.float32, "auto", PlainAdamW),
        (torch.bfloat16, "adamw", PlainAdamW),
    ],
)
def test_the_optimizer_follows_from_the_number_format_unless_the_config_names_it(
    dtype, name, expected
):
    model = TinyModel(dtype=dtype)
    assert type(make_optimizer(model, TrainingConfig(optimizer=name))) is expected


@pytest.mark.parametrize("name", ["adamw", "adamw-stochastic"])
def test_the_constants_reach_the_update(name):
    # The first step of AdamW is w (1 - lr decay) - lr g / (|g| + epsilon), whatever the betas:
    # 1 (1 - 0.1 * 0.5) - 0.1 * 2 / (2 + 2) = 0.9. Before the second, with g = 0 and betas
    # (0.5, 0.75), the unbiased moments are 0.5 / 0.75 and 0.75 / 0.4375 = 1.3093²:
    # 0.9 * 0.95 - 0.1 * (2/3) / (1.3093 + 2) = 0.83486.
    constants = {"weight_decay": 0.5, "adam_betas": (0.5, 0.75), "adam_epsilon": 2.0}
    model = nn.Module()
    model.weight = nn.Parameter(torch.ones(1))
    optimizer = make_optimizer(model, TrainingConfig(optimizer=name, **constants))
    for gradient, expected in ((2.0, 0.9), (0.0, 0.83486)):
        update(optimizer, model.weight, torch.tensor([gradient]), rate=0.1)
        assert float(model.weight.detach()) == pytest.approx(expected, abs=1e-5)


def test_one_update_rounds_weight_and_both_moments_with_different_bits():
    # With betas (0.9, 0.999) the first moments are 0.1 g and 0.001 g², and the step is lr sign(g).
    weight = nn.Parameter(torch.full((2**15,), 1.0, dtype=torch.bfloat16))
    optimizer = StochasticAdamW({"weight": weight}, TrainingConfig())
    update(optimizer, weight, torch.full((2**15,), 3.0))
    # 1 - 0.001 lies between 1 - 2^-8 = 0.99609 and 1; 0.3 and 0.009 between their neighbours.
    assert weight.detach().double().unique().tolist() == [1 - 2**-8, 1.0]
    state = optimizer.state()
    is_up = []
    for tensor, expected in (
        (weight.detach(), 0.999),
        (state["weight/first_moment"], 0.3),
        (state["weight/second_moment"], 0.009),
    ):
        # Neighbours are at most 2^-8 apart, relatively; five standard errors of the mean.
        assert float(tensor.double().mean()) == pytest.approx(expected, rel=5 * 2**-9 / 2**7.5)
        is_up.append((tensor > tensor.min()).double())
    # With the same bits, two of them would be rounded up together: correlations near 1. The
    # correlation of 32,768 independent pairs has a standard error of 0.0055.
    correlations = torch.corrcoef(torch.stack(is_up))
    assert float((correlations - torch.eye(3)).abs().max()) < 5 * 0.0055


@pytest.mark.device
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # of torch's compiler
def test_a_gpus_compiled_update_is_the_same_to_rounding():
    # Compiled arithmetic may fuse a multiplication with an addition, so a few numbers are rounded
    # the other way. The random bits are the same.
    results = []
    for device in ("cpu", "cuda"):
        generator = torch.Generator().manual_seed(0)
        values = [torch.randn(5_000, generator=generator).bfloat16() for _ in range(4)]
        weight = nn.Parameter(values[0].to(device))
        optimizer = StochasticAdamW({"weight": weight}, CONFIG, chunk_elements=2_048)
        for gradient in values[1:]:
            update(optimizer, weight, gradient.to(device))
        results.append(weight.detach().float().cpu())
    assert float((results[0] != results[1]).double().mean()) < 0.01
    torch.testing.assert_close(*results, rtol=2**-7, atol=1e-6)
