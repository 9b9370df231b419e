"""Reproduced, not reproduced, depends on ties: two policies, their signs and their null bands."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from encore.analysis.correlation import Correlation
from encore.analysis.statistics import TIE_POLICIES, TiePolicy
from encore.analysis.verdicts import verdicts

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
