"""The theorem on ratings and on synthetic worlds, its loss, its counter-examples, the command."""

from __future__ import annotations

import json
import math
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import minimize

from encore.errors import InputError
from encore.evidence.theory import DOES_NOT_SAY, SAYS, Theory, noise_world, theory
from encore.evidence.theory_examination import (
    TheoryRule,
    descend,
    examine,
    loss_gradient,
    loss_slope,
    mean_loss,
    step_size,
)
from encore.warehouse import PairRatings
from tests.evidence.evidence_pairs import rated_pairs, table_of
from tests.golden.command_line import encore
from tests.reference import reference_weights, rows_of


def some_pairs(num_pairs: int = 400, *, seed: int = 0) -> PairRatings:
    """Four rules of rising noise; the last one knows nothing."""
    rng = np.random.default_rng(seed)
    raw = rng.normal(size=(2, num_pairs, 4)) * [0.1, 0.2, 0.3, 0.3] + 0.5
    raw[0] += [0.1, 0.1, 0.1, 0.0]
    rating = np.round(np.clip(raw, 0, 1), 1)
    return rated_pairs(rating[0], rating[1])


# --- figures --------------------------------------------------------------------------------------


def test_every_figure_has_its_definition():
    pairs = some_pairs()
    found = examine(pairs)
    margin = pairs.chosen_PR - pairs.rejected_PR
    expected_weights = reference_weights(rows_of(table_of(pairs)), tau=2.0)
    near = np.array(found.near_zero_weights)
    slope = -1 / (1 + np.exp(margin @ near))
    for place, rule in enumerate(found.rules):
        delta = margin[:, place]
        assert rule.mean_margin == pytest.approx(delta.mean())
        assert rule.tie_rate == pytest.approx(np.mean(delta == 0))
        assert rule.half_accuracy == pytest.approx(np.mean((np.sign(delta) + 1) / 2))
        assert rule.gradient_at_zero == pytest.approx(-delta.mean() / 2)
        assert rule.gradient_near_zero == pytest.approx(np.mean(slope * delta))
        assert rule.z == pytest.approx(delta.sum() / np.sqrt((delta**2).sum()))
        assert rule.encore_weight == pytest.approx(expected_weights[rule.rule_id])
        assert rule.learned_weights == tuple(
            record.weights[place] for record in found.steps if record.step > 0
        )
    assert np.abs(near).max() < 0.05  # five standard deviations of 0.01


def test_z_has_mean_0_and_variance_1_when_every_pair_s_label_is_drawn_by_lot():
    """Over all 2^6 ways to swap the labels of six pairs."""
    delta = np.array([0.5, 0.3, -0.2, 0.1, 0.0, 0.7])
    z = []
    for signs in product([1.0, -1.0], repeat=6):
        flipped = (delta * np.array(signs))[:, None]
        (rule,) = examine(rated_pairs((1 + flipped) / 2, (1 - flipped) / 2)).rules
        assert rule.z is not None
        z.append(rule.z)
    assert np.mean(z) == pytest.approx(0, abs=1e-12)
    assert np.mean(np.square(z)) == pytest.approx(1, abs=1e-12)


def test_correlations_are_numpy_s():
    found = examine(some_pairs())
    entropy = np.array([rule.entropy_nats for rule in found.rules])
    weight = np.array([rule.encore_weight for rule in found.rules])
    values = {
        "gradient_size": np.array([abs(rule.gradient_at_zero) for rule in found.rules]),
        "z_size": np.array([abs(rule.z or 0) for rule in found.rules]),
        "learned_weight": np.array([rule.learned_weights for rule in found.rules]).T,
    }
    steps = (1, 10, 100, 1000)
    assert len(found.correlations) == 2 * (2 + len(steps))
    for row in found.correlations:
        other = entropy if row.against == "entropy" else weight
        value = values[row.quantity]
        value = value if row.step is None else value[steps.index(row.step)]
        assert row.pearson_r == pytest.approx(np.corrcoef(value, other)[0, 1])
        assert row.num_rules == 4


def test_only_pairs_that_every_rule_rated_fully_are_used_and_the_rest_is_counted():
    pairs = some_pairs(50)
    pairs.chosen_PR[:8, 1] = np.nan
    found = theory(table_of(pairs))
    assert (found.examination.num_pairs, found.examination.num_pairs_left_out) == (42, 8)
    assert any("8 of 50 pairs are left out" in note for note in found.notes)
    margin = (pairs.chosen_PR - pairs.rejected_PR)[8:]
    for place, rule in enumerate(found.examination.rules):
        assert rule.gradient_at_zero == pytest.approx(-margin[:, place].mean() / 2)
    # Entropies are those of all ratings, as in `encore weights`.
    weights = reference_weights(rows_of(table_of(pairs)), tau=2.0)
    assert [r.encore_weight for r in found.examination.rules] == pytest.approx(
        list(weights.values())
    )


def test_no_complete_pair_is_an_error_that_names_the_rule():
    pairs = some_pairs(10)
    pairs.chosen_PR[:, 2] = np.nan
    with pytest.raises(InputError, match=r"of 10 pairs none .*rule rule-2 rated 0 fully"):
        theory(table_of(pairs))


def test_too_many_margins_are_sampled_for_descent_and_said(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("encore.evidence.theory_examination._MAX_MARGINS", 400)
    found = theory(table_of(some_pairs(300)))
    assert found.examination.num_descent_pairs == 100  # 400 margins of 4 rules
    assert found.examination.num_pairs == 300
    assert any("seeded sample of 100 of 300 pairs" in note for note in found.notes)


def test_a_single_rule_and_a_constant_one_are_no_trouble():
    half = np.full((20, 1), 0.5)
    found = theory(table_of(rated_pairs(half, half)))
    (rule,) = found.examination.rules
    assert (rule.z, rule.gradient_at_zero, rule.encore_weight) == (None, 0.0, 1.0)
    assert all(row.pearson_r is None for row in found.examination.correlations)
    assert any("never tells two responses apart" in line for line in found.statements)
    json.dumps(found.as_dict(), allow_nan=False)


# --- where the theorem holds ----------------------------------------------------------------------


def test_in_the_noise_world_margins_and_entropies_are_as_planted():
    found = examine(noise_world(seed=0))
    for k, rule in enumerate(found.rules):
        noise = k / 9
        # Decisive with probability 1 - noise, then right in 80 %: margin (1 - noise) (0.8 - 0.2).
        expected = 0.6 * (1 - noise)
        assert rule.mean_margin == pytest.approx(expected, abs=4 / math.sqrt(20_000))
        # Levels: noise/11 each, and half of the rest at 0 and at 1.
        inner, end = noise / 11, noise / 11 + (1 - noise) / 2
        entropy = -9 * inner * math.log(inner) if inner else 0.0
        entropy -= 2 * end * math.log(end)
        assert rule.entropy_nats == pytest.approx(entropy, abs=0.01)
    assert [rule.rule_id for rule in found.rules][::9] == ["noise-000-percent", "noise-100-percent"]


@pytest.mark.parametrize("seed", range(3))
def test_a_rule_that_is_independent_of_the_label_keeps_a_weight_near_zero(seed: int):
    found = examine(noise_world(seed=seed), seed=seed)
    pure = found.rules[-1]
    # Standard deviation of its margin: 0.45; of its gradient: 0.45 / 2 / sqrt(20,000) = 0.0016.
    assert abs(pure.gradient_at_zero) < 4 * 0.0016
    # Of its weight about 0.1: one over the root of 20,000 D (1 - D) margin^2.
    assert all(abs(weight) < 0.4 for weight in pure.learned_weights)
    assert found.rules[0].learned_weights[-1] > 1
    learned = [row for row in found.correlations if row.quantity == "learned_weight"]
    assert all(row.spearman_rho < -0.9 for row in learned if row.against == "entropy")
    assert all(row.spearman_rho > 0.9 for row in learned if row.against == "encore_weight")


# --- where its words mislead ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def synthetic() -> Theory:
    return theory(synthetic=True)


def rules_of(synthetic: Theory, example: int) -> dict[str, TheoryRule]:
    rules = synthetic.counter_examples[example].examination.rules
    return {rule.rule_id: rule for rule in rules}


def test_uniform_ratings_may_be_always_right_or_know_nothing(synthetic: Theory):
    equal = rules_of(synthetic, 0)
    perfect, dice = equal["uniform-and-perfect"], equal["uniform-and-random"]
    # Ten levels, a tenth of the ratings each; the chosen response always has 0.5 more.
    assert perfect.entropy_nats == pytest.approx(math.log(10))
    assert perfect.half_accuracy == 1.0
    assert perfect.gradient_at_zero == pytest.approx(-0.25)
    assert perfect.z == pytest.approx(math.sqrt(500))
    # Always right: the weight grows for ever. The only other rule that moves would have to help.
    assert list(perfect.learned_weights) == sorted(perfect.learned_weights)
    assert perfect.learned_weights[-1] > 10
    assert dice.entropy_nats == pytest.approx(perfect.entropy_nats, abs=1e-12)
    assert dice.encore_weight == pytest.approx(perfect.encore_weight, abs=1e-12)
    assert dice.half_accuracy == 0.5
    assert dice.gradient_at_zero == pytest.approx(0, abs=1e-12)
    assert dice.learned_weights == pytest.approx((0, 0, 0, 0), abs=1e-9)


def test_a_constant_rule_takes_the_largest_weight_and_ranks_nothing(synthetic: Theory):
    equal = rules_of(synthetic, 1)
    constant = equal["constant"]
    assert (constant.entropy_nats, constant.tie_rate, constant.half_accuracy) == (0.0, 1.0, 0.5)
    # Masses exp(-H/2): 1 for the constant rule, 1/sqrt(10) for each uniform one.
    assert constant.encore_weight == pytest.approx(1 / (1 + 2 / math.sqrt(10)))
    assert constant.encore_weight == max(rule.encore_weight for rule in equal.values())
    assert constant.learned_weights == (0.0, 0.0, 0.0, 0.0)
    assert (constant.gradient_at_zero, constant.z) == (0.0, None)


def test_a_rule_that_knows_nothing_learns_a_weight_when_it_cancels_another_s_noise(
    synthetic: Theory,
):
    shared = rules_of(synthetic, 2)
    disturbed, noise = shared["disturbed"], shared["disturbance"]
    # Margins 0.8, -0.2, 0.3, 0.3 and 0.5, -0.5, 0, 0.
    assert disturbed.mean_margin == pytest.approx(0.3)
    assert disturbed.half_accuracy == 0.75
    assert (noise.half_accuracy, noise.tie_rate) == (0.5, 0.5)
    # One step leaves it at 0, the second does not.
    assert noise.learned_weights[0] == pytest.approx(0, abs=1e-12)
    assert noise.learned_weights[1] < -0.1
    # Levels 1/8 four times and 1/4 twice: 5/2 ln 2; 1/4 twice and 1/2: 3/2 ln 2.
    assert disturbed.entropy_nats == pytest.approx(2.5 * math.log(2))
    assert noise.entropy_nats == pytest.approx(1.5 * math.log(2))
    w = np.array([disturbed.learned_weights[-1], noise.learned_weights[-1]])
    margins = np.array([[0.8, 0.5], [-0.2, -0.5], [0.3, 0.0]])
    assert (margins @ w > 0).all()


def test_words_say_what_the_theorem_says_and_what_it_does_not(synthetic: Theory):
    assert (synthetic.statements[0], synthetic.statements[-1]) == (SAYS, DOES_NOT_SAY)
    text = "\n".join(synthetic.statements)
    assert "Entropy does not occur in it" in text
    assert "noise-100-percent (2.39" in text
    assert "high entropy and the theorem's premise go together" in text
    assert "the higher the entropy, the lower the learned weight." in text


# --- the loss -------------------------------------------------------------------------------------

PROBLEM = st.tuples(st.integers(1, 8), st.integers(1, 4)).flatmap(
    lambda shape: st.tuples(
        arrays(float, shape[1], elements=st.floats(-5, 5)),
        arrays(float, shape, elements=st.floats(-1, 1)),
    )
)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_the_slope_is_bounded_by_one_for_every_margin(margin: float):
    assert -1 <= float(loss_slope(np.array(margin))) <= 0


def test_slope_and_loss_at_three_margins_by_hand():
    # -e^-g / (1 + e^-g); at g = ln 3 that is -(1/3) / (4/3) = -1/4, and the loss ln(4/3).
    margin = np.array([0.0, math.log(3), -math.log(3)])
    assert loss_slope(margin) == pytest.approx([-0.5, -0.25, -0.75])
    expected = (math.log(2) + math.log(4 / 3) + math.log(4)) / 3
    assert mean_loss(np.ones(1), margin[:, None]) == pytest.approx(expected)


@given(PROBLEM)
def test_the_gradient_is_that_of_finite_differences_and_no_step_raises_the_loss(
    problem: tuple[np.ndarray, np.ndarray],
):
    weight, margin = problem
    found = loss_gradient(weight, margin)
    for place, step in enumerate(1e-5 * np.eye(len(weight))):
        above, below = (mean_loss(weight + d, margin) for d in (step, -step))
        assert found[place] == pytest.approx((above - below) / 2e-5, abs=1e-8)
    losses = [record.loss for record in descend(margin, steps=range(1, 30))]
    assert all(later <= earlier + 1e-12 for earlier, later in pairwise(losses))


def test_descent_ends_where_another_optimiser_ends():
    # Labels from a logistic model, so that an optimum is near (3, 1, 0).
    rng = np.random.default_rng(0)
    margin = rng.choice([-0.5, -0.2, 0.0, 0.2, 0.5], size=(2000, 3))
    is_right = rng.random(2000) < 1 / (1 + np.exp(-margin @ np.array([3.0, 1.0, 0.0])))
    margin = np.where(is_right, 1.0, -1.0)[:, None] * margin
    start, first, last = descend(margin, steps=(1, 1000))
    optimum = minimize(
        lambda w: np.log1p(np.exp(-margin @ w)).mean(), np.zeros(3), method="BFGS", tol=1e-9
    )
    assert last.weights == pytest.approx(optimum.x, abs=1e-4)
    assert (start.loss, start.largest_slope) == (pytest.approx(math.log(2)), 0.5)
    assert first.weights == pytest.approx(step_size(margin) * margin.mean(axis=0) / 2, abs=1e-12)


# --- the command ----------------------------------------------------------------------------------


def test_the_command_gives_what_the_function_finds_as_json_or_tables(tmp_path: Path):
    path = tmp_path / "r.parquet"
    pq.write_table(table_of(some_pairs(60)), path)
    found = encore("theory", path, "--tau", "1", "--json").json
    assert found == json.loads(json.dumps(theory(path, tau=1.0).as_dict()))
    shown = encore("theory", path).out
    for text in ("4 rule-3", "step 1000", "largest |D|", "0.5000", "Counter-example (synthetic)"):
        assert text in shown
    assert "SYNTHETIC DATA" not in shown
    synthetic = encore("theory", "--synthetic").out
    assert " ".join(synthetic.split()).count("SYNTHETIC DATA") == 2


@pytest.mark.parametrize("arguments", [(), ("ratings.parquet", "--synthetic")])
def test_neither_or_both_is_a_usage_error(arguments: tuple[str, ...]):
    finished = encore("theory", *arguments)
    assert finished.code == 2
    assert "one of the two" in finished.err
