"""Closed-form heads: exact under missing targets, good where there is signal, silent on noise."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from encore.errors import InputError
from encore.training.probe import fit_bradley_terry, fit_ridge, fit_ridge_with_offsets
from encore.training.ridge import moments_of
from tests.training.planted import NOISE_HEAD, planted_targets, r_squared

seeds = st.integers(0, 2**31)


def normal(shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


# --- ridge: exactness -------------------------------------------------------------------------


def test_targets_without_noise_are_recovered_whatever_is_missing():
    hidden_ND, head_RD = normal((200, 8)), normal((5, 8), seed=1)
    target_NR = hidden_ND @ head_RD.T
    target_NR[normal((200, 5), seed=2) < -0.52] = np.nan  # 30 % of a normal lie below
    assert np.isnan(target_NR).mean() == pytest.approx(0.3, abs=0.05)
    assert fit_ridge(hidden_ND, target_NR, penalties=[1e-12]) == pytest.approx(head_RD, abs=1e-9)


def test_targets_that_are_missing_where_they_would_be_high_bend_no_head():
    # Missingness follows the embedding itself. A null read as 0 would flatten the head; here the
    # mean of the estimates over 40 worlds is the truth. Noise of 0.1 and 140 rows a world give
    # an estimate a standard error of 0.1 / sqrt(140) = 0.0085, and their mean one of 0.0013.
    head_D = np.array([1.0, -0.5, 0.25])
    found = []
    for seed in range(40):
        hidden_ND = normal((200, 3), seed=seed)
        target_N = hidden_ND @ head_D + 0.1 * normal(200, seed=1000 + seed)
        target_N[hidden_ND[:, 0] > 0.52] = np.nan
        found.append(fit_ridge(hidden_ND, target_N[:, None], penalties=[1e-9])[0])
    assert np.mean(found, axis=0) == pytest.approx(head_D, abs=4 * 0.0016)


@given(seeds, st.floats(1e-4, 1e2))
def test_a_head_is_the_ridge_solution_over_its_own_rows(seed, penalty):
    generator = np.random.default_rng(seed)
    hidden_ND = generator.normal(size=(30, 6)).astype(np.float32)
    target_NR = generator.normal(size=(30, 3))
    target_NR[generator.random((30, 3)) < 0.4] = np.nan
    target_NR[0] = 1.0
    found = fit_ridge(hidden_ND, target_NR, penalties=[penalty])
    for head, target_N in enumerate(target_NR.T):
        rows = ~np.isnan(target_N)
        x = hidden_ND[rows].astype(np.float64)
        gram = x.T @ x
        damped = gram + penalty * np.trace(gram) / 6 * np.eye(6)
        assert found[head] == pytest.approx(np.linalg.solve(damped, x.T @ target_N[rows]), rel=1e-6)


@given(seeds, st.booleans())
def test_the_cross_validation_error_is_that_of_the_hat_matrix(seed, has_offset):
    generator = np.random.default_rng(seed)
    x, y = generator.normal(size=(25, 4)) + 2, generator.normal(size=(25, 2)) - 1
    penalties = np.array([1e-3, 0.1, 10.0])
    moments = moments_of(x, y, np.arange(25), has_offset=has_offset)
    # A constant beside the heads is one more projection, onto the mean.
    constant = np.full((25, 25), 1 / 25) if has_offset else np.zeros((25, 25))
    x = x - constant @ x
    for penalty, found_K in zip(penalties, moments.gcv_errors(penalties), strict=True):
        damped = x.T @ x + penalty * np.trace(x.T @ x) / 4 * np.eye(4)
        hat = x @ np.linalg.solve(damped, x.T) + constant
        residual = y - hat @ y
        expected_K = 25 * (residual**2).sum(axis=0) / (25 - np.trace(hat)) ** 2
        assert found_K == pytest.approx(expected_K)


@given(seeds)
def test_a_constant_takes_up_whatever_embeddings_and_targets_have_in_common(seed):
    # Moving embeddings and targets by constants moves the offset alone, also where rows are
    # missing, and however far: embeddings of language models lie far from 0.
    generator = np.random.default_rng(seed)
    hidden_ND, target_NR = generator.normal(size=(40, 5)), generator.normal(size=(40, 3))
    target_NR[generator.random((40, 3)) < 0.3] = np.nan
    fit = fit_ridge_with_offsets(hidden_ND, target_NR)
    moved_D, moved_R = 1000 * generator.normal(size=5), generator.normal(size=3)
    moved = fit_ridge_with_offsets(hidden_ND + moved_D, target_NR + moved_R)
    assert moved.head_RD == pytest.approx(fit.head_RD, rel=1e-5, abs=1e-9)
    expected_R = fit.offset_R + moved_R - fit.head_RD @ moved_D
    assert moved.offset_R == pytest.approx(expected_R, rel=1e-5, abs=1e-5)


def test_residuals_of_a_head_with_a_constant_have_mean_0():
    hidden_ND, target_NR = normal((60, 4)) + 3, normal((60, 2), seed=1) - 5
    target_NR[:20, 1] = np.nan
    fit = fit_ridge_with_offsets(hidden_ND, target_NR, penalties=[0.5])
    residual_NR = target_NR - (hidden_ND @ fit.head_RD.T + fit.offset_R)
    assert np.nanmean(residual_NR, axis=0) == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("fit", [fit_ridge, lambda *given: fit_ridge_with_offsets(*given).head_RD])
def test_many_rows_are_the_same_as_few(monkeypatch, fit):
    hidden_ND, target_NR = normal((100, 5)), normal((100, 2), seed=1)
    whole = fit(hidden_ND, target_NR)
    monkeypatch.setattr("encore.training.ridge.ROWS_PER_BLOCK", 7)
    assert fit(hidden_ND, target_NR) == pytest.approx(whole)


def test_more_dimensions_than_rows_is_no_trouble():
    hidden_ND, target_N = normal((20, 50)), normal((20, 1), seed=1)
    assert np.isfinite(fit_ridge(hidden_ND, target_N)).all()


# --- ridge: learning --------------------------------------------------------------------------


@pytest.mark.parametrize("missing_share", [0.0, 0.3])
@pytest.mark.parametrize("chosen_by", ["cross-validation", "held-out rows"])
def test_planted_targets_are_learnt_and_noise_is_not(missing_share, chosen_by):
    # Embeddings do not have mean 0, centred targets do: a constant is needed.
    hidden_ND = (normal((3000, 64), seed=5) + normal(64, seed=8)).astype(np.float32)
    target_NR = planted_targets(hidden_ND, num_planted=4, ceiling=0.9, seed=6)
    train, unseen = np.arange(2000), np.arange(2000, 3000)
    given_NR = target_NR[train].copy()
    given_NR[np.random.default_rng(7).random(given_NR.shape) < missing_share] = np.nan
    held_out = train >= 1600 if chosen_by == "held-out rows" else None
    fit = fit_ridge_with_offsets(hidden_ND[train], given_NR, is_held_out_N=held_out)
    predicted_NR = hidden_ND[unseen] @ fit.head_RD.T + fit.offset_R
    r2_R = r_squared(target_NR[unseen], predicted_NR)
    # Least squares in 64 dimensions from 1,400 rows or more loses about 0.1 * 64 / 1,336 = 0.005
    # of the ceiling of 0.9.
    assert r2_R[:NOISE_HEAD] == pytest.approx(0.89, abs=0.02)
    assert r2_R[NOISE_HEAD] == pytest.approx(0.0, abs=0.02)
    # Missing ratings shift no head: residuals of variance 0.1 over 1,000 have a standard error of
    # 0.01, of the noise head 0.03.
    bias_R = (predicted_NR - target_NR[unseen]).mean(axis=0)
    assert abs(bias_R[:NOISE_HEAD]).max() < 0.05
    assert abs(bias_R[NOISE_HEAD]) < 0.12


# --- ridge: bad input -------------------------------------------------------------------------


def test_a_head_without_a_target_is_refused():
    target_NR = normal((10, 3))
    target_NR[:, 1] = np.nan
    with pytest.raises(InputError, match="head 1: none of the 10 responses has a target"):
        fit_ridge(normal((10, 2)), target_NR)


@pytest.mark.parametrize("penalties", [[], [0.0], [-1.0], [float("inf")]])
def test_penalties_that_are_none_are_refused(penalties):
    with pytest.raises(InputError, match="expected at least one, each above 0"):
        fit_ridge(normal((10, 2)), normal((10, 1)), penalties=penalties)
    with pytest.raises(InputError, match="expected at least one, each above 0"):
        fit_bradley_terry(normal((10, 2)), normal((10, 2), seed=1), penalties=penalties)


def test_an_embedding_that_is_not_finite_is_named():
    hidden_ND = normal((10, 2))
    hidden_ND[7, 1] = np.inf
    with pytest.raises(InputError, match="embedding 7 of 10 is not finite"):
        fit_ridge(hidden_ND, normal((10, 1)))
    with pytest.raises(InputError, match="embedding 7 of 10 is not finite"):
        fit_bradley_terry(normal((10, 2)), hidden_ND)


def test_held_out_rows_without_a_target_are_refused():
    target_NR = normal((10, 1))
    target_NR[8:] = np.nan
    with pytest.raises(InputError, match="8 responses to learn from and 0 held out"):
        fit_ridge(normal((10, 2)), target_NR, is_held_out_N=np.arange(10) >= 8)


# --- Bradley-Terry ----------------------------------------------------------------------------


def preferences(num_pairs, head_D, *, seed=0):
    """Pairs whose preferred response is drawn by the model that the probe assumes."""
    generator = np.random.default_rng(seed)
    first, second = generator.normal(size=(2, num_pairs, len(head_D)))
    wins = generator.random(num_pairs) < 1 / (1 + np.exp(-(first - second) @ head_D))
    chosen = np.where(wins[:, None], first, second)
    return chosen, np.where(wins[:, None], second, first)


def test_preferences_recover_the_reward_behind_them():
    head_D = np.array([1.0, -0.5, 0.25, 0.0])
    fit = fit_bradley_terry(*preferences(20_000, head_D))
    # The information of a pair about a weight is E[p (1 - p) d²] with d² = 2 and p (1 - p) near
    # 0.17: a standard error of 1 / sqrt(20,000 * 0.34) = 0.012.
    assert fit.head_D == pytest.approx(head_D, abs=4 * 0.012)


def test_the_probe_is_the_optimum_of_its_loss():
    chosen, rejected = preferences(300, np.array([0.8, -0.3]), seed=1)
    fit = fit_bradley_terry(chosen, rejected, penalties=[0.1])
    scale = np.sqrt(np.square(chosen - rejected).mean())
    x, head = (chosen - rejected) / scale, fit.head_D * scale
    gradient = 0.1 * head - (x / (1 + np.exp(x @ head))[:, None]).mean(axis=0)
    assert gradient == pytest.approx(0, abs=1e-6)
    assert fit.held_out_loss_S.size == 0


def test_turning_all_preferences_round_turns_the_reward_round():
    chosen, rejected = preferences(200, np.array([0.8, -0.3, 0.1]))
    fit, turned = fit_bradley_terry(chosen, rejected), fit_bradley_terry(rejected, chosen)
    assert turned.head_D == pytest.approx(-fit.head_D, abs=1e-6)
    assert turned.penalty == fit.penalty


def test_the_scale_of_embeddings_changes_no_ranking():
    chosen, rejected = preferences(200, np.array([0.8, -0.3, 0.1]))
    fit = fit_bradley_terry(chosen, rejected)
    wide = fit_bradley_terry(chosen * 1000, rejected * 1000)
    assert wide.head_D * 1000 == pytest.approx(fit.head_D, rel=1e-4)


def test_preferences_by_lot_get_a_strong_penalty_and_signal_a_weak_one():
    noise = fit_bradley_terry(normal((300, 40)), normal((300, 40), seed=1))
    signal = fit_bradley_terry(*preferences(3000, np.full(4, 0.7)))
    assert noise.penalty > 10 * signal.penalty
    # Knowing nothing costs log 2 a pair; the best penalty does not do worse by much.
    assert noise.held_out_loss_S.min() == pytest.approx(np.log(2), abs=0.02)


def test_copies_of_a_pair_in_one_group_do_not_hide_overfitting():
    # 40 pairs of random preference, each eight times, in more dimensions than pairs: parted by row
    # the folds see their own copies and want no penalty; parted by group they learn nothing.
    chosen, rejected = normal((40, 60)), normal((40, 60), seed=1)
    copies = np.repeat(np.arange(40), 8)
    leaky = fit_bradley_terry(chosen[copies], rejected[copies])
    honest = fit_bradley_terry(chosen[copies], rejected[copies], group_P=copies)
    assert leaky.held_out_loss_S.min() < 0.1
    assert honest.held_out_loss_S.min() > 0.6
    assert honest.penalty > 100 * leaky.penalty


def test_pairs_that_cannot_be_told_apart_are_refused():
    with pytest.raises(InputError, match="are equal in all 5 pairs"):
        fit_bradley_terry(np.ones((5, 3)), np.ones((5, 3)))


def test_one_group_alone_cannot_choose_a_penalty():
    with pytest.raises(InputError, match="1 group of pairs; expected two or more"):
        fit_bradley_terry(normal((5, 2)), normal((5, 2), seed=1), group_P=np.zeros(5, dtype=int))
