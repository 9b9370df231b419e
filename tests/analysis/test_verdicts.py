"""Verdicts follow from the signs of r and the null bands under two tie policies."""

from __future__ import annotations

import dataclasses

import pytest

from encore.analysis.claim_verdicts import verdicts
from encore.analysis.correlation import Correlation

BAND = (-0.6, 0.6)


@pytest.mark.parametrize(
    ("half", "untied", "band", "expected"),
    [
        (-0.9, -0.8, BAND, "reproduced"),
        (0.9, 0.8, BAND, "not reproduced"),
        (-0.9, 0.8, BAND, "depends on ties"),  # opposite signs
        (-0.9, -0.5, BAND, "depends on ties"),  # untied is within its band
        (0.9, 0.5, BAND, "depends on ties"),
        (-0.5, -0.5, BAND, "inconclusive"),  # both within: random labels do this
        (-0.5, 0.5, BAND, "inconclusive"),  # opposite signs, but nothing depends on ties
        (-0.6, -0.6, BAND, "inconclusive"),  # the ends belong to the band
        (-0.9, None, BAND, "depends on ties"),
        (-0.3, -0.3, (-0.9, -0.7), "inconclusive"),  # negative, but weaker than by chance
    ],
)
def test_both_policies_must_agree_outside_their_bands(half, untied, band, expected):
    rows = [
        Correlation(
            source="all",
            entropy="discrete",
            accuracy=policy,
            num_rules=10,
            pearson_r=r,
            null_low=None if r is None else band[0],
            null_high=None if r is None else band[1],
        )
        for policy, r in (("half", half), ("untied", untied))
    ]
    assert not verdicts([dataclasses.replace(row, pearson_r=None) for row in rows])
    (verdict,) = verdicts(rows)
    assert verdict.verdict == expected
    for r in (half, untied):
        assert (f"{r:+.2f}" if r is not None else "no r") in verdict.reason
