"""Steps that do not depend on how they are cut up, on history, or on luck."""

from __future__ import annotations

import copy
import dataclasses
import math

import pytest
import torch

from encore.model.backbone_shape import find_shape, flops_per_token, useful_flops
from encore.training.batches import shuffle_pairs
from encore.training.evaluation import TrainingDivergedError
from encore.training.optimizers import make_optimizer
from encore.training.training_config import TrainingConfig
from encore.training.training_loop import learning_rate_at
from tests.training.tiny_training import (
    OneOf,
    WatchedOptimizer,
    random_examples,
    tiny_bert,
    tiny_llama,
    train,
)

RULES = ("honesty", "privacy", "calm")
LAYOUTS = ("packed", "prefix-shared", "sorted", "single")
both_objectives = pytest.mark.parametrize("objective", ["multi-head", "bradley-terry"])


def examples_for(objective: str, num_pairs: int):
    if objective == "bradley-terry":
        return random_examples(num_pairs)
    return random_examples(num_pairs, head_ids=RULES, missing_share=0.4)


@pytest.mark.parametrize("layout", LAYOUTS)
@both_objectives
def test_batch_8_at_once_equals_8_batches_of_1_in_loss_and_gradients(objective, layout):
    examples = examples_for(objective, 8)

    def step(tokens_per_microbatch, layout):
        config = TrainingConfig(
            objective=objective,
            batch_pairs=8,
            tokens_per_microbatch=tokens_per_microbatch,
            layout=layout,
        )
        taken, optimizer = train(tiny_llama(examples.head_ids), examples, config)
        return taken.steps[0].loss, optimizer.gradients[0], optimizer.num_forwards

    loss, gradients, num_forwards = step(10_000, "packed")
    assert num_forwards == 1
    scale = max(gradient.abs().max() for gradient in gradients.values())
    for tokens_per_microbatch in (10_000, 60, 1):
        cut_loss, cut_gradients, num_forwards = step(tokens_per_microbatch, layout)
        assert cut_loss == pytest.approx(loss, rel=1e-6)
        assert cut_gradients.keys() == gradients.keys()
        for name, gradient in gradients.items():
            assert (cut_gradients[name] - gradient).abs().max() <= 1e-5 * scale, name
    assert num_forwards >= 8


@both_objectives
def test_a_step_follows_from_its_number_alone_even_with_dropout(objective):
    """Whatever the process did before; at a negligible learning rate weights stay as they are."""
    examples = examples_for(objective, 20)
    how = {"objective": objective, "batch_pairs": 6, "tokens_per_microbatch": 60}
    config = TrainingConfig(**how, learning_rate=1e-12)
    losses = []
    for start_step in (0, 5):
        torch.manual_seed(start_step)
        model = tiny_bert(examples.head_ids, dropout=0.3)
        taken, _ = train(model, examples, config, start_step=start_step, num_steps=8)
        losses.append([record.loss for record in taken.steps[-3:]])
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_every_step_microbatch_and_process_draws_dropout_masks_of_its_own():
    """The same pair four times over, computed by two processes: no two scores are equal."""
    examples = random_examples(4)
    same = {"chosen": examples.chosen[:1] * 4, "rejected": examples.rejected[:1] * 4}
    examples = dataclasses.replace(examples, **same)
    scores: list[torch.Tensor] = []
    config = TrainingConfig(
        objective="bradley-terry", batch_pairs=4, tokens_per_microbatch=1, learning_rate=1e-12
    )
    for rank in (0, 1):
        model = tiny_bert(examples.head_ids, dropout=0.5)
        model.register_forward_hook(lambda _model, _inputs, score: scores.append(score.detach()))
        train(model, examples, config, num_steps=2, ranks=OneOf(rank))
    assert len(scores) == 2 * 2 * 2
    for place, score in enumerate(scores):
        assert not any(torch.equal(score, other) for other in scores[:place])


def test_the_seed_draws_the_dropout_masks():
    """One pair, so that the seed's order of pairs is the same for all seeds."""
    examples = random_examples(1)
    losses = []
    for seed in (0, 0, 1):
        config = TrainingConfig(objective="bradley-terry", batch_pairs=1, seed=seed)
        taken, _ = train(tiny_bert(examples.head_ids, dropout=0.5), examples, config)
        losses.append(taken.steps[0].loss)
    assert losses[0] == losses[1] != losses[2]


def test_the_optimizer_is_armed_for_the_last_microbatch_of_a_step_alone():
    examples = random_examples(8)
    config = TrainingConfig(
        objective="bradley-terry",
        batch_pairs=4,
        tokens_per_microbatch=1,
        learning_rate=0.5,
        warmup_steps=2,
    )
    _, optimizer = train(tiny_llama(examples.head_ids), examples, config, num_steps=2)
    # Four microbatches a step; armed after the fourth forward pass. Warm-up: 1/2, then the peak.
    expected = [("arm", 1, 0.25, 4), ("finish", 4), ("arm", 2, 0.5, 8), ("finish", 8)]
    assert optimizer.calls == expected


def test_a_loss_that_is_not_finite_stops_before_any_weight_changes_and_names_step_and_pairs():
    examples = random_examples(12, head_ids=RULES)
    config = TrainingConfig(batch_pairs=3, tokens_per_microbatch=1)
    bad = shuffle_pairs(12, batch_pairs=3, seed=config.seed, epoch=0)[2][1]  # in the third step
    examples.target_PSR[bad, 1, 1] = math.inf
    model = tiny_llama(examples.head_ids)
    optimizer = WatchedOptimizer(model)
    with pytest.raises(TrainingDivergedError) as caught:
        train(model, examples, config, optimizer=optimizer, num_steps=4)
    assert (caught.value.step, caught.value.pair_ids) == (3, (f"pair-{bad}",))
    assert f"the loss is inf at step 3 on pairs pair-{bad};" in str(caught.value)
    assert [call[0] for call in optimizer.calls] == ["arm", "finish"] * 2

    # The weights are those after two steps, to the bit, and no gradient is left over.
    again = tiny_llama(examples.head_ids)
    train(again, examples, config, num_steps=2)  # still warming up
    torch.testing.assert_close(model.state_dict(), again.state_dict(), rtol=0, atol=0)
    assert all(weight.grad is None for weight in model.parameters())


def test_a_gradient_that_is_not_finite_names_step_and_pairs():
    examples = random_examples(2)
    model = tiny_llama(examples.head_ids)
    # A finite loss whose gradient overflows on its way back.
    model.heads.weight.register_hook(lambda gradient: gradient * math.inf)
    optimizer = make_optimizer(model, TrainingConfig())
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(TrainingDivergedError) as caught:
        train(model, examples, TrainingConfig(objective="bradley-terry"), optimizer=optimizer)
    assert "the gradient of heads.weight is not finite at step 1" in str(caught.value)
    assert sorted(caught.value.pair_ids) == ["pair-0", "pair-1"]
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)


@pytest.mark.parametrize("layout", ["prefix-shared", "sorted"])
def test_a_step_counts_real_and_computed_tokens(layout):
    examples = random_examples(6)
    config = TrainingConfig(objective="bradley-terry", batch_pairs=6, layout=layout)
    record = train(tiny_llama(examples.head_ids), examples, config)[0].steps[0]
    assert record.num_tokens == examples.length_P.sum()
    assert (record.num_computed < record.num_tokens) == (layout == "prefix-shared")
    assert (record.num_pairs, record.epoch) == (6, 1.0)
    assert record.mfu is None  # a CPU's peak is not known


@pytest.mark.parametrize(
    ("num_steps", "warmup_steps", "expected"),
    [
        # Two steps up to the peak, then from (6 - 3 + 1) / (6 - 2) down by quarters.
        (6, 2, [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]),
        (4, 0, [1.0, 0.75, 0.5, 0.25]),
        (2, 4, [0.25, 0.5]),
    ],
)
def test_linear_warm_up_then_linear_decay(num_steps, warmup_steps, expected):
    config = TrainingConfig(learning_rate=1.0, warmup_steps=warmup_steps)
    steps = range(1, num_steps + 1)
    rates = [learning_rate_at(step, config=config, num_steps=num_steps) for step in steps]
    assert rates == expected


def test_padding_is_no_work_and_a_shared_prompt_is_work_once():
    shape = find_shape("minilm")
    # All sequences have 128 tokens, so the average token is in a sequence of 128.
    work = 1280 * flops_per_token(shape, sequence_length=128)
    for num_computed, expected in ((1280, work), (2000, work), (640, work / 2)):
        assert useful_flops(shape, [128] * 10, num_computed=num_computed) == expected
    # In sequences of 100 and 300 an average token sees (100² + 300²) / 400 = 250.
    expected = 400 * flops_per_token(shape, sequence_length=250)
    assert useful_flops(shape, [100, 300], num_computed=400) == expected
