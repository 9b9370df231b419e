"""Reproduced, not reproduced, depends on ties: two policies, their signs and their null bands."""

from __future__ import annotations

import pytest

from encore.analysis.claim_verdicts import verdicts
from encore.analysis.correlation import Correlation

BAND = (-0.6, 0.6)


def rows(
    half: float | None,
    untied: float | None,
    *,
    source: str = "all",
    band: tuple[float, float] = BAND,
) -> list[Correlation]:
    """Correlations of one source with these r."""
    return [
        Correlation(
            source=source,
            entropy="discrete",
            accuracy=policy,
            num_rules=10,
            pearson_r=r,
            null_low=None if r is None else band[0],
            null_high=None if r is None else band[1],
        )
        for policy, r in (("half", half), ("untied", untied))
    ]


@pytest.mark.parametrize(
    ("half", "untied", "band", "expected"),
    [
        (-0.9, -0.8, BAND, "reproduced"),
        (0.9, 0.8, BAND, "not reproduced"),
        (-0.9, 0.8, BAND, "depends on ties"),  # opposite signs
        (-0.9, -0.5, BAND, "depends on ties"),  # one within its band
        (0.9, 0.5, BAND, "depends on ties"),
        (-0.5, -0.5, BAND, "depends on ties"),  # both within: labels that mean nothing do this
        (-0.6, -0.6, BAND, "depends on ties"),  # the ends belong to the band
        (-0.9, None, BAND, "depends on ties"),
        (None, 0.9, BAND, "depends on ties"),
        (-0.3, -0.3, (-0.9, -0.7), "depends on ties"),  # negative, but weaker than by chance
    ],
)
def test_both_policies_must_say_the_same_outside_their_bands(
    half: float | None, untied: float | None, band: tuple[float, float], expected: str
) -> None:
    (found,) = verdicts(rows(half, untied, band=band))
    assert found.verdict == expected
    for r in (half, untied):
        assert (f"{r:+.2f}" if r is not None else "no r") in found.reason


def test_each_source_has_its_own_and_one_without_any_r_has_none() -> None:
    found = [
        row
        for source, r in (("good", -0.9), ("none", None), ("bad", 0.9))
        for row in rows(r, r, source=source)
    ]
    by_source = [(one.source, one.verdict) for one in verdicts(found)]
    assert by_source == [("good", "reproduced"), ("bad", "not reproduced")]
