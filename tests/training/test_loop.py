"""Steps that do not depend on how they are cut up, on history, or on luck."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch

from encore.errors import InputError
from encore.training.batches import step_rows
from encore.training.config import TrainingConfig
from encore.training.evaluation import TrainingDivergedError
from encore.training.examples import TokenTable
from encore.training.loop import Steps, run_steps
from encore.training.losses import loss_sum, num_terms
from encore.training.metrics_log import EvaluationRecord, StepRecord
from encore.training.optimizers import make_optimizer
from encore.training.ranks import Ranks
from encore.training.splits import Split
from tests.training.tiny_training import (
    PAD,
    VOCABULARY,
    WatchedOptimizer,
    everything_trains,
    random_examples,
    tiny_bert,
    tiny_llama,
    train,
)

RULES = ("honesty", "privacy", "calm")
LAYOUTS = ("packed", "prefix-shared", "sorted", "single")


def examples_for(objective: str, num_pairs: int, **settings):
    if objective == "bradley-terry":
        return random_examples(num_pairs, **settings)
    return random_examples(num_pairs, head_ids=RULES, missing_share=0.4, **settings)


def weights_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return copy.deepcopy(dict(model.named_parameters()))


def assert_close(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    scale = max(gradient.abs().max() for gradient in expected.values())
    for name, gradient in expected.items():
        assert (found[name] - gradient).abs().max() <= 1e-5 * scale, name


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("objective", ["multi-head", "bradley-terry"])
def test_batch_8_at_once_equals_8_batches_of_1_in_loss_and_gradients(objective, layout):
    examples = examples_for(objective, 8)

    def step(tokens_per_microbatch, layout):
        model = tiny_llama(examples.head_ids)
        config = TrainingConfig(
            objective=objective,
            batch_pairs=8,
            tokens_per_microbatch=tokens_per_microbatch,
            layout=layout,
        )
        listener, optimizer = train(model, examples, config)
        return listener.steps[0].loss, optimizer.gradients[0], optimizer.num_forwards

    loss, gradients, num_forwards = step(10_000, "packed")
    assert num_forwards == 1
    for tokens_per_microbatch in (10_000, 60, 1):
        cut_loss, cut_gradients, num_forwards = step(tokens_per_microbatch, layout)
        assert cut_loss == pytest.approx(loss, rel=1e-6)
        assert_close(cut_gradients, gradients)
    assert num_forwards >= 8


@pytest.mark.parametrize("objective", ["multi-head", "bradley-terry"])
def test_the_loss_is_the_mean_over_the_step_as_a_plain_forward_pass_gives_it(objective):
    examples = examples_for(objective, 5)
    model = tiny_llama(examples.head_ids)
    scores, targets = [], []
    for pair in range(5):
        for table, target_PR in (
            (examples.chosen, examples.target_chosen_PR),
            (examples.rejected, examples.target_rejected_PR),
        ):
            ids = torch.from_numpy(table[pair].astype(np.int64))[None]
            with torch.no_grad():
                hidden = model.trunk(input_ids=ids, use_cache=False).last_hidden_state
            scores.append(model.heads(hidden[0, -1]))
            targets.append(torch.from_numpy(target_PR[pair]))
    target_NR = torch.stack(targets)
    total = loss_sum(torch.stack(scores), target_NR, objective=objective)
    expected = total.item() / num_terms(target_NR.numpy(), objective=objective)
    config = TrainingConfig(objective=objective, batch_pairs=5)
    listener, _ = train(model, examples, config)
    assert listener.steps[0].loss == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("layout", ["packed", "sorted"])
@pytest.mark.parametrize("objective", ["multi-head", "bradley-terry"])
def test_a_resumed_run_ends_bit_identical_even_with_dropout(objective, layout):
    examples = examples_for(objective, 20)
    config = TrainingConfig(
        objective=objective,
        batch_pairs=6,
        tokens_per_microbatch=60,
        layout=layout,
        epochs=2,
        learning_rate=1e-2,
    )
    undisturbed = tiny_bert(examples.head_ids, dropout=0.3)
    whole, _ = train(undisturbed, examples, config, num_steps=8)

    ended = tiny_bert(examples.head_ids, dropout=0.3)
    first, optimizer = train(ended, examples, config, num_steps=8, until_step=5)
    resumed = tiny_bert(examples.head_ids, dropout=0.3, seed=99)
    resumed.load_state_dict(ended.state_dict())
    continued = WatchedOptimizer(resumed)
    continued.adamw.load_state_dict(copy.deepcopy(optimizer.adamw.state_dict()))
    torch.manual_seed(12345)  # whatever the new process did before
    second, _ = train(resumed, examples, config, optimizer=continued, start_step=5, num_steps=8)

    losses = [record.loss for record in whole.steps]
    assert [record.loss for record in first.steps + second.steps] == losses
    for (name, weight), again in zip(
        undisturbed.named_parameters(), resumed.parameters(), strict=True
    ):
        assert torch.equal(weight, again), name


def test_dropout_differs_from_step_to_step_and_from_microbatch_to_microbatch():
    examples = random_examples(1)
    examples = examples.take(np.zeros(2, dtype=np.int64))  # the same pair twice
    model = tiny_bert(examples.head_ids, dropout=0.5)
    config = TrainingConfig(
        objective="bradley-terry", batch_pairs=2, tokens_per_microbatch=1, learning_rate=1e-12
    )
    scores: list[torch.Tensor] = []
    model.register_forward_hook(lambda _model, _inputs, score_NR: scores.append(score_NR.detach()))
    train(model, examples, config, num_steps=2)
    assert len(scores) == 4
    for first in range(4):
        for second in range(first):
            assert not torch.equal(scores[first], scores[second])


def test_processes_draw_dropout_masks_of_their_own(monkeypatch):
    """Both compute the same pair here; their masks, and so their scores, differ."""
    examples = random_examples(1).take(np.zeros(2, dtype=np.int64))
    config = TrainingConfig(objective="bradley-terry", batch_pairs=2, learning_rate=1e-12)
    scores = []
    for rank in (0, 1):
        model = tiny_bert(examples.head_ids, dropout=0.5)
        model.register_forward_hook(lambda _model, _inputs, score: scores.append(score.detach()))
        steps = Steps(
            model=model,
            examples=examples,
            split=everything_trains(examples),
            config=config,
            optimizer=WatchedOptimizer(model),
            pad_token_id=PAD,
            ranks=OneOfTwo(rank),
        )
        nothing = lambda *_: None  # noqa: E731
        run_steps(
            steps, start_step=0, num_steps=1, on_step=nothing, on_evaluation=nothing, save=nothing
        )
    assert scores[0].shape == scores[1].shape
    assert not torch.equal(*scores)


class OneOfTwo(Ranks):
    """One of two processes; sums are its own alone."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.rank, self.count = rank, 2

    def summed(self, tensor):
        return tensor


@pytest.mark.parametrize("objective", ["multi-head", "bradley-terry"])
def test_no_padding_token_outside_the_vocabulary_is_looked_up(objective):
    """A tokenizer may name a padding token that the model has no row for."""
    examples = examples_for(objective, 6)
    config = TrainingConfig(objective=objective, batch_pairs=6, layout="sorted")
    losses = []
    for pad_token_id in (PAD, VOCABULARY - 1):
        taken, _ = train(tiny_llama(examples.head_ids), examples, config, pad_token_id=pad_token_id)
        losses.append(taken.steps[0].loss)
    assert losses[0] == losses[1]  # nothing attends to padding, whichever token it is


def test_the_optimizer_is_armed_for_the_last_microbatch_of_a_step_alone():
    examples = random_examples(8)
    model = tiny_llama(examples.head_ids)
    config = TrainingConfig(
        objective="bradley-terry",
        batch_pairs=4,
        tokens_per_microbatch=1,
        learning_rate=0.5,
        warmup_steps=2,
    )
    _, optimizer = train(model, examples, config, num_steps=2)
    # Four microbatches a step; armed after the fourth forward pass. Warm-up: 1/2, then the peak.
    assert optimizer.calls == [
        ("arm", 1, 0.25, 4),
        ("finish", 4),
        ("arm", 2, 0.5, 8),
        ("finish", 8),
    ]


def test_a_loss_that_is_not_finite_stops_before_any_weight_changes_and_names_step_and_pairs():
    examples = random_examples(12, head_ids=RULES)
    config = TrainingConfig(batch_pairs=3, tokens_per_microbatch=1)
    bad = step_rows(12, batch_pairs=3, seed=config.seed, epoch=0)[2][1]  # in the third step
    examples.target_rejected_PR[bad, 1] = math.inf
    model = tiny_llama(examples.head_ids)
    optimizer = WatchedOptimizer(model)
    with pytest.raises(TrainingDivergedError) as caught:
        train(model, examples, config, optimizer=optimizer, num_steps=4)
    assert (caught.value.step, caught.value.pair_ids) == (3, (f"pair-{bad}",))
    assert f"the loss is inf at step 3 on pair pair-{bad};" in str(caught.value)
    assert [call[0] for call in optimizer.calls] == ["arm", "finish"] * 2

    # The weights are those after two steps, to the bit, and no gradient is left over.
    again = tiny_llama(examples.head_ids)
    train(again, examples, config, num_steps=4, until_step=2)
    for weight, expected in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(weight, expected)
        assert weight.grad is None


def test_a_gradient_that_is_not_finite_names_step_and_pairs():
    examples = random_examples(2)
    model = tiny_llama(examples.head_ids)
    # A finite loss whose gradient overflows on its way back.
    model.heads.weight.register_hook(lambda gradient: gradient * math.inf)
    optimizer = make_optimizer(model, TrainingConfig())
    before = weights_of(model)
    with pytest.raises(TrainingDivergedError) as caught:
        train(model, examples, TrainingConfig(objective="bradley-terry"), optimizer=optimizer)
    assert "the gradient of heads.weight is not finite at step 1" in str(caught.value)
    assert sorted(caught.value.pair_ids) == ["pair-0", "pair-1"]
    for name, weight in model.named_parameters():
        assert torch.equal(weight, before[name]), name


def test_evaluations_come_before_the_checkpoint_of_their_step_and_go_with_it():
    examples = random_examples(10)
    split = Split(train_rows=np.arange(8), evaluation_rows=np.arange(8, 10))
    model = tiny_llama(examples.head_ids)
    config = TrainingConfig(
        objective="bradley-terry", batch_pairs=2, evaluate_every=3, checkpoint_every=2
    )
    heard = train(model, examples, config, split=split, num_steps=4)[0].heard
    kinds = [type(record) for record in heard]
    step, evaluation, checkpoint = StepRecord, EvaluationRecord, tuple
    assert kinds == [step, step, checkpoint, step, evaluation, step, evaluation, checkpoint]
    assert heard[2] == (2, None)
    assert heard[-1] == (4, heard[-2])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_step_counts_real_and_computed_tokens_and_how_long_it_took(layout):
    examples = random_examples(6)
    model = tiny_llama(examples.head_ids)
    config = TrainingConfig(objective="bradley-terry", batch_pairs=6, layout=layout)
    listener, _ = train(model, examples, config)
    record = listener.steps[0]
    assert record.num_tokens == examples.num_tokens
    if layout == "prefix-shared":
        assert record.num_computed < record.num_tokens
    else:
        assert record.num_tokens <= record.num_computed < record.num_tokens / 0.98
    assert record.num_pairs == 6
    assert record.epoch == 1.0
    assert record.tokens_per_second == pytest.approx(record.num_tokens / record.seconds)
    assert record.mfu is None  # a CPU's peak is not known
    assert record.peak_memory_bytes > 10e6  # no Python with torch is smaller


def test_a_head_count_that_does_not_match_is_refused():
    examples = random_examples(4, head_ids=RULES)
    with pytest.raises(InputError, match=r"2 heads, objective multi-head .* needs 3"):
        train(tiny_llama(RULES[:2]), examples, TrainingConfig())
    with pytest.raises(InputError, match=r"3 heads, objective bradley-terry .* needs 1"):
        train(tiny_llama(RULES), examples, TrainingConfig(objective="bradley-terry"))


def test_a_tiny_model_learns_which_response_is_preferred():
    # People prefer the response that ends in token 2 over the one that ends in 3.
    generator = np.random.default_rng(0)
    examples = random_examples(64)
    prompts = [generator.integers(4, 64, 5) for _ in range(64)]
    for name, token in (("chosen", 2), ("rejected", 3)):
        table = TokenTable.of([np.append(prompt, token) for prompt in prompts])
        object.__setattr__(examples, name, table)
    split = Split(train_rows=np.arange(48), evaluation_rows=np.arange(48, 64))
    config = TrainingConfig(
        objective="bradley-terry", batch_pairs=8, epochs=2, learning_rate=1e-2, evaluate_every=99
    )
    model = tiny_llama(examples.head_ids)
    listener, _ = train(model, examples, config, split=split, num_steps=12)
    (evaluation,) = listener.evaluations
    assert evaluation.accuracy_half == 1.0
    assert evaluation.loss < 0.1 * listener.steps[0].loss
