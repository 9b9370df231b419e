"""Four copies of a prompt's pair say no more than one: schemes, runs, probes, people."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from encore.analysis.rater_agreement import alpha_interval, kappa_interval
from encore.analysis.run_comparison import compare_ratings, compare_runs
from encore.rules.probe_effects import lower_bounds
from encore.warehouse import PairRatings
from encore.weighting.label_curve import label_curve
from encore.weighting.scheme_comparison import compare_schemes, sweep_tau
from encore.weighting.scheme_options import SchemeOptions
from encore.weighting.weigh import open_evidence
from tests.worlds.prompts import table_with_prompts
from tests.worlds.ratings import rated_pairs, table_of_pairs

pytestmark = pytest.mark.services

# Suffixes: P pairs, R rules.

COPIES = 4


def pairs_of(num_prompts: int, *, copies: int = 1) -> PairRatings:
    """Return pairs under three rules, of which the first is right in 75 %."""
    rng = np.random.default_rng(3)
    rejected_PR = rng.integers(2, 8, (num_prompts, 3)) / 10
    step_PR = np.where(rng.random((num_prompts, 3)) < [0.75, 0.6, 0.5], 0.2, -0.2)
    pairs = rated_pairs(
        *(
            np.repeat(rating_PR, copies, axis=0)
            for rating_PR in (rejected_PR + step_PR, rejected_PR)
        )
    )
    prompt_P = np.repeat(np.arange(num_prompts, dtype=np.uint64), copies)
    return dataclasses.replace(pairs, prompt_P=prompt_P, grouped_by="prompt")


@pytest.fixture(scope="module")
def tables() -> tuple[Any, Any, Any]:
    """Return one pair a prompt, four copies with their prompts, and copies without prompts."""
    copies = pairs_of(120, copies=COPIES)
    return (table_with_prompts(pairs_of(120)), table_with_prompts(copies), table_of_pairs(copies))


def test_copies_make_no_accuracy_of_a_scheme_more_certain(tables):
    options = SchemeOptions(labels=None)
    single, copied, independent = (compare_schemes(table, options=options) for table in tables)
    for scheme in ("encore", "uniform", "single", "bradley-terry"):
        rows = [
            next(row for row in comparison.rows if row.vector.scheme == scheme)
            for comparison in (single, copied, independent)
        ]
        widths = [row.accuracy_high - row.accuracy_low for row in rows]
        assert widths[1] == pytest.approx(widths[0], rel=0.05)
        assert widths[2] < 0.6 * widths[0]
        if rows[0].held_out_low is not None:
            held_out = [row.held_out_high - row.held_out_low for row in rows]
            assert held_out[1] > 0.8 * held_out[0]
    assert copied.folds_grouped_by == "prompt"
    assert independent.folds_grouped_by == "pair"


def test_copies_make_no_temperature_more_certain(tables):
    sweeps = []
    for table in tables[:2]:
        with open_evidence(table) as evidence:
            sweeps.append(sweep_tau(evidence, taus=(2.0,)))
    widths = [sweep.accuracy_highs[0] - sweep.accuracy_lows[0] for sweep in sweeps]
    assert widths[1] == pytest.approx(widths[0], rel=0.05)


def test_a_curve_of_labels_holds_out_prompts_and_counts_them(tables, monkeypatch):
    monkeypatch.setattr("encore.weighting.label_curve.NUM_LABELS", (20,))  # and all: a minute less
    curves = []
    for table in tables[1:]:
        with open_evidence(table) as evidence:
            curves.append(label_curve(evidence, SchemeOptions()))
    grouped, independent = curves
    assert (grouped.grouped_by, independent.grouped_by) == ("prompt", "pair")
    widths = [curve.encore.high - curve.encore.low for curve in curves]
    assert widths[0] > 1.8 * widths[1]  # a factor of sqrt(4), less what is rounded
    widths = [curve.shrunk[-1].high - curve.shrunk[-1].low for curve in curves]
    assert widths[0] > 1.5 * widths[1]


def test_equal_runs_have_intervals_with_a_width_and_copies_do_not_narrow_them(tables):
    """All 240 responses of 120 prompts are equal: the exact interval begins at 0.025^(1/120)."""
    single, copied = (compare_runs(table, table).rules[0] for table in tables[:2])
    assert single.agreement.value == 1.0
    assert single.agreement.low == pytest.approx(0.025 ** (1 / 120), abs=0.002)
    assert copied.agreement.low == pytest.approx(single.agreement.low, abs=0.002)
    assert (single.flip_rate.value, single.flip_rate.low) == (0.0, 0.0)
    assert single.flip_rate.high == pytest.approx(1 - 0.025 ** (1 / 120))
    for row in (single, copied):
        # Bonett and Price with no difference: 1.96 sqrt(2) / 122 on either side.
        assert row.accuracy_difference.value == 0.0
        assert row.accuracy_difference.high == pytest.approx(1.96 * np.sqrt(2) / 122, rel=0.02)


def test_copies_narrow_no_difference_of_two_runs():
    rng = np.random.default_rng(1)
    first, second = rng.integers(0, 11, (2, 2, 100, 1)) / 10
    ratings = np.stack([first, second])
    (single,) = compare_ratings(["kind"], ratings, num_draws=200)
    (copied,) = compare_ratings(
        ["kind"],
        np.repeat(ratings, COPIES, axis=2),
        group_P=np.repeat(np.arange(100), COPIES),
        num_draws=200,
    )
    for name in ("agreement", "correlation", "kappa", "mean_difference", "accuracy_difference"):
        expected, estimate = getattr(single, name), getattr(copied, name)
        assert estimate.value == pytest.approx(expected.value)
        width = expected.high - expected.low
        assert estimate.high - estimate.low == pytest.approx(width, rel=0.25)


def test_copies_raise_no_bound_of_a_probe():
    change_2PR = np.random.default_rng(2).normal(0.1, 0.2, (2, 60, 2))
    _, bound_R = lower_bounds(change_2PR, level=0.01)
    copied_2PR, group_P = np.repeat(change_2PR, COPIES, axis=1), np.repeat(np.arange(60), COPIES)
    _, copied_R = lower_bounds(copied_2PR, level=0.01, group_P=group_P)
    np.testing.assert_allclose(copied_R, bound_R)
    _, few_R = lower_bounds(copied_2PR, level=0.01, group_P=group_P // 3)  # 20 prompts
    assert np.isnan(few_R).all()


def test_copies_make_no_agreement_of_raters_more_certain():
    rng = np.random.default_rng(4)
    people_I = rng.integers(0, 2, 80).astype(np.float64)
    judge_I = np.where(rng.random(80) < 0.8, people_I, 1 - people_I)
    labels, groups = np.stack([people_I, judge_I]), np.repeat(np.arange(80), COPIES)
    copies = np.repeat(labels, COPIES, axis=1)
    for interval_of in (alpha_interval, lambda labels, groups: kappa_interval(*labels, groups)):
        single, copied = interval_of(labels, None), interval_of(copies, groups)
        independent = interval_of(copies, None)
        width = single.high - single.low
        assert copied.high - copied.low == pytest.approx(width, rel=0.1)
        assert independent.high - independent.low < 0.6 * width
