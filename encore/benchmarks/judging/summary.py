"""What verdicts in both orders amount to: credits, consistency, the pull of the first place.

Suffixes: P pairs, C criteria, 2 orders (the chosen answer first, the rejected one first).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from encore.benchmarks.judging.verdicts import WORDS_OF_REASON, Place, VerdictNullReason
from encore.weighting.composed import credits_of

#: Which answer a verdict names, as numbers that can be added up.
CHOSEN, NEITHER, REJECTED = 1, 0, -1
#: A judge whose verdicts name one place at least this often hardly looks at the answers.
_ALMOST_ALWAYS = 0.95

_Verdicts = NDArray[np.int8]
_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictSummary:
    """A judge's verdicts on some pairs under one criterion.

    Attributes:
        criterion_id: ``overall`` or a rule.
        num_pairs: P; each was asked in both orders.
        num_unparsed: Replies, of 2 P, without a verdict.
        accuracy: Mean credit over pairs: an order that names the chosen answer counts 1, the other
            0, one without a verdict one half, as in RewardBench. It is what RewardBench's single
            random order gives on average.
        accuracy_low: The same if every missing verdict were wrong.
        accuracy_high: The same if every missing verdict were right.
        num_answered_twice: Pairs with a verdict in both orders.
        consistency: Share of those that named the same answer both times; None without any.
        share_first: Share of the verdicts that name A, the place shown first; a judge that looks
            at the answers alone is at 0.5. None without verdicts.
        always: The place that every verdict names, where there are two or more and it is one.
    """

    criterion_id: str
    num_pairs: int
    num_unparsed: int
    accuracy: float
    accuracy_low: float
    accuracy_high: float
    num_answered_twice: int
    consistency: float | None
    share_first: float | None
    always: Place | None

    @property
    def num_verdicts(self) -> int:
        """Replies with a verdict."""
        return 2 * self.num_pairs - self.num_unparsed


def summarize(verdict_P2: _Verdicts, *, criterion_id: str) -> VerdictSummary:
    """The figures of one criterion's verdicts, at least one pair."""
    is_given_P2 = verdict_P2 != NEITHER
    is_twice_P = is_given_P2.all(axis=1)
    num_verdicts, num_twice = int(is_given_P2.sum()), int(is_twice_P.sum())
    num_first = int((verdict_P2[:, 0] == CHOSEN).sum() + (verdict_P2[:, 1] == REJECTED).sum())
    num_consistent = int((is_twice_P & (verdict_P2[:, 0] == verdict_P2[:, 1])).sum())
    return VerdictSummary(
        criterion_id=criterion_id,
        num_pairs=len(verdict_P2),
        num_unparsed=verdict_P2.size - num_verdicts,
        accuracy=float(order_credits(verdict_P2).mean()),
        accuracy_low=float(order_credits(filled(verdict_P2, by=REJECTED)).mean()),
        accuracy_high=float(order_credits(filled(verdict_P2, by=CHOSEN)).mean()),
        num_answered_twice=num_twice,
        consistency=num_consistent / num_twice if num_twice else None,
        share_first=num_first / num_verdicts if num_verdicts else None,
        always=_always(num_first, num_verdicts),
    )


def filled(verdict: _Verdicts, *, by: int) -> _Verdicts:
    """The same verdicts with one answer named wherever none is; any shape."""
    return np.where(verdict == NEITHER, np.int8(by), verdict)


def order_credits(verdict_P2: _Verdicts) -> _Floats:
    """1 where the chosen answer is named, 0 where the rejected one is, else one half; [P, 2]."""
    return np.asarray((1 + verdict_P2.astype(np.float64)) / 2, dtype=np.float64)


def pair_credits(verdict_P2: _Verdicts) -> _Floats:
    """The mean credit of both orders: 0, 1/4, 1/2, 3/4 or 1, shape [P].

    A judge that follows the place gets one half for the pair, as for a tie.
    """
    return np.asarray(order_credits(verdict_P2).mean(axis=1), dtype=np.float64)


def single_order_credits(verdict_P2: _Verdicts, *, seed: int) -> _Floats:
    """The credit of one order a pair, drawn by chance: RewardBench's own protocol, but seeded."""
    order_P = np.random.default_rng(seed).integers(0, 2, size=len(verdict_P2))
    rows_P = np.arange(len(verdict_P2))
    return np.asarray(order_credits(verdict_P2)[rows_P, order_P], dtype=np.float64)


def vote_credits(verdict_PC2: _Verdicts, *, weight_C: _Floats) -> _Floats:
    """1 where the weighted votes of the criteria go to the chosen answer, 1/2 for a draw, else 0.

    A criterion's vote is the mean of its two orders: one that contradicts itself or has no verdict
    abstains, one with a single verdict counts half.

    Args:
        verdict_PC2: Shape [P, C, 2].
        weight_C: Not all 0; their scale does not matter.
    """
    vote_PC = verdict_PC2.mean(axis=2, dtype=np.float64)
    return credits_of(vote_PC @ (weight_C / np.abs(weight_C).sum()))


def missing_remarks(
    null_reasons: Mapping[VerdictNullReason, int], *, judge: str, num_replies: int
) -> list[str]:
    """A sentence for every reason why verdicts are missing."""
    return [
        f"judge {judge}: {count} of {num_replies} verdicts are missing: {WORDS_OF_REASON[reason]}"
        for reason, count in null_reasons.items()
    ]


def bounds_remark(bounds: tuple[float, float], *, figure: str, judge: str) -> str:
    """What missing verdicts could have made of a figure in which they count one half."""
    low, high = bounds
    return (
        f"judge {judge}: missing verdicts count one half; with all of them wrong or all right "
        f"{figure} would be {low:.1%} or {high:.1%}"
    )


def reliability_remark(summaries: Sequence[VerdictSummary], *, judge: str) -> str:
    """How many verdicts there are, how often both orders agree, how often the first place wins.

    Args:
        summaries: Of one criterion or more, over which verdicts are added up.
        judge: The judge's name.
    """
    num_verdicts = sum(one.num_verdicts for one in summaries)
    num_replies = sum(2 * one.num_pairs for one in summaries)
    if not num_verdicts:
        return (
            f"judge {judge}: no verdict in {num_replies} replies, so every pair counts one half; "
            "neither the score nor its interval says anything"
        )
    num_first = sum((one.share_first or 0.0) * one.num_verdicts for one in summaries)
    given = f"judge {judge}: {num_verdicts} verdicts in {num_replies} replies"
    return (
        f"{given}; {_agreement(summaries)}; {num_first / num_verdicts:.1%} of the verdicts name "
        "the answer shown first"
    )


def _agreement(summaries: Sequence[VerdictSummary]) -> str:
    num_twice = sum(one.num_answered_twice for one in summaries)
    if not num_twice:
        return "none of them in both orders of a pair, so how consistent they are is not known"
    num_same = sum((one.consistency or 0.0) * one.num_answered_twice for one in summaries)
    rules = "" if len(summaries) == 1 else f" under {len(summaries)} rules"
    return (
        f"both orders agree on {num_same / num_twice:.1%} of {num_twice} pairs{rules} (a coin: 50%)"
    )


def remarks(summary: VerdictSummary, *, judge: str) -> list[str]:
    """What a reader must know before believing an accuracy, a sentence each."""
    found = []
    under = "" if summary.criterion_id == "overall" else f" under {summary.criterion_id}"
    share = summary.share_first
    if summary.always is not None:
        found.append(
            f"judge {judge} always answers {summary.always}{under}: it follows the place, not the "
            "answers, so neither its accuracy nor the interval says anything"
        )
    elif share is not None and max(share, 1 - share) >= _ALMOST_ALWAYS:
        place = "A" if share > 1 / 2 else "B"
        found.append(
            f"judge {judge} answers {place}{under} in {max(share, 1 - share):.1%} of its verdicts: "
            "it hardly looks at the answers"
        )
    return found


def _always(num_first: int, num_verdicts: int) -> Place | None:
    if num_verdicts < 2:
        return None
    if num_first == num_verdicts:
        return "A"
    return "B" if num_first == 0 else None
