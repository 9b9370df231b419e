"""Whether a candidate takes the champion's place, and why: the rule of promotion with its reasons.

Not being significantly worse is no reason: at 740 pairs McNemar's test lets a model that is three
points worse pass in one case of five. Here the candidate has to be shown not to be worse by the
margin.
"""

from __future__ import annotations

from dataclasses import dataclass

from encore.benchmarks.comparison import MARGIN, Comparison, is_promotable
from encore.benchmarks.results import StoredResults, compare_stored
from encore.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Promotion:
    """What was decided.

    Attributes:
        is_promoted: Whether the candidate is the champion from now on.
        reason: Why, in one line.
        comparison: Candidate against champion; None where there was nothing to compare.
    """

    is_promoted: bool
    reason: str
    comparison: Comparison | None


def decide_promotion(
    candidate: StoredResults,
    champion: StoredResults | None,
    *,
    margin: float = MARGIN,
    seed: int = 0,
) -> Promotion:
    """Decide by the results of both on the same pairs.

    Args:
        candidate: Results of every pair.
        champion: The same of the model whose place it would take; None: the place is free.
        margin: How much worse is acceptable, as a share; 0.01 is one point.
        seed: Of the bootstrap.

    Raises:
        InputError: A negative margin.
    """
    if margin < 0:
        raise InputError(f"margin {margin}: expected 0 or more, for example 0.01 for one point")
    if candidate.is_partial:
        return refused_promotion(
            f"a part of {candidate.benchmark} does not decide who is the champion"
        )
    if champion is None:
        return Promotion(is_promoted=True, reason="there was no champion before", comparison=None)
    if _pairs_of(candidate) != _pairs_of(champion):
        return refused_promotion(
            f"the champion was run on {_shown(champion)}, the candidate on {_shown(candidate)}: "
            "run the champion on the same pairs first"
        )
    comparison = compare_stored(candidate, champion, seed=seed)
    is_promoted = is_promotable(comparison, margin=margin)
    return Promotion(
        is_promoted=is_promoted,
        reason=_reason(comparison, margin=margin, is_promoted=is_promoted),
        comparison=comparison,
    )


def refused_promotion(reason: str) -> Promotion:
    """Not promoted, without a comparison that would decide it."""
    return Promotion(is_promoted=False, reason=reason, comparison=None)


def _pairs_of(results: StoredResults) -> tuple[str, str]:
    return results.benchmark, results.data_digest


def _shown(results: StoredResults) -> str:
    return f"{results.benchmark} {results.data_digest[:12]}"


def _reason(comparison: Comparison, *, margin: float, is_promoted: bool) -> str:
    differs = (
        f"{_points(comparison.difference)} points on {comparison.num_pairs} pairs, 95 % "
        f"{_points(comparison.ci_low)} to {_points(comparison.ci_high)}"
    )
    limit = _points(-margin)
    if is_promoted:
        return f"{differs}: the lower end is above {limit}"
    if comparison.ci_low > -margin:
        # The bootstrap alone would promote: it cannot draw a difference that it has not seen.
        return f"{differs}: too few pairs to exclude a difference of {limit}"
    return f"{differs}: the lower end is not above {limit}"


def _points(share: float) -> str:
    text = f"{100 * share:+.1f}"
    return "0.0" if text in ("+0.0", "-0.0") else text.replace("-", "\N{MINUS SIGN}")
