"""Credits, counts and notes from a judge's verdicts on both orders of every pair.

Suffixes: P pairs, 2 orders (the chosen answer first, the rejected one first).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

#: Sentence for each reason why a reply has no verdict.
_REASON_TEXTS: Mapping[str, str] = {
    "empty_reply": "the reply is empty",
    "only_thinking": "the server took the whole reply for thinking (give a larger "
    "--max-reply-tokens)",
    "no_verdict": "neither [[A]] nor [[B]] in the reply",
    "two_verdicts": "both [[A]] and [[B]] in the reply",
    "reply_cut_off": "the token limit cut the reply off (give a larger --max-reply-tokens)",
    "prompt_too_long": "the prompt is too long for the judge's context and was not asked",
    "content_filter": "the judge's server filtered the prompt or the reply",
    "refusal": "the judge refused",
}
#: From this share of verdicts for one position on, a note says that the judge follows it.
_POSITION_THRESHOLD = 0.95

_Floats = NDArray[np.float64]


def pair_credits(verdict_P2: _Floats, *, missing: float = 0.5) -> _Floats:
    """Return the mean credit of both orders: 0, 1/4, 1/2, 3/4 or 1, shape [P].

    A judge that names the same position in both orders gets one half, as for a tie.

    Args:
        verdict_P2: 1 if the chosen answer is named, 0 if the rejected one is, NaN without verdict.
        missing: Credit of an order without a verdict; one half, as in RewardBench.
    """
    return np.asarray(np.nan_to_num(verdict_P2, nan=missing).mean(axis=1))


def single_order_credits(verdict_P2: _Floats, *, seed: int) -> _Floats:
    """Return the credit of one order per pair, drawn with a seed (RewardBench: without)."""
    order_P = np.random.default_rng(seed).integers(0, 2, size=len(verdict_P2))
    chosen_P: _Floats = verdict_P2[np.arange(len(order_P)), order_P]
    return np.nan_to_num(chosen_P, nan=0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictSummary:
    """Counts of a judge's verdicts.

    Attributes:
        num_pairs: Number of pairs, P. Each is judged in both orders.
        num_unparsed: Replies without a verdict, of 2 P replies.
        num_answered_twice: Pairs with a verdict in both orders.
        consistency: Share of these pairs with the same answer named twice. None without such pairs.
        share_first: Share of the verdicts that name A, the answer shown first. It is 0.5 for a
            judge that ignores the position. None without verdicts.
    """

    num_pairs: int
    num_unparsed: int
    num_answered_twice: int
    consistency: float | None
    share_first: float | None

    @property
    def reliability(self) -> str:
        """Return a sentence on the number of verdicts, their agreement and the first position."""
        num_replies = 2 * self.num_pairs
        if self.share_first is None:
            return (
                f"no verdict in {num_replies} replies, so every pair counts one half; the score "
                "and its interval have no meaning"
            )
        share = "-" if self.consistency is None else f"{self.consistency:.1%}"
        return (
            f"{num_replies - self.num_unparsed} verdicts in {num_replies} replies; both orders "
            f"agree on {share} of {self.num_answered_twice} pairs (a coin: 50%); "
            f"{self.share_first:.1%} of the verdicts name the answer shown first"
        )


def summarize(verdict_P2: _Floats) -> VerdictSummary:
    """Return the counts of verdicts on at least one pair."""
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
    summary: VerdictSummary, null_reasons: Mapping[str, int], *, bounds: str
) -> Iterator[str]:
    """Yield sentences on missing verdicts and on a preference for one position.

    Args:
        summary: Counts of the verdicts.
        null_reasons: Number of replies without a verdict, by reason.
        bounds: Sentence with the headline if all missing verdicts are wrong, and if all are right.
    """
    num_replies, share = 2 * summary.num_pairs, summary.share_first
    for reason, count in null_reasons.items():
        yield f"{count} of {num_replies} verdicts are missing: {_REASON_TEXTS[reason]}"
    if null_reasons:
        yield f"missing verdicts count one half; with all of them wrong or all right {bounds}"
    if share is None:
        yield summary.reliability
    elif max(share, 1 - share) >= _POSITION_THRESHOLD:
        position = "A" if share > 1 / 2 else "B"
        yield (
            f"{max(share, 1 - share):.1%} of the verdicts are {position}: the judge follows the "
            "position of the answers"
        )
