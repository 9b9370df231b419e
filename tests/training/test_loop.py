"""A step does not depend on its microbatches, on earlier steps, or on random state."""

from __future__ import annotations

import copy
import dataclasses
import math
from itertools import combinations

import pytest
import torch

from encore.model.backbone_shape import find_shape, flops_per_token, useful_flops
from encore.training.batches import shuffle_pairs
from encore.training.evaluation import TrainingDivergedError
from encore.training.optimizers import PlainAdamW, make_optimizer, trainable_parameters
from encore.training.training_loop import learning_rate_at, run_steps
from encore.training.training_options import TrainingConfig
from tests.worlds.models import HEAD_IDS, LAYOUTS
from tests.worlds.trainings import UnconnectedRanks, model_of, random_examples, training_of

both_objectives = pytest.mark.parametrize("objective", ["multi-head", "bradley-terry"])


class RecordingOptimizer(PlainAdamW):
    """AdamW that records every call and the gradients of each step."""

    def __init__(self, model, config) -> None:
        super().__init__(trainable_parameters(model), config)
        self.model = model
        self.calls: list[tuple[object, ...]] = []
        self.gradients: list[dict[str, torch.Tensor]] = []
        self.num_forwards = 0
        model.register_forward_hook(self._count)

    def _count(self, *_: object) -> None:
        self.num_forwards += self.model.training

    def before_last_backward(self, *, step, learning_rate) -> None:
        self.calls.append(("before_last_backward", step, learning_rate, self.num_forwards))
        super().before_last_backward(step=step, learning_rate=learning_rate)

    def finish(self) -> float:
        self.calls.append(("finish", self.num_forwards))
        named = self.model.named_parameters()
        self.gradients.append({name: p.grad.clone() for name, p in named if p.grad is not None})
        return super().finish()


def train(model, examples, config, *, optimizer=None, start_step=0, num_steps=1, ranks=None):
    """Take steps without evaluations; return their records and the optimizer."""
    records = []
    config = config.model_copy(update={"max_steps": num_steps, "epochs": 100})
    optimizer = optimizer or RecordingOptimizer(model, config)
    run_steps(
        training_of(model, examples, config, ranks=ranks),
        optimizer,
        start_step=start_step,
        on_record=records.append,
        save=lambda *_: None,
    )
    return records, optimizer


def examples_for(objective: str, num_pairs: int):
    if objective == "bradley-terry":
        return random_examples(num_pairs)
    return random_examples(num_pairs, head_ids=HEAD_IDS, missing_share=0.4)


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
        records, optimizer = train(model_of(examples), examples, config)
        return records[0].loss, optimizer.gradients[0], optimizer.num_forwards

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
def test_a_step_depends_only_on_its_number_even_with_dropout(objective):
    """Two runs start at different steps. At a negligible learning rate no weight changes."""
    examples = examples_for(objective, 20)
    settings = {"objective": objective, "batch_pairs": 6, "tokens_per_microbatch": 60}
    config = TrainingConfig(**settings, learning_rate=1e-12)
    losses = []
    for start_step in (0, 5):
        torch.manual_seed(start_step)
        model = model_of(examples, "bert", dropout=0.3)
        records, _ = train(model, examples, config, start_step=start_step, num_steps=8)
        losses.append([record.loss for record in records[-3:]])
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_every_step_microbatch_and_process_draws_dropout_masks_of_its_own():
    """The same pair four times, in two processes and two steps: no two scores are equal."""
    examples = random_examples(4)
    same = {"chosen": examples.chosen[:1] * 4, "rejected": examples.rejected[:1] * 4}
    examples = dataclasses.replace(examples, **same)
    scores: list[torch.Tensor] = []
    config = TrainingConfig(
        objective="bradley-terry", batch_pairs=4, tokens_per_microbatch=1, learning_rate=1e-12
    )
    for rank in (0, 1):
        model = model_of(examples, "bert", dropout=0.5)
        model.register_forward_hook(lambda _model, _inputs, score: scores.append(score.detach()))
        train(model, examples, config, num_steps=2, ranks=UnconnectedRanks(rank))
    assert len(scores) == 2 * 2 * 2
    for first, second in combinations(scores, 2):
        assert not torch.equal(first, second)


def test_the_seed_draws_the_dropout_masks():
    """With one pair, the order of pairs is the same for all seeds."""
    examples = random_examples(1)
    losses = []
    for seed in (0, 0, 1):
        config = TrainingConfig(objective="bradley-terry", batch_pairs=1, seed=seed)
        records, _ = train(model_of(examples, "bert", dropout=0.5), examples, config)
        losses.append(records[0].loss)
    assert losses[0] == losses[1] != losses[2]


def test_the_optimizer_is_prepared_before_the_last_backward_pass_of_a_step():
    examples = random_examples(8)
    config = TrainingConfig(
        objective="bradley-terry",
        batch_pairs=4,
        tokens_per_microbatch=1,
        learning_rate=0.5,
        warmup_steps=2,
    )
    _, optimizer = train(model_of(examples), examples, config, num_steps=2)
    # Four microbatches a step: prepared after the fourth forward pass. Warm-up: 1/2, then the peak.
    assert optimizer.calls == [
        ("before_last_backward", 1, 0.25, 4),
        ("finish", 4),
        ("before_last_backward", 2, 0.5, 8),
        ("finish", 8),
    ]


def test_a_loss_that_is_not_finite_changes_no_weight_and_names_step_and_pairs():
    examples = random_examples(12, head_ids=HEAD_IDS)
    config = TrainingConfig(batch_pairs=3, tokens_per_microbatch=1)
    bad = shuffle_pairs(12, batch_pairs=3, seed=config.seed, epoch=0)[2][1]  # in the third step
    examples.target_PSR[bad, 1, 1] = math.inf
    model = model_of(examples)
    optimizer = RecordingOptimizer(model, config)
    with pytest.raises(TrainingDivergedError) as caught:
        train(model, examples, config, optimizer=optimizer, num_steps=4)
    assert (caught.value.step, caught.value.pair_ids) == (3, (f"pair-{bad}",))
    assert f"the loss is inf at step 3 on pairs pair-{bad};" in str(caught.value)
    assert [call[0] for call in optimizer.calls] == ["before_last_backward", "finish"] * 2

    # The weights are those after two steps, to the last bit, and no gradient is left.
    expected = model_of(examples)
    train(expected, examples, config, num_steps=2)  # still in the warm-up
    torch.testing.assert_close(model.state_dict(), expected.state_dict(), rtol=0, atol=0)
    assert all(weight.grad is None for weight in model.parameters())


def test_a_gradient_that_is_not_finite_names_step_and_pairs():
    examples = random_examples(2)
    model = model_of(examples)
    # The loss is finite, but its gradient overflows.
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
    record = train(model_of(examples), examples, config)[0][0]
    assert record.num_tokens == examples.length_P.sum()
    assert (record.num_computed < record.num_tokens) == (layout == "prefix-shared")
    assert (record.num_pairs, record.epoch) == (6, 1.0)
    assert record.mfu is None  # the peak of a CPU is not known


@pytest.mark.parametrize(
    ("num_steps", "warmup_steps", "expected"),
    [
        # Two steps to the peak, then from (6 - 3 + 1) / (6 - 2) down by quarters.
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


def test_useful_operations_exclude_padding_and_count_a_shared_prompt_once():
    shape = find_shape("minilm")
    # All sequences have 128 tokens, so the average token is in a sequence of 128.
    flops = 1280 * flops_per_token(shape, sequence_length=128)
    for num_computed, expected in ((1280, flops), (2000, flops), (640, flops / 2)):
        assert useful_flops(shape, [128] * 10, num_computed=num_computed) == expected
    # In sequences of 100 and 300 tokens, the mean length for a token is (100² + 300²) / 400 = 250.
    expected = 400 * flops_per_token(shape, sequence_length=250)
    assert useful_flops(shape, [100, 300], num_computed=400) == expected
