"""Reproduced, not reproduced, depends on ties: two policies, their signs and their null bands."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from encore.analysis.analyze import Analysis, analyze
from encore.analysis.correlation import Correlation
from encore.analysis.statistics import TIE_POLICIES, TiePolicy
from encore.analysis.verdicts import verdicts
from tests.ratings_files import ratings_table

BAND = (-0.6, 0.6)


def rows(**r_of: float | None) -> list[Correlation]:
    """Correlations of one source with these r and a null band from -0.6 to 0.6."""
    return [row(policy, r_of.get(policy)) for policy in TIE_POLICIES]


def row(
    policy: TiePolicy, r: float | None, *, source: str = "all", band: Any = BAND
) -> Correlation:
    low, high = band if r is not None else (None, None)
    return Correlation(
        source=source,
        entropy="discrete",
        accuracy=policy,
        num_rules=10,
        pearson_r=r,
        null_low=low,
        null_high=high,
    )


def verdict_of(correlation: list[Correlation]) -> tuple[str, str]:
    """The verdict on a source whose two kinds of entropy correlate alike."""
    whole = correlation + [dataclasses.replace(r, entropy="differential") for r in correlation]
    discrete, differential = verdicts(whole)
    assert discrete.verdict == differential.verdict
    return discrete.verdict, discrete.reason


@pytest.mark.parametrize(
    ("half", "untied", "expected"),
    [
        (-0.9, -0.8, "reproduced"),
        (0.9, 0.8, "not reproduced"),
        (-0.9, 0.8, "depends on ties"),  # opposite signs
        (-0.9, -0.5, "depends on ties"),  # one within its band
        (0.9, 0.5, "depends on ties"),
        (-0.5, -0.5, "depends on ties"),  # both within: labels that mean nothing do this
        (0.1, -0.1, "depends on ties"),
        (-0.6, -0.6, "depends on ties"),  # the ends belong to the band
        (-0.9, None, "depends on ties"),
        (None, 0.9, "depends on ties"),
    ],
)
def test_both_policies_must_say_the_same_outside_their_bands(
    half: float | None, untied: float | None, expected: str
) -> None:
    verdict, reason = verdict_of(rows(half=half, untied=untied))
    assert verdict == expected
    for r in (half, untied):
        assert (f"{r:+.2f}" if r is not None else "no r") in reason


def test_a_negative_r_above_its_band_reproduces_nothing() -> None:
    # The band of meaningless labels lies at -0.9 to -0.7: r = -0.3 is weaker than chance.
    band = (-0.9, -0.7)
    found = [row(policy, -0.3, band=band) for policy in TIE_POLICIES]
    assert verdict_of(found)[0] == "depends on ties"


def test_each_source_has_its_own_and_one_without_any_r_has_none() -> None:
    found = [
        dataclasses.replace(one, source=source, entropy=entropy)
        for source, r in (("good", -0.9), ("none", None), ("bad", 0.9))
        for entropy in ("discrete", "differential")
        for one in rows(half=r, untied=r)
    ]
    by_source = [(v.source, v.verdict) for v in verdicts(found) if v.entropy == "discrete"]
    assert by_source == [("good", "reproduced"), ("bad", "not reproduced")]


# --- whole studies --------------------------------------------------------------------------------


def study(rng: np.random.Generator, *, noise: np.ndarray, signal: np.ndarray) -> Analysis:
    """2,000 pairs; a rule's ratings are a shared quality times its signal, plus its noise."""
    num_pairs = 2000
    quality = rng.normal(size=(num_pairs, 2)) + np.array([0.5, -0.5])
    found = []
    for k, (own_noise, own_signal) in enumerate(zip(noise, signal, strict=True)):
        raw = 0.5 + own_signal * quality + own_noise * rng.normal(size=(num_pairs, 2))
        rating = np.round(np.clip(raw, 0, 1), 1)
        found += [
            (f"p{i}", "s", response, f"rule-{k:02d}", float(rating[i, j]))
            for i in range(num_pairs)
            for j, response in enumerate(("chosen", "rejected"))
        ]
    return analyze(ratings_table(found))


def test_judge_noise_reproduces_the_claim() -> None:
    # The same signal under ever more noise: entropy rises, accuracy falls.
    analysis = study(
        np.random.default_rng(1), noise=np.linspace(0.02, 0.4, 10), signal=np.full(10, 0.1)
    )
    assert analysis.verdicts[0].verdict == "reproduced"


def test_labels_that_mean_nothing_reproduce_nothing_and_the_bias_is_said() -> None:
    rng = np.random.default_rng(3)
    num_pairs, spread = 1500, np.linspace(0.05, 0.4, 10)
    raw = 0.5 + spread * rng.normal(size=(num_pairs, 2, 10))
    rating = np.round(np.clip(raw, 0, 1), 1)
    found = [
        (f"p{i}", "s", response, f"rule-{k}", float(rating[i, j, k]))
        for i in range(num_pairs)
        for j, response in enumerate(("chosen", "rejected"))
        for k in range(10)
    ]
    analysis = analyze(ratings_table(found))
    assert analysis.verdicts[0].verdict == "depends on ties"
    by_policy = {c.accuracy: c for c in analysis.correlation if c.entropy == "discrete"}
    assert by_policy["strict"].pearson_r > 0.8
    assert by_policy["inclusive"].pearson_r < -0.8
    (note,) = [note for note in analysis.notes if "biased by ties" in note]
    for row_of in (by_policy["strict"], by_policy["inclusive"]):
        assert f"{row_of.null_low:+.2f} to {row_of.null_high:+.2f}" in note
