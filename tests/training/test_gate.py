"""The gate learns weights that depend on the prompt, reproducibly, and is saved completely."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from encore.core.errors import EncoreError, InputError
from encore.data.study import open_study
from encore.training.baselines import gate as gate_module
from encore.training.baselines.gate import RESULT_FILE, gate_warnings, stop_pairs, train_gate
from encore.training.baselines.gating_network import (
    GATE_FILE,
    WEIGHTS_FILE,
    GatingNetwork,
    best_constant_weights,
    fit_gate,
    load_gate,
    save_gate,
)
from encore.training.train import train as train_model
from encore.training.training_options import GateConfig, GateTrainingConfig
from tests.golden.command_line import encore
from tests.worlds.scorings import make_model
from tests.worlds.trainings import RULES, make_world, train_config

pytestmark = pytest.mark.services

HEADS = ("first", "second", "third")
SMALL = GateConfig(hidden_size=32, num_steps=300, batch_pairs=128, temperature=1.0)


def prompts_and_margins(num_pairs=800, seed=0):
    """Prompts of two kinds. For each kind, one head predicts the preference; the rest is noise."""
    generator = np.random.default_rng(seed)
    prompt_PD = generator.normal(size=(num_pairs, 6)).astype(np.float32)
    margin_PR = generator.normal(size=(num_pairs, 3))
    expert_P = (prompt_PD[:, 0] > 0).astype(int)
    rows = np.arange(num_pairs)
    margin_PR[rows, expert_P] = 0.3 + 0.3 * generator.normal(size=num_pairs)
    return prompt_PD, margin_PR.astype(np.float32)


def fitted(data, *, head_ids=HEADS, is_stop_P=None, **settings):
    config = SMALL.model_copy(update=settings)
    return fit_gate(*data, head_ids=head_ids, config=config, is_stop_P=is_stop_P)


@pytest.fixture(scope="module")
def gate():
    return fitted(prompts_and_margins())


def test_a_gate_learns_which_head_predicts_each_kind_of_prompt(gate):
    prompt_PD, margin_PR = prompts_and_margins(seed=1)
    weight_PR = gate.weights(prompt_PD)
    # An expert alone is right in Phi(0.3 / 0.3) = 84 % of pairs; a uniform mean in
    # Phi(0.3 / sqrt(0.09 + 2)) = 58 %.
    assert (margin_PR.mean(axis=1) > 0).mean() == pytest.approx(0.58, abs=0.05)
    assert ((weight_PR * margin_PR).sum(axis=1) > 0).mean() > 0.75
    assert weight_PR[prompt_PD[:, 0] > 0.5, 1].mean() > 0.6
    assert weight_PR[prompt_PD[:, 0] < -0.5, 0].mean() > 0.6
    assert (weight_PR >= 0).all()
    assert weight_PR.sum(axis=1) == pytest.approx(1, abs=1e-5)


def test_the_seed_draws_the_first_weights_and_the_pairs_of_a_step(monkeypatch):
    first_weights, pairs = [], []
    real = GatingNetwork.forward

    def record_inputs(self, prompt_BD):
        if self.training:
            first_weights.append(self.layers[0].weight.detach().clone())
            pairs.append(prompt_BD.clone())
        return real(self, prompt_BD)

    monkeypatch.setattr(GatingNetwork, "forward", record_inputs)
    for seed in (0, 0, 1):
        fitted(prompts_and_margins(), seed=seed, num_steps=1)
    for of_seed_0, again, of_seed_1 in (first_weights, pairs):
        assert torch.equal(of_seed_0, again)
        assert not torch.equal(of_seed_0, of_seed_1)


def test_small_margins_do_not_make_a_gate_one_hot():
    """Heads that predict ratings have mean margins of 0.01 to 0.09, here with noise of 0.15."""
    generator = np.random.default_rng(3)
    noise_PR = 0.15 * generator.normal(size=(600, 5))
    margin_PR = (np.linspace(0.01, 0.09, 5) + noise_PR).astype(np.float32)
    prompt_PD = generator.normal(size=(600, 8)).astype(np.float32)
    gate = fitted((prompt_PD, margin_PR), head_ids="abcde")
    _, best_loss = best_constant_weights(margin_PR)
    assert gate.mean_loss(prompt_PD, margin_PR) <= best_loss + 1e-3
    assert gate.weights(prompt_PD).mean(axis=0).max() < 0.5


def test_best_constant_weights_equal_those_derived_by_hand():
    # One head with margin m in a share p of the pairs and -m in the others: the loss is least
    # where sigmoid(s m) = p, so s = ln(p / (1 - p)) / m, and it is then the entropy of p.
    margin_P1 = np.where(np.arange(400) % 4 == 0, -0.05, 0.05)[:, None]
    [scale], loss = best_constant_weights(margin_P1)
    assert scale == pytest.approx(np.log(3) / 0.05, rel=1e-3)
    assert loss == pytest.approx(-0.75 * np.log(0.75) - 0.25 * np.log(0.25), abs=1e-6)
    # A second head that is always wrong gets nothing.
    scaled_R, _ = best_constant_weights(np.hstack([margin_P1, -np.abs(margin_P1)]))
    assert scaled_R / scaled_R.sum() == pytest.approx([1, 0])


def test_a_gate_that_is_a_single_head_or_worse_than_constant_weights_is_reported():
    def warnings(share, loss, constant_loss=0.6):
        mean_weights = {"a": share, "b": 1 - share}
        return gate_warnings(mean_weights, gate_loss=loss, constant_loss=constant_loss)

    assert warnings(0.98, 0.6099) == ()
    one_hot, worse = warnings(0.995, 0.6101)
    assert "head 'a' has 99.50% of the gate's mean weight" in one_hot
    assert "loss 0.6101 instead of 0.6000 on held-out pairs" in worse
    [unknown] = warnings(0.98, None)
    assert "no pairs are held out" in unknown


def test_a_gate_ends_where_pairs_that_it_does_not_learn_from_have_their_smallest_loss():
    """Margins say nothing about the prompt, so what the network learns is noise."""
    generator = np.random.default_rng(5)
    prompt_PD = generator.normal(size=(300, 40)).astype(np.float32)
    margin_PR = (0.5 + generator.normal(size=(300, 3))).astype(np.float32)
    is_stop_P = np.arange(300) % 3 == 0
    settings = {"dropout": 0.0, "num_steps": 120, "learning_rate": 5e-3}
    new_data = prompt_PD[200:], margin_PR[200:]
    to_the_end = fitted((prompt_PD[:200], margin_PR[:200]), **settings)
    stopped = fitted((prompt_PD[:200], margin_PR[:200]), is_stop_P=is_stop_P[:200], **settings)
    assert to_the_end.best_step is None
    assert stopped.best_step < 120
    _, constant_loss = best_constant_weights(margin_PR[200:])
    assert to_the_end.mean_loss(*new_data) > constant_loss + 0.2
    assert stopped.mean_loss(*new_data) < constant_loss + 0.1


def test_pairs_that_decide_when_to_stop_are_not_learnt_from():
    prompt_PD, margin_PR = prompts_and_margins()
    is_stop_P = np.arange(800) % 4 == 0
    margin_PR[is_stop_P] = -1e3
    gate = fitted((prompt_PD, margin_PR), is_stop_P=is_stop_P, num_steps=5)
    margin_PR[is_stop_P] = 1e3
    changed = fitted((prompt_PD, margin_PR), is_stop_P=is_stop_P, num_steps=5)
    assert torch.equal(gate.mean_D, changed.mean_D)
    assert gate.mean_D.numpy() == pytest.approx(prompt_PD[~is_stop_P].mean(axis=0), abs=1e-6)


def test_a_tenth_of_the_prompts_decides_by_whole_groups():
    group_P = np.repeat(np.arange(50), 3)
    is_stop_P = stop_pairs(group_P, seed=0)
    assert is_stop_P.sum() == 15
    assert (is_stop_P.reshape(50, 3).sum(axis=1) % 3 == 0).all()
    assert not np.array_equal(is_stop_P, stop_pairs(group_P, seed=1))
    assert not stop_pairs(np.zeros(4, dtype=np.int64), seed=0).any()


def test_states_of_any_scale_and_origin_give_the_same_gate():
    prompt_PD, margin_PR = prompts_and_margins()
    scale_D = np.float32([1, 1000, 0.001, 10, 1, 100])
    gate = fitted((prompt_PD, margin_PR), num_steps=60)
    moved = fitted((prompt_PD * scale_D + 5 * scale_D, margin_PR), num_steps=60)
    expected_PR = gate.weights(prompt_PD)
    assert moved.weights(prompt_PD * scale_D + 5 * scale_D) == pytest.approx(expected_PR, abs=0.05)


def test_a_gate_loads_as_it_was_saved_and_a_damaged_or_other_gate_is_refused(gate, tmp_path):
    def assert_refused(message: str, head_ids=HEADS):
        with pytest.raises(InputError, match=message):
            load_gate(tmp_path, head_ids=head_ids)

    assert_refused(f"no {GATE_FILE} and")
    save_gate(tmp_path, gate)
    prompt_PD = prompts_and_margins(seed=3)[0]
    again = load_gate(tmp_path, head_ids=HEADS)
    assert np.array_equal(again.weights(prompt_PD), gate.weights(prompt_PD))
    assert (again.head_ids, again.config) == (HEADS, SMALL)
    assert_refused("train a gate for this model", head_ids=HEADS[::-1])
    description = (tmp_path / GATE_FILE).read_text()
    (tmp_path / GATE_FILE).write_text(description.replace('"num_inputs": 6', '"num_inputs": 7'))
    assert_refused("train it again")
    (tmp_path / WEIGHTS_FILE).write_bytes((tmp_path / WEIGHTS_FILE).read_bytes()[:100])
    assert_refused("train it again")
    (tmp_path / GATE_FILE).write_text('{"config": {}, "head_ids": 3}')
    assert_refused("head_ids")


def test_margins_that_are_not_finite_are_refused():
    prompt_PD, margin_PR = prompts_and_margins()
    margin_PR[17, 1] = np.nan
    with pytest.raises(EncoreError, match="the loss is nan at step 1; expected a finite number"):
        fitted((prompt_PD, margin_PR), batch_pairs=800)


# --- over the heads of a trained model ----------------------------------------------------------


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_world(tmp_path_factory.mktemp("gating"), num_pairs=40) / "study"


@pytest.fixture(scope="module")
def model(study: Path) -> Path:
    config = train_config(study.parent, method="probe")
    return train_model(open_study(study), config).model_dir


def train(study: Path, model: Path, **settings):
    gate = GateConfig(num_steps=20, hidden_size=16)
    config = GateTrainingConfig(model=model, gate=gate, **settings)
    return train_gate(open_study(study), config)


def test_a_gate_is_written_beside_its_model_and_holds_out_the_same_pairs(study, model):
    # The gate's seed differs from the model's.
    finished = encore("gate", study, "--model", model, "--steps", 5, "--seed", 7, "--json")
    answer = finished.json
    assert answer["out"] == str(model.parent / "gate")
    gate = load_gate(model.parent / "gate", head_ids=sorted(RULES))
    assert (gate.config.seed, gate.config.num_steps) == (7, 5)
    assert sum(answer["mean_weights"][rule] for rule in RULES) == pytest.approx(1.0, abs=1e-6)
    trained = json.loads((model.parent / "training.json").read_text())
    assert answer["num_evaluation_pairs"] == trained["num_evaluation_pairs"] > 0
    assert answer["num_pairs"] == trained["num_pairs"] == 40 - answer["num_evaluation_pairs"]
    recorded = json.loads((model.parent / "gate" / RESULT_FILE).read_text())
    assert recorded["model"].startswith("sha256:")
    assert recorded["accuracy_gated"] == answer["accuracy_gated"] is not None
    assert recorded["best_constant_loss"] == answer["best_constant_loss"] > 0
    assert 0 < answer["num_stop_pairs"] < answer["num_pairs"]
    assert (
        "best constant weights"
        in encore("gate", study, "--model", model, "--steps", 5, "--seed", 7).out
    )


def test_loss_and_accuracy_are_those_of_pairs_that_the_gate_has_not_seen(
    study, model, tmp_path, monkeypatch
):
    """All heads rank the training pairs as people did, and the held-out pairs the other way."""
    training = train_config(study.parent, method="probe").training
    real = gate_module._prompt_states_and_margins

    def opposite(model_, examples, *rest):
        prompt_PD, margin_PR = real(model_, examples, *rest)
        share, seed = training.evaluation_share, training.seed
        _, held_out_rows = gate_module.split(examples, evaluation_share=share, seed=seed)
        sign_P = np.ones(len(margin_PR), dtype=np.float32)
        sign_P[held_out_rows] = -1
        return prompt_PD, np.abs(margin_PR) * sign_P[:, None] + 0.1 * sign_P[:, None]

    monkeypatch.setattr(gate_module, "_prompt_states_and_margins", opposite)
    result = train(study, model, out=tmp_path / "gate")
    assert (result.accuracy_gated, result.accuracy_constant, result.accuracy_uniform) == (0, 0, 0)
    assert result.training_loss < np.log(2) < result.held_out_loss
    assert result.best_constant_loss < np.log(2) < result.held_out_constant_loss


def test_training_again_gives_the_same_gate_from_stored_states(study, model, tmp_path):
    def files() -> dict[str, bytes]:
        train(study, model, out=tmp_path / "gate")
        states = (tmp_path / "gate" / "embeddings").rglob("*.safetensors")
        kept = {path.name: path.stat().st_mtime_ns for path in states}
        assert kept
        return kept | {"gate": (tmp_path / "gate" / WEIGHTS_FILE).read_bytes()}

    assert files() == files()


def test_a_gate_weighs_the_rules_of_a_model_with_head_0_as_those_of_one_without(
    study, model, tmp_path
):
    """The probe solves the same heads of rules for both."""
    config = train_config(study.parent, method="probe", preference_head="joint")
    with_head_0 = train_model(open_study(study), config).model_dir
    results = [train(study, path, out=tmp_path / path.parent.name) for path in (model, with_head_0)]
    assert results[1].mean_weights == pytest.approx(results[0].mean_weights, abs=1e-5)
    assert list(results[1].mean_weights) == sorted(RULES)
    assert results[1].accuracy_uniform == results[0].accuracy_uniform
    load_gate(results[1].out, head_ids=sorted(RULES))


def test_a_model_with_a_single_head_has_nothing_to_weigh(study, tmp_path):
    with pytest.raises(InputError, match="its only head is 'reward'"):
        train(study, make_model(tmp_path / "model", head_ids=("reward",)))
