"""A judge's verdicts: read from replies, and what both orders of a pair amount to.

Suffixes: P pairs, 2 orders (the chosen answer first, the rejected one first).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from encore.benchmarks.judging.comparison_prompt import CRITERION_ID
from encore.judges.base import Reply

Place = Literal["A", "B"]

#: Why a reply has no verdict, in words.
_WORDS_OF_REASON: Mapping[str, str] = {
    "empty_reply": "the reply is empty",
    "no_verdict": "neither [[A]] nor [[B]] in the reply",
    "two_verdicts": "both [[A]] and [[B]] in the reply",
    "reply_cut_off": "the token limit cut the reply off (give --max-reply-tokens a larger one, or "
    "let the judge explain itself: --protocol explained)",
    "prompt_too_long": "the prompt is too long for the judge's context and was not asked",
}
#: Which answer a verdict names, as numbers that can be added up.
CHOSEN, NEITHER, REJECTED = 1, 0, -1
#: Part of a judging's identity: raise it whenever any reply would be read differently.
VERDICT_PARSER_VERSION = 1

_VERDICT = re.compile(r"\[\[([AB])\]\]")
#: A judge whose verdicts name one place at least this often hardly looks at the answers.
_ALMOST_ALWAYS = 0.95

_Verdicts = NDArray[np.int8]
_Floats = NDArray[np.float64]


def parse_verdict(reply: Reply | None) -> tuple[Place | None, str | None]:
    """The verdict in a reply, or the reason why there is none, never both.

    The reply may say anything around ``[[A]]`` or ``[[B]]`` and may repeat it. One that has both is
    no verdict: RewardBench's own reader takes ``[[A]]`` then, which favours the first place. A
    reply that the token limit cut off is none either, whatever it had said until then.

    Args:
        reply: None: the prompt was too long to be asked.
    """
    if reply is None:
        return None, "prompt_too_long"
    if not reply.is_complete:
        return None, "reply_cut_off"
    found = set(_VERDICT.findall(reply.text))
    if len(found) == 1:
        return ("A" if "A" in found else "B"), None
    if found:
        return None, "two_verdicts"
    return None, "no_verdict" if reply.text.strip() else "empty_reply"


def pair_credits(verdict_P2: _Verdicts, *, missing: int = NEITHER) -> _Floats:
    """The mean credit of both orders: 0, 1/4, 1/2, 3/4 or 1, shape [P].

    An order that names the chosen answer counts 1, the other 0, one without a verdict one half, as
    in RewardBench. A judge that follows the place gets one half for the pair, as for a tie.

    Args:
        verdict_P2: CHOSEN, REJECTED or NEITHER.
        missing: What stands for NEITHER.
    """
    filled_P2 = np.where(verdict_P2 == NEITHER, missing, verdict_P2)
    return np.asarray((1 + filled_P2.astype(np.float64)).mean(axis=1) / 2, dtype=np.float64)


def single_order_credits(verdict_P2: _Verdicts, *, seed: int) -> _Floats:
    """The credit of one order a pair, drawn by chance: RewardBench's own protocol, but seeded."""
    order_P = np.random.default_rng(seed).integers(0, 2, size=len(verdict_P2))
    return np.asarray((1 + verdict_P2[np.arange(len(order_P)), order_P].astype(np.float64)) / 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictSummary:
    """A judge's verdicts on some pairs.

    Attributes:
        criterion_id: ``overall``.
        num_pairs: P; each was asked in both orders.
        num_unparsed: Replies, of 2 P, without a verdict.
        accuracy: Mean of `pair_credits`: what RewardBench's single random order gives on average.
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


def summarize(verdict_P2: _Verdicts) -> VerdictSummary:
    """The figures of verdicts on at least one pair."""
    is_given_P2 = verdict_P2 != NEITHER
    is_twice_P = is_given_P2.all(axis=1)
    num_verdicts, num_twice = int(is_given_P2.sum()), int(is_twice_P.sum())
    num_first = int((verdict_P2[:, 0] == CHOSEN).sum() + (verdict_P2[:, 1] == REJECTED).sum())
    num_consistent = int((is_twice_P & (verdict_P2[:, 0] == verdict_P2[:, 1])).sum())
    always: Place | None = None
    if num_verdicts > 1 and num_first in (0, num_verdicts):
        always = "A" if num_first else "B"
    return VerdictSummary(
        criterion_id=CRITERION_ID,
        num_pairs=len(verdict_P2),
        num_unparsed=verdict_P2.size - num_verdicts,
        accuracy=float(pair_credits(verdict_P2).mean()),
        accuracy_low=float(pair_credits(verdict_P2, missing=REJECTED).mean()),
        accuracy_high=float(pair_credits(verdict_P2, missing=CHOSEN).mean()),
        num_answered_twice=num_twice,
        consistency=num_consistent / num_twice if num_twice else None,
        share_first=num_first / num_verdicts if num_verdicts else None,
        always=always,
    )


def reliability(summary: VerdictSummary, *, judge: str) -> str:
    """How many verdicts there are, how often both orders agree, how often the first place wins."""
    num_replies, num_twice = 2 * summary.num_pairs, summary.num_answered_twice
    if summary.share_first is None:
        return (
            f"judge {judge}: no verdict in {num_replies} replies, so every pair counts one half; "
            "neither the score nor its interval says anything"
        )
    agreement = "none of them in both orders of a pair, so how consistent they are is not known"
    if summary.consistency is not None:
        agreement = (
            f"both orders agree on {summary.consistency:.1%} of {num_twice} pairs (a coin: 50%)"
        )
    return (
        f"judge {judge}: {num_replies - summary.num_unparsed} verdicts in {num_replies} replies; "
        f"{agreement}; {summary.share_first:.1%} of the verdicts name the answer shown first"
    )


def remarks(
    summary: VerdictSummary,
    null_reasons: Mapping[str, int],
    *,
    judge: str,
    bounds: tuple[float, float],
    figure: str,
) -> Iterator[str]:
    """What a reader must know before believing an accuracy, a sentence each.

    Args:
        summary: Of the verdicts.
        null_reasons: Replies without a verdict, by reason.
        judge: The judge's name.
        bounds: The headline with all missing verdicts wrong, and with all right.
        figure: What the headline is called.
    """
    for reason, count in null_reasons.items():
        missing = f"{count} of {2 * summary.num_pairs} verdicts are missing"
        yield f"judge {judge}: {missing}: {_WORDS_OF_REASON[reason]}"
    if null_reasons:
        yield (
            f"judge {judge}: missing verdicts count one half; with all of them wrong or all right "
            f"{figure} would be {bounds[0]:.1%} or {bounds[1]:.1%}"
        )
    share = summary.share_first
    if share is None:
        yield reliability(summary, judge=judge)
    elif summary.always is not None:
        yield (
            f"judge {judge} always answers {summary.always}: it follows the place, not the "
            "answers, so neither its accuracy nor the interval says anything"
        )
    elif max(share, 1 - share) >= _ALMOST_ALWAYS:
        yield (
            f"judge {judge} answers {'A' if share > 1 / 2 else 'B'} in {max(share, 1 - share):.1%} "
            "of its verdicts: it hardly looks at the answers"
        )
