"""How many ratings are enough: the curve, what it promises, and when it promises nothing."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from encore.errors import InputError
from encore.evidence.convergence import (
    ConvergenceCurve,
    Recommendation,
    convergence,
    convergence_of_pairs,
)
from encore.evidence.error_curve import ErrorCurve
from encore.evidence.recommendation import MIN_PAIRS
from encore.pair_ratings import PairRatings
from tests.evidence.data import (
    drawn_pairs,
    exact_weights,
    rated_pairs,
    skewed_masses,
    table_of,
)
from tests.reference import reference_weights, rows_of

TAU = 2.0


def some_pairs(num_pairs: int, *, seed: int = 0, num_rules: int = 5) -> PairRatings:
    """Rules of different spread; a fifth of all ties come from copying."""
    rng = np.random.default_rng(seed)
    return drawn_pairs(skewed_masses(num_rules), num_pairs=num_pairs, rng=rng, copied=0.2)


def recommendation(curve: ConvergenceCurve, target: float) -> Recommendation:
    return next(found for found in curve.recommendations if found.target == target)


def noise_by_the_delta_method(pairs: PairRatings, *, tau: float) -> float:
    """c of the error c/sqrt(n) at 95 %, without drawing any sample.

    A pair moves a rule's entropy by the mean of its two ratings' -ln p - H, so the entropies of n
    pairs vary with covariance S/n, S that of these influences. ln w_k moves by -(dH_k - sum_j w_j
    dH_j)/tau. The largest over rules of a normal vector has no formula: its quantile is simulated.
    """
    influences = []
    for chosen, rejected in zip(pairs.chosen_PR.T, pairs.rejected_PR.T, strict=True):
        both = np.concatenate([chosen, rejected])
        _, code, count = np.unique(both, return_inverse=True, return_counts=True)
        surprise = -np.log(count / len(both))[code].reshape(2, -1).mean(axis=0)
        influences.append(surprise - surprise.mean())
    covariance = np.cov(np.array(influences))
    mass = np.exp(-np.array([_entropy(pairs, k) for k in range(len(influences))]) / tau)
    weight = mass / mass.sum()
    moves = np.random.default_rng(1).multivariate_normal(
        np.zeros(len(weight)), covariance, size=200_000
    )
    log_weight = -(moves - (moves @ weight)[:, None]) / tau
    return float(np.quantile(np.abs(log_weight).max(axis=1), 0.95))


def _entropy(pairs: PairRatings, place: int) -> float:
    both = np.concatenate([pairs.chosen_PR[:, place], pairs.rejected_PR[:, place]])
    share = np.unique(both, return_counts=True)[1] / len(both)
    return float(-(share * np.log(share)).sum())


# --- the curve ------------------------------------------------------------------------------------


def test_drawing_samples_and_the_delta_method_agree():
    pairs = some_pairs(20_000)
    curve = convergence_of_pairs(pairs, num_draws=600)
    noise = noise_by_the_delta_method(pairs, tau=TAU)
    for point in curve.points:
        if point.num_pairs >= 500:  # where bias, of order 1/n, has gone
            assert point.error_95_population == pytest.approx(
                noise / math.sqrt(point.num_pairs), rel=0.12
            )
    assert curve.error_95_now == pytest.approx(noise / math.sqrt(20_000), rel=0.1)


def test_a_sample_is_closer_to_the_data_it_is_part_of_than_to_the_truth():
    curve = convergence_of_pairs(some_pairs(1000), num_draws=50)
    for point in curve.points:
        assert point.error_95 is not None
        # n of N pairs: sqrt(1 - n/N); half of the data by the root of two.
        expected = point.error_95 / math.sqrt(1 - point.num_pairs / 1000)
        assert point.error_95_population == pytest.approx(expected, rel=1e-12)
    assert curve.points[-1].num_pairs == 500


def share_of_promises_kept(mass_RL: np.ndarray, *, target: float, seed: int) -> float:
    """Of 400 fresh data sets of the recommended size, those with all weights within the target."""
    rng = np.random.default_rng(seed)
    truth = exact_weights(mass_RL, tau=TAU)
    pairs = drawn_pairs(mass_RL, num_pairs=10_000, rng=rng)
    curve = convergence_of_pairs(pairs, targets=(target,))
    num_pairs = recommendation(curve, target).num_pairs
    assert num_pairs is not None
    kept = 0
    for _ in range(400):
        # Two independent ratings a pair: the histogram of a rule is one multinomial draw.
        share_RL = rng.multinomial(2 * num_pairs, mass_RL) / (2 * num_pairs)
        log_RL = np.log(share_RL, where=share_RL > 0, out=np.zeros_like(share_RL))
        mass_R = np.exp(np.sum(share_RL * log_RL, axis=1) / TAU)
        kept += np.abs(mass_R / mass_R.sum() / truth - 1).max() <= target
    return kept / 400


def test_what_is_recommended_keeps_its_promise_on_fresh_data():
    # 0.95 is promised; the draws alone have a standard deviation of 0.011, the curve adds some.
    assert 0.90 <= share_of_promises_kept(skewed_masses(5), target=0.02, seed=0) <= 0.99


@pytest.mark.full
@pytest.mark.parametrize("seed", range(1, 9))
@pytest.mark.parametrize("num_levels", [2, 11, 41, 101])
def test_promises_are_kept_for_few_and_for_many_levels(num_levels: int, seed: int):
    kept = share_of_promises_kept(skewed_masses(4, num_levels), target=0.03, seed=seed)
    assert 0.88 <= kept <= 0.998


def test_pairs_are_taken_whole():
    # Of every pair one response has 1 and the other 0: any number of whole pairs has entropy ln 2,
    # and the other rule is constant. Samples of single responses would scatter.
    is_chosen = np.random.default_rng(0).random(400) < 0.5
    flips = is_chosen.astype(float)
    half = np.full(400, 0.5)
    pairs = rated_pairs(np.stack([flips, half], axis=1), np.stack([1 - flips, half], axis=1))
    curve = convergence_of_pairs(pairs, num_draws=40)
    assert max(point.error_95 or 0.0 for point in curve.points) < 1e-14


def test_errors_are_against_the_weights_that_encore_weights_gives():
    # Halves of the data, drawn and compared by hand: seed 3's draws are rng.choice's.
    pairs = some_pairs(200, seed=3)
    curve = convergence_of_pairs(pairs, num_draws=40, seed=3)
    full = np.array(list(reference_weights(rows_of(table_of(pairs)), tau=TAU).values()))
    rng = np.random.default_rng(3)
    errors = []
    for _ in range(40):
        half = pairs.take(rng.choice(200, 100, replace=False))
        weights = reference_weights(rows_of(table_of(half)), tau=TAU)
        errors.append(np.abs(np.array(list(weights.values())) / full - 1).max())
    # 38 of 40 draws, 95 %, have at most the 38th smallest error.
    assert curve.points[-1].error_95 == pytest.approx(np.sort(errors)[37], rel=1e-9)
    assert curve.points[-1].error_median == pytest.approx(np.sort(errors)[19], rel=1e-9)


def test_ratings_per_rule_count_ratings_and_not_nulls():
    pairs = some_pairs(400, num_rules=2)
    pairs.rejected_PR[:, 1] = np.nan
    curve = convergence_of_pairs(pairs, num_draws=40)
    # Rule 0 has 2 ratings a pair and rule 1 has 1: an average of 1.5.
    assert curve.num_ratings_per_rule == 600
    assert curve.points[-1].num_ratings_per_rule == 300


def test_the_same_seed_gives_the_same_curve_and_another_one_another():
    pairs = some_pairs(300)
    curve = convergence_of_pairs(pairs, num_draws=40, seed=1)
    assert curve == convergence_of_pairs(pairs, num_draws=40, seed=1)
    assert curve.points != convergence_of_pairs(pairs, num_draws=40, seed=2).points


def test_a_larger_temperature_needs_fewer_ratings():
    # Relative errors of weights are errors of entropies over tau.
    pairs = some_pairs(2000)
    slow = convergence_of_pairs(pairs, tau=1.0, num_draws=100)
    fast = convergence_of_pairs(pairs, tau=4.0, num_draws=100)
    assert slow.error_95_now is not None
    assert fast.error_95_now is not None
    assert slow.error_95_now > 3 * fast.error_95_now


# --- words ----------------------------------------------------------------------------------------


def test_enough_ratings_are_named_in_a_sentence():
    curve = convergence_of_pairs(some_pairs(20_000), targets=(0.02,))
    (found,) = curve.recommendations
    assert found.num_pairs is not None
    assert found.num_ratings_per_rule == 2 * found.num_pairs
    # 1,000 to 20,000 pairs: at least four digits, two of them told.
    about = f"{float(f'{found.num_ratings_per_rule:.2g}'):,.0f}"
    assert f"within 2 % of the true ones after {about} ratings per rule" in found.sentence
    assert "95 % confidence" in found.sentence


def test_too_few_ratings_are_none_with_what_they_give_and_what_it_would_take():
    curve = convergence_of_pairs(some_pairs(300), targets=(0.001,))
    (found,) = curve.recommendations
    assert found.num_ratings_per_rule is None
    assert found.num_pairs is None
    assert found.projected_num_ratings_per_rule is not None
    assert found.projected_num_ratings_per_rule > 600
    assert "600 ratings per rule are too few for 0.1 %" in found.sentence
    assert "(extrapolated)" in found.sentence


def test_a_handful_of_pairs_makes_no_curve():
    curve = convergence_of_pairs(some_pairs(MIN_PAIRS - 1))
    assert curve.points == ()
    assert curve.error_95_now is None
    for found in curve.recommendations:
        assert found.num_ratings_per_rule is None
        assert "99 pairs are too few" in found.sentence
    assert len(convergence_of_pairs(some_pairs(MIN_PAIRS), num_draws=40).points) > 1


def test_a_single_rule_has_weight_1_after_any_number():
    curve = convergence_of_pairs(some_pairs(200, num_rules=1), num_draws=40)
    assert curve.error_95_now == 0.0
    found = recommendation(curve, 0.01)
    assert found.num_pairs == curve.points[0].num_pairs


def test_a_rule_that_never_repeats_a_rating_promises_nothing():
    # One rule has two levels, the other a new one every time: its entropy grows as ln n for ever.
    rng = np.random.default_rng(0)
    chosen = np.stack([rng.integers(0, 2, 2000), rng.random(2000)], axis=1)
    rejected = np.stack([rng.integers(0, 2, 2000), rng.random(2000)], axis=1)
    curve = convergence_of_pairs(rated_pairs(chosen, rejected), num_draws=40)
    assert curve.error_95_now is None
    for found in curve.recommendations:
        assert found.num_ratings_per_rule is None
        assert "100% of the ratings of rule rule-1 occur once only" in found.sentence


def test_a_curve_that_does_not_fall_promises_nothing(monkeypatch: pytest.MonkeyPatch):
    flat = ErrorCurve(noise=1.0, bias=0.0, misfit=0.3, smallest_size=25)
    monkeypatch.setattr("encore.evidence.convergence.fit_error_curve", lambda *_, **__: flat)
    curve = convergence_of_pairs(some_pairs(200), num_draws=40)
    assert curve.error_95_now is None
    for found in curve.recommendations:
        assert found.num_ratings_per_rule is None
        assert "may never settle" in found.sentence


def test_a_rule_that_small_samples_miss_leaves_gaps_and_a_note():
    # 4 of 1000 pairs are rated by the second rule: most samples of 25 hold none of them.
    pairs = some_pairs(1000, num_rules=2)
    pairs.chosen_PR[4:, 1] = np.nan
    pairs.rejected_PR[4:, 1] = np.nan
    curve = convergence_of_pairs(pairs, num_draws=40)
    assert curve.points[0].error_95 is None
    assert any("some rule too often has no rating" in note for note in curve.notes)
    json.dumps(curve.as_dict(), allow_nan=False)


def test_work_is_bounded_and_said(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("encore.evidence.convergence._WORK", 1)
    monkeypatch.setattr("encore.evidence.convergence._MAX_RATINGS", 1000)
    curve = convergence_of_pairs(some_pairs(400), num_draws=400)
    assert curve.num_draws == 40
    # 1000 ratings under 5 rules, two a pair: 100 pairs.
    assert curve.points[-1].num_pairs == 100
    notes = "\n".join(curve.notes)
    assert "40 samples of each size were drawn instead of 400" in notes
    assert "100 of 400 pairs" in notes


def test_a_tiny_temperature_divides_by_no_weight_of_zero():
    curve = convergence_of_pairs(some_pairs(200), tau=1e-4, num_draws=40)
    assert curve.points[-1].error_95 is not None


# --- input ----------------------------------------------------------------------------------------


def test_files_and_pairs_in_memory_give_the_same(tmp_path: Path):
    pairs = some_pairs(150)
    pq.write_table(table_of(pairs), tmp_path / "ratings.parquet")
    found = convergence(tmp_path / "ratings.parquet", num_draws=40)
    assert found == convergence_of_pairs(pairs, num_draws=40)
    assert found.rule_ids == pairs.rule_ids


def test_a_rule_without_ratings_is_named():
    pairs = some_pairs(150, num_rules=2)
    pairs.chosen_PR[:, 1] = np.nan
    pairs.rejected_PR[:, 1] = np.nan
    with pytest.raises(InputError, match="rule rule-1: none of its ratings is a number"):
        convergence_of_pairs(pairs)


@pytest.mark.parametrize(
    ("parameters", "problem"),
    [
        ({"num_draws": 10}, "number of draws 10"),
        ({"targets": (0.0,)}, "target 0.0"),
        ({"targets": (1.5,)}, "target 1.5"),
        ({"tau": -1.0}, "tau -1.0"),
    ],
)
def test_impossible_parameters_are_one_line(parameters: dict, problem: str):
    with pytest.raises(InputError, match=problem):
        convergence_of_pairs(some_pairs(120), **parameters)
