"""Do rules of higher entropy predict people's preferences worse? The answer for the data at hand.

Ties decide the sign of the correlation, so one tie policy alone answers nothing: the two without an
artefact under meaningless labels (half credit and untied) must agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from encore.analysis.correlation import Correlation
from encore.analysis.statistics import EntropyKind, TiePolicy

#: The two policies that make the headline together.
HEADLINE_POLICIES: tuple[TiePolicy, TiePolicy] = ("half", "untied")

VerdictName = Literal["reproduced", "not reproduced", "depends on ties"]
_Side = Literal["below", "above", "inside", "nowhere"]

#: Where r lies under both headline policies: the verdict, and the finding in words.
_FINDINGS: dict[frozenset[_Side], tuple[VerdictName, str]] = {
    frozenset({"below"}): ("reproduced", "rules of higher entropy have lower accuracy"),
    frozenset({"above"}): (
        "not reproduced",
        "the premise does not hold on these data, rules of higher entropy have higher accuracy",
    ),
    frozenset({"inside"}): (
        "depends on ties",
        "the premise is not shown on these data, labels that mean nothing give such r as well",
    ),
    frozenset({"below", "above"}): ("depends on ties", "the two tie policies say opposite things"),
}
_OTHERWISE: tuple[VerdictName, str] = (
    "depends on ties",
    "the premise is not shown on these data, the two tie policies do not agree",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether the paper's claim holds in one source.

    Attributes:
        source: The data set, or all together.
        entropy: Which entropy.
        verdict: "reproduced": r is negative and below its null band under both headline policies;
            "not reproduced": positive and above it under both; else "depends on ties".
        reason: The same in plain words, with the figures.
    """

    source: str
    entropy: EntropyKind
    verdict: VerdictName
    reason: str


def verdicts(correlation: Sequence[Correlation]) -> tuple[Verdict, ...]:
    """One verdict per source and kind of entropy; none where neither headline policy has an r.

    Args:
        correlation: As `encore.analysis.correlation.correlations` gives it, of one source
            or several.
    """
    by_key = {(row.source, row.entropy, row.accuracy): row for row in correlation}
    found = []
    for source, entropy in dict.fromkeys((row.source, row.entropy) for row in correlation):
        rows = [by_key[source, entropy, policy] for policy in HEADLINE_POLICIES]
        if all(row.pearson_r is None for row in rows):
            continue
        sides, figures = zip(*map(_side_and_figures, rows), strict=True)
        verdict, finding = _FINDINGS.get(frozenset(sides), _OTHERWISE)
        reason = f"{finding}: {', '.join(figures)}"
        found.append(Verdict(source=source, entropy=entropy, verdict=verdict, reason=reason))
    return tuple(found)


def _side_and_figures(row: Correlation) -> tuple[_Side, str]:
    """Where r lies, on its own side of 0 and outside its null band or not; the same in figures."""
    r, low, high = row.pearson_r, row.null_low, row.null_high
    if r is None or low is None or high is None:
        return "nowhere", f"{row.accuracy} has no r"
    side: _Side = "below" if r < min(low, 0.0) else "above" if r > max(high, 0.0) else "inside"
    return side, f"{row.accuracy} r {r:+.2f} (null band {low:+.2f} to {high:+.2f})"
