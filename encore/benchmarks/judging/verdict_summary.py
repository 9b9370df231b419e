"""What a judge's verdicts on both orders of every pair amount to.

Suffixes: P pairs, 2 orders (the chosen answer first, the rejected one first).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

#: Why a reply has no verdict, in words.
_WORDS_OF_REASON: Mapping[str, str] = {
    "empty_reply": "the reply is empty",
    "no_verdict": "neither [[A]] nor [[B]] in the reply",
    "two_verdicts": "both [[A]] and [[B]] in the reply",
    "reply_cut_off": "the token limit cut the reply off (give a larger --max-reply-tokens)",
    "prompt_too_long": "the prompt is too long for the judge's context and was not asked",
    "content_filter": "the judge's server filtered the prompt or the reply",
    "refusal": "the judge refused",
}
#: A judge whose verdicts name one place at least this often hardly looks at the answers.
_ALMOST_ALWAYS = 0.95

_Floats = NDArray[np.float64]


def pair_credits(verdict_P2: _Floats, *, missing: float = 0.5) -> _Floats:
    """The mean credit of both orders: 0, 1/4, 1/2, 3/4 or 1, shape [P].

    A judge that follows the place gets one half for the pair, as for a tie.

    Args:
        verdict_P2: 1 where the chosen answer is named, 0 where the rejected one, NaN for neither.
        missing: What an order without a verdict counts; one half, as in RewardBench.
    """
    return np.asarray(np.nan_to_num(verdict_P2, nan=missing).mean(axis=1))


def single_order_credits(verdict_P2: _Floats, *, seed: int) -> _Floats:
    """The credit of one order a pair, drawn by chance: RewardBench's own protocol, but seeded."""
    order_P = np.random.default_rng(seed).integers(0, 2, size=len(verdict_P2))
    chosen_P: _Floats = verdict_P2[np.arange(len(order_P)), order_P]
    return np.nan_to_num(chosen_P, nan=0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictSummary:
    """A judge's verdicts on some pairs.

    Attributes:
        num_pairs: P; each was asked in both orders.
        num_unparsed: Replies, of 2 P, without a verdict.
        num_answered_twice: Pairs with a verdict in both orders.
        consistency: Share of those that named the same answer both times; None without any.
        share_first: Share of the verdicts that name A, the place shown first; a judge that looks
            at the answers alone is at 0.5. None without verdicts.
    """

    num_pairs: int
    num_unparsed: int
    num_answered_twice: int
    consistency: float | None
    share_first: float | None

    @property
    def reliability(self) -> str:
        """How many verdicts there are, how often both orders agree or the first place wins."""
        num_replies = 2 * self.num_pairs
        if self.share_first is None:
            return (
                f"no verdict in {num_replies} replies, so every pair counts one half; neither the "
                "score nor its interval says anything"
            )
        share = "-" if self.consistency is None else f"{self.consistency:.1%}"
        return (
            f"{num_replies - self.num_unparsed} verdicts in {num_replies} replies; both orders "
            f"agree on {share} of {self.num_answered_twice} pairs (a coin: 50%); "
            f"{self.share_first:.1%} of the verdicts name the answer shown first"
        )


def summarize(verdict_P2: _Floats) -> VerdictSummary:
    """The figures of verdicts on at least one pair."""
    is_verdict_P2 = ~np.isnan(verdict_P2)
    num_verdicts, num_twice = int(is_verdict_P2.sum()), int(is_verdict_P2.all(axis=1).sum())
    num_first = int((verdict_P2 == (1, 0)).sum())
    num_consistent = int((verdict_P2[:, 0] == verdict_P2[:, 1]).sum())
    return VerdictSummary(
        num_pairs=len(verdict_P2),
        num_unparsed=verdict_P2.size - num_verdicts,
        num_answered_twice=num_twice,
        consistency=num_consistent / num_twice if num_twice else None,
        share_first=num_first / num_verdicts if num_verdicts else None,
    )


def verdict_notes(
    summary: VerdictSummary, null_reasons: Mapping[str, int], *, range_shown: str
) -> Iterator[str]:
    """What a reader must know before believing an accuracy, a sentence each.

    Args:
        summary: Of the verdicts.
        null_reasons: Replies without a verdict, by reason.
        range_shown: The headline with all missing verdicts wrong, and with all right, in words.
    """
    num_replies, share = 2 * summary.num_pairs, summary.share_first
    for reason, count in null_reasons.items():
        yield f"{count} of {num_replies} verdicts are missing: {_WORDS_OF_REASON[reason]}"
    if null_reasons:
        yield f"missing verdicts count one half; with all of them wrong or all right {range_shown}"
    if share is None:
        yield summary.reliability
    elif max(share, 1 - share) >= _ALMOST_ALWAYS:
        place = "A" if share > 1 / 2 else "B"
        yield f"{max(share, 1 - share):.1%} of the verdicts are {place}: it follows the place"
