"""Closed-form heads are exact with missing targets, and are near 0 on noise."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from encore.core.errors import InputError
from encore.training.baselines import linear_probe
from encore.training.baselines.linear_probe import fit_bradley_terry, fit_ridge

seeds = st.integers(0, 2**31)


def normal(shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


@given(seeds)
def test_a_head_is_the_ridge_solution_with_the_least_cross_validation_error_on_its_rows(seed):
    generator = np.random.default_rng(seed)
    hidden_ND = (generator.normal(size=(30, 4)) + 2).astype(np.float32)
    target_NR = generator.normal(size=(30, 3)) - 1
    target_NR[generator.random((30, 3)) < 0.4] = np.nan
    target_NR[0] = 1.0
    penalties = [1e-3, 0.1, 10.0]
    head_RD, offset_R = fit_ridge(hidden_ND, target_NR, penalties=penalties)
    for head, target_N in enumerate(target_NR.T):
        rows = np.flatnonzero(~np.isnan(target_N))
        n, x = len(rows), hidden_ND[rows].astype(np.float64)
        # The constant is one more projection, onto the mean.
        x_mean, y_mean, y = x.mean(axis=0), target_N[rows].mean(), target_N[rows]
        x = x - x_mean
        candidates = []
        for penalty in penalties:
            damped = x.T @ x + penalty * np.trace(x.T @ x) / 4 * np.eye(4)
            hat = x @ np.linalg.solve(damped, x.T) + np.full((n, n), 1 / n)
            residual = y - hat @ y
            error = n * (residual**2).sum() / (n - np.trace(hat)) ** 2
            candidates.append((error, np.linalg.solve(damped, x.T @ (y - y_mean))))
        _, expected_D = min(candidates, key=lambda candidate: candidate[0])
        assert head_RD[head] == pytest.approx(expected_D, rel=1e-5, abs=1e-9)
        assert offset_R[head] == pytest.approx(y_mean - expected_D @ x_mean, rel=1e-5)


def test_blocks_change_no_head_and_more_dimensions_than_rows_can_be_fitted(monkeypatch):
    hidden_ND, target_NR = normal((100, 5)), normal((100, 2), seed=1)
    expected_RD, _ = fit_ridge(hidden_ND, target_NR)
    monkeypatch.setattr("encore.training.baselines.linear_probe.ROWS_PER_BLOCK", 7)
    head_RD, _ = fit_ridge(hidden_ND, target_NR)
    assert head_RD == pytest.approx(expected_RD)
    head_RD, _ = fit_ridge(normal((20, 50)), normal((20, 1), seed=1))
    assert np.isfinite(head_RD).all()


def test_missing_targets_bad_states_and_a_single_group_are_refused():
    hidden_ND, target_NR = normal((10, 2)), normal((10, 3))
    broken_ND, partly_NR = hidden_ND.copy(), target_NR.copy()
    broken_ND[7, 1], partly_NR[:, 1] = np.inf, np.nan
    one_group = np.zeros(10, dtype=int)
    for fit, message in (
        (lambda: fit_ridge(hidden_ND, partly_NR), "head 1: none of the 10 responses has a target"),
        (lambda: fit_ridge(broken_ND, target_NR), "embedding 7 of 10 is not finite"),
        (
            lambda: fit_bradley_terry(broken_ND, group_P=np.arange(10)),
            "embedding 7 of 10 is not finite",
        ),
        (
            lambda: fit_bradley_terry(hidden_ND, group_P=one_group),
            "1 group of pairs; expected two or more",
        ),
    ):
        with pytest.raises(InputError, match=message):
            fit()


def preferences(num_pairs, head_D, *, seed=0):
    """Return pairs whose chosen response is drawn by the model that the probe assumes."""
    generator = np.random.default_rng(seed)
    first, second = generator.normal(size=(2, num_pairs, len(head_D)))
    wins = generator.random(num_pairs) < 1 / (1 + np.exp(-(first - second) @ head_D))
    chosen = np.where(wins[:, None], first, second)
    return chosen, np.where(wins[:, None], second, first)


def test_the_probe_is_the_optimum_of_its_loss():
    chosen, rejected = preferences(300, np.array([0.8, -0.3]), seed=1)
    scale = np.sqrt(np.square(chosen - rejected).mean())
    x = (chosen - rejected) / scale
    groups = np.arange(300)
    head = fit_bradley_terry(chosen - rejected, group_P=groups, penalties=[0.1]) * scale
    gradient = 0.1 * head - (x / (1 + np.exp(x @ head))[:, None]).mean(axis=0)
    assert gradient == pytest.approx(0, abs=1e-6)


def test_the_seed_draws_the_folds_that_choose_the_penalty(monkeypatch):
    # Ten pairs of one dimension; a fit reads the eight training pairs. Of 10! / (2!^5 · 5!) =
    # 945 divisions into pairs, seeds 0 and 1 draw different ones.
    difference_PD = np.arange(1.0, 11.0)[:, None]
    scale = np.sqrt(38.5)  # their mean square is (1 + 4 + ... + 100) / 10 = 38.5
    train_sets: list[frozenset[float]] = []
    real = linear_probe.minimise_logistic

    def record_pairs(train_PD, start_D, *, penalty):
        train_sets.append(frozenset(np.rint(train_PD[:, 0] * scale).tolist()))
        return real(train_PD, start_D, penalty=penalty)

    monkeypatch.setattr(linear_probe, "minimise_logistic", record_pairs)
    folds_by_seed = []
    for seed in (0, 0, 1):
        train_sets.clear()
        fit_bradley_terry(difference_PD, group_P=np.arange(10), penalties=[0.1], seed=seed)
        folds_by_seed.append(set(train_sets))
    assert folds_by_seed[0] == folds_by_seed[1] != folds_by_seed[2]


def margin_size(difference_PD, group_P) -> float:
    """Return the mean distance of a pair's rewards; near 0 under a strong penalty."""
    head_D = fit_bradley_terry(difference_PD, group_P=group_P)
    return float(np.abs(difference_PD @ head_D).mean())


def test_copies_of_a_pair_in_one_group_do_not_hide_overfitting():
    # 40 pairs of random preference, each eight times, in more dimensions than pairs: parted by row
    # the folds see their own copies and want no penalty; parted by group they learn nothing.
    copies = np.repeat(np.arange(40), 8)
    difference_PD = (normal((40, 60)) - normal((40, 60), seed=1))[copies]
    by_row = margin_size(difference_PD, np.arange(320))
    assert margin_size(difference_PD, copies) < 0.3 * by_row
