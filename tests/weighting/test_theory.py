"""The theorem on ratings and on its counter-examples, its loss, the command."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from encore.core.errors import InputError
from encore.warehouse import PairRatings
from encore.weighting.theory import gradient_descent, loss_gradient, step_size, theory
from tests.golden.command_line import encore
from tests.reference import reference_weights, rows_of
from tests.worlds.ratings import rated_pairs, table_of_pairs


def some_pairs(num_pairs: int = 400) -> PairRatings:
    """Return ratings of four rules of rising noise; the last is independent of the label."""
    rng = np.random.default_rng(0)
    raw = rng.normal(size=(2, num_pairs, 4)) * [0.1, 0.2, 0.3, 0.3] + 0.5
    raw[0] += [0.1, 0.1, 0.1, 0.0]
    return rated_pairs(*np.round(np.clip(raw, 0, 1), 1))


# --- figures --------------------------------------------------------------------------------------


def test_every_figure_has_its_definition_over_pairs_that_every_rule_rated_fully():
    pairs = some_pairs()
    pairs.chosen_PR[:8, 1] = np.nan
    checked = theory(table_of_pairs(pairs))
    assert (checked.num_pairs, checked.num_pairs_left_out) == (392, 8)
    margin = (pairs.chosen_PR - pairs.rejected_PR)[8:]
    # Entropies are those of all ratings, as in `encore weights`.
    expected_weights = reference_weights(rows_of(table_of_pairs(pairs)), tau=2.0)
    near = np.random.default_rng(0).normal(scale=0.01, size=4)
    slope = -1 / (1 + np.exp(margin @ near))
    learned_SR = gradient_descent(margin)
    for index, rule in enumerate(checked.rules):
        delta = margin[:, index]
        assert rule.mean_margin == pytest.approx(delta.mean())
        assert rule.tie_rate == pytest.approx(np.mean(delta == 0))
        assert rule.half_accuracy == pytest.approx(np.mean((np.sign(delta) + 1) / 2))
        assert rule.gradient_at_zero == pytest.approx(-delta.mean() / 2)
        assert rule.gradient_near_zero == pytest.approx(np.mean(slope * delta))
        assert rule.z == pytest.approx(delta.sum() / np.sqrt((delta**2).sum()))
        assert rule.encore_weight == pytest.approx(expected_weights[rule.rule_id])
        assert rule.learned_weights == pytest.approx(learned_SR[:, index])
    learned, entropies = zip(
        *((rule.learned_weights[-1], rule.entropy_nats) for rule in checked.rules), strict=True
    )
    expected_r = np.corrcoef(learned, entropies)[0, 1]
    assert checked.correlations["entropy_nats"] == pytest.approx(expected_r)


def test_no_complete_pair_is_an_error_that_names_the_rule():
    pairs = some_pairs(10)
    pairs.chosen_PR[:, 2] = np.nan
    with pytest.raises(InputError, match=r"of 10 pairs none .*rule rule-02 rated 0 fully"):
        theory(table_of_pairs(pairs))


def test_z_is_null_for_a_constant_rule_and_a_dash_in_the_table(tmp_path):
    # Margins of rule 1: 1, 1, -1, 1: sum 2 over the root of 4, z = 1. Rule 2 rates 1/2 always.
    chosen_PR = np.array([[1, 0.5], [1, 0.5], [0, 0.5], [1, 0.5]])
    rejected_PR = np.array([[0, 0.5], [0, 0.5], [1, 0.5], [0, 0.5]])
    table = table_of_pairs(rated_pairs(chosen_PR, rejected_PR, rule_ids=("varied", "constant")))
    pq.write_table(table, tmp_path / "r.parquet")
    checked = theory(table)
    # Random labels leave a gradient of 0 at 0: it has no standard deviation.
    assert [rule.z for rule in checked.rules] == [None, pytest.approx(1.0)]
    assert checked.correlations == {"entropy_nats": None, "encore_weight": None}  # of two rules
    _, _, output = encore("paper", tmp_path / "r.parquet").out.partition("zero weights, 4 pairs")
    rows = [line.split() for line in output.splitlines()]
    # Rule 1, the constant one: number, entropy, half, margin, gradient, z, near zero.
    cells = next(cells for cells in rows if cells[:1] == ["1"])
    assert cells[1:] == ["0.000", "50.0%", "0.000", "0.000", "–", "0.000"]


# --- counter-examples -----------------------------------------------------------------------------


def test_equal_entropy_is_neither_label_independence_nor_the_lack_of_it():
    perfect, dice, constant = theory().rules
    # Ten levels, equally likely: ln 10. The perfect rule's margin is 1/2, so its gradient is -1/4.
    assert [rule.entropy_nats for rule in (perfect, dice)] == pytest.approx([math.log(10)] * 2)
    assert perfect.encore_weight == pytest.approx(dice.encore_weight)
    assert perfect.gradient_at_zero == pytest.approx(-0.25)
    assert perfect.learned_weights[-1] > 10
    # The theorem: no gradient, and so no weight, however many steps.
    assert (dice.gradient_at_zero, *dice.learned_weights) == pytest.approx([0] * 5, abs=1e-12)
    assert constant.entropy_nats == constant.gradient_at_zero == constant.learned_weights[-1] == 0
    assert constant.encore_weight > 0.6


# --- the loss -------------------------------------------------------------------------------------

PROBLEM = st.tuples(st.integers(1, 8), st.integers(1, 4)).flatmap(
    lambda shape: st.tuples(
        arrays(float, shape[1], elements=st.floats(-5, 5)),
        arrays(float, shape, elements=st.floats(-1, 1)),
    )
)


@given(PROBLEM)
def test_the_gradient_is_that_of_finite_differences_and_no_step_raises_the_loss(problem):
    weight, margin = problem

    def mean_loss(weight: np.ndarray) -> float:
        return float(np.logaddexp(0.0, -(margin @ weight)).mean())

    gradient = loss_gradient(weight, margin)
    for index, step in enumerate(1e-5 * np.eye(len(weight))):
        above, below = (mean_loss(weight + d) for d in (step, -step))
        assert gradient[index] == pytest.approx((above - below) / 2e-5, abs=1e-8)
    first, *later_weights = gradient_descent(margin, steps=range(1, 30))
    expected = step_size(margin) * margin.mean(axis=0) / 2
    assert first == pytest.approx(expected, rel=1e-9, abs=1e-9)
    losses = [mean_loss(weights) for weights in (np.zeros_like(weight), first, *later_weights)]
    assert all(later <= earlier + 1e-12 for earlier, later in pairwise(losses))


# --- the command ----------------------------------------------------------------------------------


def test_the_command_shows_tables_and_marks_synthetic_data(tmp_path):
    pairs = some_pairs(60)
    pairs.chosen_PR[:8, 1] = np.nan
    path = tmp_path / "r.parquet"
    pq.write_table(table_of_pairs(pairs), path)
    finished = encore("paper", path)
    for text in (
        "4 rule-03",
        "step 1000",
        "near zero",
        "weights, 52 pairs",
        "1 uniform-and-perfect",
    ):
        assert text in finished.out
    assert "8 of 60 pairs are left out" in finished.err
    # The two tables of the counter-examples.
    assert " ".join(finished.out.split()).count("SYNTHETIC DATA") == 2
