"""Head 0 learns preferences beside the heads of rules, or stays the head of its backbone."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoTokenizer

from encore.core.errors import EncoreError, InputError
from encore.data.pairs import iter_pairs
from encore.data.study import open_study
from encore.model.held_out_scores import HELD_OUT_FILE, read_held_out_scores
from encore.model.layouts import lay_out
from encore.model.open_model import open_reward_model
from encore.training.batches import shuffle_pairs
from encore.training.evaluation import loss_scale, loss_terms
from encore.training.optimizers import make_optimizer
from encore.training.train import train
from encore.training.training_examples import add_preference_head, prompt_group
from encore.training.training_loop import learning_rate_at
from encore.training.training_options import TrainingConfig
from tests.training.test_loop import train as train_model
from tests.worlds.models import HEAD_IDS, LAYOUTS, PAD, edit_tensors, make_classifier
from tests.worlds.studies import flip_bit
from tests.worlds.trainings import (
    RULES,
    backbone_config,
    make_world,
    model_of,
    random_examples,
    train_config,
    write_ratings,
)

pytestmark = pytest.mark.services

NAN = math.nan
HEADS = ("preference", *sorted(RULES))


def joint_examples(num_pairs):
    """Return pairs of which many responses lack some of their ratings."""
    examples = random_examples(num_pairs, head_ids=HEAD_IDS, missing_share=0.4)
    return add_preference_head(examples)


# --- the loss -----------------------------------------------------------------------------------


@pytest.mark.parametrize("rating_loss_weight", [1.0, 0.25])
def test_the_joint_loss_equals_one_derived_by_hand(rating_loss_weight):
    # Head 0 has margins 0 and 1: (log 2 + log(1 + 1/e)) / 2. Of four responses three are rated,
    # with errors (1 + 4) / 2, 9 and 0: a mean of 11.5 / 3.
    score_NR = torch.tensor([[5.0, 1, 2], [5, 3, 7], [1, 0, 0], [0, 4, 4]], requires_grad=True)
    target_NR = torch.tensor([[NAN, 0, 0], [NAN, 0, NAN], [NAN, NAN, NAN], [NAN, 4, 4]])
    config = TrainingConfig(preference_head="joint", rating_loss_weight=rating_loss_weight)
    divisor, factor = loss_scale(target_NR.numpy(), config=config)
    term_P = loss_terms(score_NR, target_NR, objective="multi-head", rating_factor=factor)
    expected = (math.log(2) + math.log1p(math.exp(-1))) / 2 + rating_loss_weight * 11.5 / 3
    assert term_P.shape == (2,)
    assert term_P.sum().item() / divisor == pytest.approx(expected)
    (term_P.sum() / divisor).backward()
    # Head 0: -σ(-margin) / 2 for a chosen response. Rules: λ · 2 error / rated heads / 3 responses.
    gradient_NR = score_NR.grad.numpy()
    assert gradient_NR[:, 0] == pytest.approx([-0.25, 0.25, -0.13447071, 0.13447071])
    assert gradient_NR[:2, 1] == pytest.approx([rating_loss_weight / 3, rating_loss_weight * 2])
    assert not gradient_NR[2, 1:].any()


def plain_torch_steps(model, examples, config, *, num_steps):
    """Take joint steps with torch alone, each sequence by itself; return losses and gradients."""
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.0)
    losses, gradients = [], []
    per_epoch = -(-examples.num_pairs // config.batch_pairs)
    for step in range(1, num_steps + 1):
        epoch, step_of_epoch = divmod(step - 1, per_epoch)
        batches = shuffle_pairs(
            examples.num_pairs,
            batch_pairs=config.batch_pairs,
            seed=config.seed,
            epoch=epoch,
            pair_tokens_P=examples.length_P if config.layout == "sorted" else None,
        )
        preferences, errors = [], []
        for row in batches[step_of_epoch]:
            rewards = []
            sides = zip((examples.chosen[row], examples.rejected[row]), (0, 1), strict=True)
            for tokens, side in sides:
                batch = lay_out([tokens], layout="single", pad_token_id=PAD, is_causal=True)
                reward, *score_R = model(batch)[0]
                rewards.append(reward)
                target_R = examples.target_PSR[row, side, 1:].tolist()
                rated = [(s - t) ** 2 for s, t in zip(score_R, target_R, strict=True) if t == t]
                errors += [sum(rated) / len(rated)] if rated else []
            preferences.append(-torch.nn.functional.logsigmoid(rewards[0] - rewards[1]))
        loss = torch.stack(preferences).mean()
        loss = loss + config.rating_loss_weight * torch.stack(errors).mean()
        optimizer.zero_grad()
        loss.backward()
        losses.append(loss.item())
        gradients.append({name: p.grad.clone() for name, p in model.named_parameters()})
        rate = learning_rate_at(step, config=config, num_steps=num_steps)
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
    return losses, gradients


@pytest.mark.parametrize("layout", LAYOUTS)
def test_ten_joint_steps_have_the_losses_and_gradients_of_plain_torch(layout):
    examples = joint_examples(14)
    config = TrainingConfig(
        preference_head="joint",
        rating_loss_weight=0.3,
        batch_pairs=5,
        learning_rate=1e-3,
        layout=layout,
        tokens_per_microbatch=60,
    )
    model = model_of(examples)
    plain = copy.deepcopy(model)
    records, optimizer = train_model(model, examples, config, num_steps=10)
    losses, gradients = plain_torch_steps(plain, examples, config, num_steps=10)
    assert [record.loss for record in records] == pytest.approx(losses, abs=1e-6)
    for step, (actual, expected) in enumerate(zip(optimizer.gradients, gradients, strict=True)):
        assert actual.keys() == expected.keys()
        for name, gradient in expected.items():
            assert (actual[name] - gradient).abs().max() <= 1e-6, (step, name)


@pytest.mark.parametrize("optimizer", ["adamw", "adamw-stochastic"])
def test_a_frozen_head_does_not_move_by_a_bit_and_changes_no_other_head(optimizer):
    """No loss reaches it, but weight decay would move it, as in steps that learn ratings alone."""
    examples = joint_examples(8)
    start_RD = model_of(examples).heads.weight.detach()
    losses, heads = [], []
    for preference_head in ("frozen", "none"):
        config = TrainingConfig(
            preference_head=preference_head, optimizer=optimizer, batch_pairs=4, weight_decay=0.5
        )
        model = model_of(examples)
        step_optimizer = make_optimizer(model, config)
        records, _ = train_model(model, examples, config, optimizer=step_optimizer, num_steps=6)
        losses.append([record.loss for record in records])
        heads.append(model.heads.weight.detach())
    assert losses[0] == losses[1]
    assert torch.equal(heads[0][0], start_RD[0])
    assert not torch.equal(heads[1][0], start_RD[0])
    assert torch.equal(heads[0][1:], heads[1][1:])


# --- runs ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> Path:
    """Make a study, a language model ``tiny``, and a reward model ``classifier`` of its shape."""
    folder = make_world(tmp_path_factory.mktemp("world"), num_pairs=40)
    config = AutoConfig.from_pretrained(folder / "tiny", num_labels=1)
    tokenizer = AutoTokenizer.from_pretrained(folder / "tiny")
    make_classifier(folder / "classifier", config, tokenizer)
    return folder


@pytest.fixture
def run(world, tmp_path):
    def run_training(*, backbone="tiny", out="run", **settings):
        settings = {"max_steps": 4, "evaluate_every": 2, "out": tmp_path / out, **settings}
        config = train_config(world, **settings)
        config = config.model_copy(update={"backbone": backbone_config(world / backbone)})
        return train(open_study(world / "study"), config)

    return run_training


def head_rows(result):
    return load_file(result.model_dir / "heads.safetensors")["weight"]


@pytest.mark.parametrize(
    ("backbone", "preference_head"),
    [("tiny", "joint"), ("classifier", "joint"), ("classifier", "frozen")],
)
def test_head_0_starts_at_the_own_head_of_the_backbone_or_at_0(
    run, world, backbone, preference_head
):
    result = run(backbone=backbone, preference_head=preference_head, learning_rate=1e-12)
    own_D = torch.zeros(32)
    if backbone == "classifier":
        own_D = load_file(world / "classifier" / "model.safetensors")["score.weight"][0]
        assert own_D.abs().min() > 0
    expected_RD = torch.cat([own_D[None], torch.zeros(len(RULES), 32)])
    torch.testing.assert_close(head_rows(result), expected_RD, atol=1e-9, rtol=0)
    assert torch.equal(head_rows(result)[0], own_D) or preference_head == "joint"


def test_the_probe_solves_head_0_and_the_rules_as_they_are_solved_alone(run, world):
    joint = head_rows(run(method="probe", preference_head="joint", out="joint"))
    assert torch.equal(joint[1:], head_rows(run(method="probe", out="rules")))
    assert torch.equal(
        joint[:1], head_rows(run(method="probe", objective="bradley-terry", out="reward"))
    )
    tuned = run(head_init="probe", preference_head="joint", learning_rate=1e-12, out="tuned")
    torch.testing.assert_close(head_rows(tuned), joint)
    frozen = run(method="probe", preference_head="frozen", backbone="classifier", out="frozen")
    own_1D = load_file(world / "classifier" / "model.safetensors")["score.weight"]
    assert torch.equal(head_rows(frozen)[:1], own_1D)


@pytest.mark.parametrize(
    "settings",
    [
        {"layout": "sorted", "gradient_checkpointing": True},
        {"method": "lora", "lora_rank": 4, "dtype": "bfloat16"},
        {"method": "probe"},
    ],
)
def test_a_model_with_head_0_holds_the_scores_of_its_held_out_pairs(run, settings):
    result = run(preference_head="joint", evaluation_share=0.3, **settings)
    held_out = read_held_out_scores(result.model_dir)
    evaluation = result.final_evaluation
    assert held_out.score_P2R.shape == (evaluation.num_pairs, 2, len(HEADS))
    assert len(set(held_out.group_P.tolist())) == evaluation.num_pairs  # a prompt of its own each
    margin_PR = held_out.score_P2R[:, 0] - held_out.score_P2R[:, 1]
    accuracies = ((1 + np.sign(margin_PR)) / 2).mean(axis=0)
    assert list(evaluation.accuracy_half_by_head) == list(HEADS)
    assert list(evaluation.accuracy_half_by_head.values()) == pytest.approx(accuracies)
    assert evaluation.accuracy_half == evaluation.accuracy_half_by_head["preference"]
    assert list(evaluation.r2_by_head) == sorted(RULES)
    opened = open_reward_model(result.out, dtype="float32")
    assert opened.model.head_ids == HEADS
    assert opened.model.mean_R[0] == 0

    # Stopped after the last checkpoint: the same bytes are written again.
    expected = (result.model_dir / HELD_OUT_FILE).read_bytes()
    flip_bit(result.model_dir / HELD_OUT_FILE)
    assert run(preference_head="joint", evaluation_share=0.3, **settings).is_new
    assert (result.model_dir / HELD_OUT_FILE).read_bytes() == expected


def test_a_model_without_head_0_or_without_held_out_pairs_has_no_file_of_scores(run):
    assert read_held_out_scores(run(out="rules").model_dir) is None
    result = run(out="all", preference_head="joint", evaluation_share=0.0)
    assert read_held_out_scores(result.model_dir) is None


def test_the_saved_scores_are_those_of_the_saved_model(run, world):
    result = run(preference_head="joint", evaluation_share=0.3)
    opened, held_out = open_reward_model(result.out), read_held_out_scores(result.model_dir)
    pair_by_group = {prompt_group(pair): pair for pair in iter_pairs(open_study(world / "study"))}
    for score_2R, group in zip(held_out.score_P2R, held_out.group_P, strict=True):
        pair = pair_by_group[int(group)]
        prompt = [{"role": turn.role, "content": turn.content} for turn in pair.prompt]
        texts = (pair.chosen, pair.rejected)
        scores = opened.score([[*prompt, {"role": "assistant", "content": t}] for t in texts])
        assert pytest.approx(score_2R, abs=1e-5) == np.array([scores[head] for head in HEADS]).T


def test_a_head_0_that_does_not_fit_is_refused_with_the_reason(run, world, tmp_path):
    def assert_refused(match, error=InputError, **settings):
        with pytest.raises(error, match=match):
            run(**settings)

    assert_refused(
        "its only head learns preferences already",
        objective="bradley-terry",
        preference_head="joint",
    )
    assert_refused(
        "this backbone has none; .*use preference_head 'joint'", preference_head="frozen"
    )
    ratings = write_ratings(
        world / "study", tmp_path / "ratings.parquet", rules=("preference", "be-kind")
    )
    assert_refused(
        "rule 'preference': head 0 has this id", ratings=ratings, preference_head="joint"
    )
    # The head of another backbone, whose width is not that of this trunk; and one with a bias.
    file = world / "classifier" / "model.safetensors"
    whole = file.read_bytes()
    for name, tensor, match in (
        ("score.weight", torch.ones(1, 48), r"of another shape, first .*score\.weight.*48.*32"),
        ("score.bias", torch.ones(1), "without bias .*preference_head 'none'"),
    ):
        edit_tensors(file, lambda t, n=name, v=tensor: t.update({n: v}))
        try:
            settings = {"backbone": "classifier", "preference_head": "frozen", "out": name}
            assert_refused(match, EncoreError, **settings)
        finally:
            file.write_bytes(whole)
