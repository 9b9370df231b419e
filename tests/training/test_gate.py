"""The gate: weights that depend on the prompt, learnt the same way every time, and kept whole."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from encore.errors import EncoreError, InputError
from encore.training.gate import (
    GATE_FILE,
    WEIGHTS_FILE,
    GateConfig,
    load_gate,
    save_gate,
    train_gate,
)

HEADS = ("first", "second", "third")
SMALL = GateConfig(hidden_size=32, num_steps=300, batch_pairs=128, temperature=1.0)


def world(num_pairs=800, seed=0):
    """Prompts of two kinds: of each another head knows what people prefer, the rest is noise."""
    generator = np.random.default_rng(seed)
    prompt_PD = generator.normal(size=(num_pairs, 6)).astype(np.float32)
    margin_PR = generator.normal(size=(num_pairs, 3))
    expert_P = (prompt_PD[:, 0] > 0).astype(int)
    rows = np.arange(num_pairs)
    margin_PR[rows, expert_P] = 0.3 + 0.3 * generator.normal(size=num_pairs)
    chosen_PR = generator.normal(size=(num_pairs, 3))
    return prompt_PD, chosen_PR.astype(np.float32), (chosen_PR - margin_PR).astype(np.float32)


@pytest.fixture(scope="module")
def gate():
    return train_gate(*world(), head_ids=HEADS, config=SMALL)


def accuracy(reward_chosen_P, reward_rejected_P):
    return float((reward_chosen_P > reward_rejected_P).mean())


def test_a_gate_finds_the_head_that_knows_each_kind_of_prompt(gate):
    prompt_PD, chosen_PR, rejected_PR = world(seed=1)
    gated = accuracy(gate.rewards(prompt_PD, chosen_PR), gate.rewards(prompt_PD, rejected_PR))
    uniform = accuracy(chosen_PR.mean(axis=1), rejected_PR.mean(axis=1))
    # An expert alone is right in Phi(0.3 / 0.3) = 84 % of pairs; a uniform mean in
    # Phi(0.3 / sqrt(0.09 + 2)) = 58 %.
    assert uniform == pytest.approx(0.58, abs=0.05)
    assert gated > 0.75
    weight_PR = gate.weights(prompt_PD)
    is_second_P = prompt_PD[:, 0] > 0.5
    assert weight_PR[is_second_P, 1].mean() > 0.6
    assert weight_PR[prompt_PD[:, 0] < -0.5, 0].mean() > 0.6


def test_weights_are_on_the_simplex(gate):
    weight_PR = gate.weights(world(seed=2)[0] * 100)
    assert (weight_PR >= 0).all()
    assert weight_PR.sum(axis=1) == pytest.approx(1, abs=1e-5)
    assert gate.weights(np.empty((0, 6))).shape == (0, 3)


def test_the_loss_falls_below_that_of_equal_weights_at_any_scale(gate):
    _, chosen_PR, rejected_PR = world()
    margin_P = (chosen_PR - rejected_PR).mean(axis=1)
    uniform = min(np.logaddexp(0, -scale * margin_P).mean() for scale in np.linspace(0, 10, 101))
    losses = [record.loss for record in gate.log]
    assert np.mean(losses[-50:]) < uniform - 0.05


def test_the_same_seed_gives_the_same_gate_to_the_last_bit():
    config = SMALL.model_copy(update={"num_steps": 20})
    before = torch.random.get_rng_state()
    first = train_gate(*world(), head_ids=HEADS, config=config)
    torch.rand(7)  # what others draw in between is no part of it
    second = train_gate(*world(), head_ids=HEADS, config=config)
    other_seed = config.model_copy(update={"seed": 1})
    other = train_gate(*world(), head_ids=HEADS, config=other_seed)
    states = [gate.network.state_dict() for gate in (first, second, other)]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert not torch.equal(states[0]["layers.0.weight"], states[2]["layers.0.weight"])
    assert first.log == second.log != other.log
    torch.random.set_rng_state(before)


def test_training_a_gate_leaves_torch_where_it_was():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    config = SMALL.model_copy(update={"num_steps": 2})
    train_gate(*world(), head_ids=HEADS, config=config)
    assert torch.equal(torch.rand(3), expected)


def test_the_learning_rate_falls_as_a_cosine(gate):
    rates = [record.learning_rate for record in gate.log]
    assert [record.step for record in gate.log] == list(range(1, 301))
    assert rates[0] == 1e-3
    assert rates[150] == pytest.approx(0.5e-3)  # cos(pi / 2) = 0
    assert 0 < rates[-1] < 1e-6
    assert rates == sorted(rates, reverse=True)


def test_defaults_are_those_of_the_paper_it_comes_from():
    config = GateConfig()
    assert (config.num_hidden_layers, config.hidden_size, config.dropout) == (3, 1024, 0.2)
    assert (config.learning_rate, config.num_steps, config.batch_pairs) == (1e-3, 2000, 1024)
    network = train_gate(
        *world(), head_ids=HEADS, config=config.model_copy(update={"num_steps": 1})
    ).network
    sizes = [tuple(p.shape) for name, p in network.named_parameters() if name.endswith("weight")]
    assert sizes == [(1024, 6), (1024, 1024), (1024, 1024), (3, 1024)]


def test_every_step_is_told():
    heard = []
    config = SMALL.model_copy(update={"num_steps": 3})
    trained = train_gate(*world(), head_ids=HEADS, config=config, on_step=heard.append)
    assert tuple(heard) == trained.log


# --- on disk ----------------------------------------------------------------------------------


def test_a_gate_comes_back_as_it_was(gate, tmp_path):
    save_gate(tmp_path / "gate", gate)
    again = load_gate(tmp_path / "gate", head_ids=HEADS)
    prompt_PD = world(seed=3)[0]
    assert np.array_equal(again.weights(prompt_PD), gate.weights(prompt_PD))
    assert (again.head_ids, again.config) == (HEADS, SMALL)
    assert sorted(path.name for path in (tmp_path / "gate").iterdir()) == [GATE_FILE, WEIGHTS_FILE]


def test_a_gate_of_other_heads_is_refused(gate, tmp_path):
    save_gate(tmp_path, gate)
    with pytest.raises(InputError, match=r"weighs 3 heads .* the model has 2"):
        load_gate(tmp_path, head_ids=HEADS[:2])
    with pytest.raises(InputError, match="train a gate for this model"):
        load_gate(tmp_path, head_ids=HEADS[::-1])


def test_missing_and_damaged_files_are_named(gate, tmp_path):
    with pytest.raises(InputError, match=f"no {GATE_FILE} in it"):
        load_gate(tmp_path)
    save_gate(tmp_path, gate)
    weights = (tmp_path / WEIGHTS_FILE).read_bytes()
    (tmp_path / WEIGHTS_FILE).write_bytes(weights[:100])
    with pytest.raises(InputError, match="no weights of this gate"):
        load_gate(tmp_path)
    (tmp_path / WEIGHTS_FILE).unlink()
    with pytest.raises(InputError, match="no weights of this gate"):
        load_gate(tmp_path)
    (tmp_path / GATE_FILE).write_text('{"config": {}, "head_ids": 3}')
    with pytest.raises(InputError, match="damaged, head_ids"):
        load_gate(tmp_path)


def test_weights_of_another_shape_are_refused(gate, tmp_path):
    save_gate(tmp_path, gate)
    description = (tmp_path / GATE_FILE).read_text().replace('"num_inputs": 6', '"num_inputs": 7')
    (tmp_path / GATE_FILE).write_text(description)
    with pytest.raises(InputError, match="no weights of this gate"):
        load_gate(tmp_path)


# --- bad input --------------------------------------------------------------------------------


def test_a_loss_that_is_not_finite_stops_and_says_where():
    prompt_PD, chosen_PR, rejected_PR = world()
    chosen_PR[17, 1] = np.nan
    config = SMALL.model_copy(update={"batch_pairs": 800})
    with pytest.raises(EncoreError, match="the loss is nan at step 1; expected a finite number"):
        train_gate(prompt_PD, chosen_PR, rejected_PR, head_ids=HEADS, config=config)


def test_scores_that_do_not_belong_to_the_prompts_are_refused():
    prompt_PD, chosen_PR, rejected_PR = world()
    with pytest.raises(InputError, match=r"scores of rejected have shape \(799, 3\), expected"):
        train_gate(prompt_PD, chosen_PR, rejected_PR[1:], head_ids=HEADS)
    with pytest.raises(InputError, match=r"\(800, 3\), expected \(800, 2\)"):
        train_gate(prompt_PD, chosen_PR, rejected_PR, head_ids=HEADS[:2])
    with pytest.raises(InputError, match="no pairs to learn from"):
        train_gate(prompt_PD[:0], chosen_PR[:0], rejected_PR[:0], head_ids=HEADS)


@pytest.mark.parametrize("field", ["num_steps", "hidden_size", "temperature", "learning_rate"])
def test_settings_out_of_range_are_refused(field):
    with pytest.raises(ValidationError, match=field):
        GateConfig(**{field: 0})
