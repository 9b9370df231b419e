"""Decide whether rules of higher entropy predict people's preferences worse in these ratings.

Ties can decide the sign of the correlation, so no single tie policy is enough. The verdict needs
both policies that random labels do not bias: half credit and untied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from encore.analysis.correlation import Correlation
from encore.analysis.statistics import EntropyKind, TiePolicy

#: The two policies that the verdict is made from.
HEADLINE_POLICIES: tuple[TiePolicy, TiePolicy] = ("half", "untied")

VerdictName = Literal["reproduced", "not reproduced", "inconclusive", "depends on ties"]
_Side = Literal["below", "above", "inside", "nowhere"]

#: Verdict and its reason, by the sides on which r lies under the headline policies.
_VERDICTS: dict[frozenset[_Side], tuple[VerdictName, str]] = {
    frozenset({"below"}): ("reproduced", "rules of higher entropy have lower accuracy"),
    frozenset({"above"}): (
        "not reproduced",
        "the premise does not hold on these data, rules of higher entropy have higher accuracy",
    ),
    frozenset({"inside"}): (
        "inconclusive",
        "the premise is not shown on these data, random labels give correlations this large",
    ),
    frozenset({"below", "above"}): ("depends on ties", "the two tie policies say opposite things"),
}
_NO_AGREEMENT: tuple[VerdictName, str] = (
    "depends on ties",
    "the premise is not shown on these data, the two tie policies do not agree",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Verdict on the paper's claim in one source.

    Attributes:
        source: The data set, or `POOLED` for all together.
        entropy: Kind of entropy, discrete or differential.
        verdict: "reproduced": r is negative and below its null band under both headline policies;
            "not reproduced": positive and above it under both; "inconclusive": within it under
            both; else "depends on ties".
        reason: The verdict in words, with its figures.
    """

    source: str
    entropy: EntropyKind
    verdict: VerdictName
    reason: str


def verdicts(correlation: Sequence[Correlation]) -> tuple[Verdict, ...]:
    """Return a verdict per source and kind of entropy for which a headline policy has an r.

    Args:
        correlation: Rows of `encore.analysis.correlation.correlations`, of one source or several.
    """
    by_key = {(row.source, row.entropy, row.accuracy): row for row in correlation}
    found_verdicts = []
    for source, entropy in dict.fromkeys((row.source, row.entropy) for row in correlation):
        rows = [by_key[source, entropy, policy] for policy in HEADLINE_POLICIES]
        if all(row.pearson_r is None for row in rows):
            continue
        sides, figures = zip(*map(_side_and_figures, rows), strict=True)
        name, finding = _VERDICTS.get(frozenset(sides), _NO_AGREEMENT)
        reason = f"{finding}: {', '.join(figures)}"
        found_verdicts.append(Verdict(source=source, entropy=entropy, verdict=name, reason=reason))
    return tuple(found_verdicts)


def _side_and_figures(row: Correlation) -> tuple[_Side, str]:
    """Return the side of 0 and of the null band on which r lies, and its figures as text."""
    r, low, high = row.pearson_r, row.null_low, row.null_high
    if r is None or low is None or high is None:
        return "nowhere", f"{row.accuracy} has no r"
    side: _Side = "below" if r < min(low, 0.0) else "above" if r > max(high, 0.0) else "inside"
    return side, f"{row.accuracy} r {r:+.2f} (null band {low:+.2f} to {high:+.2f})"
