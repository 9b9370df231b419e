"""Stop a run whose replies hold no ratings: it costs time or money, and nothing is learnt."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from encore.core.errors import EveryShardError
from encore.core.number_text import percent
from encore.data.rating_runs import DOES_NOT_APPLY, RETRIED_REASONS
from encore.judges.base import AskedJudge, ProgressHook, Prompt, Reply, ReplyHook, ignore_reply

#: Replies after which a run is judged, and the largest share of nulls among them.
_MIN_REPLIES, _MAX_NULL_SHARE = 50, 0.5
_NUM_SHOWN, _SHOWN_CHARACTERS = 3, 60


#: Remedy for nulls by their reason. Other reasons are replies that are no rating.
_REMEDIES = {
    **dict.fromkeys(
        [*RETRIED_REASONS, "refusal"],
        "use another judge, or a service that filters less and answers",
    ),
    "only_thinking": "the server's reasoning parser took the whole reply for thinking "
    "(reasoning_content): give more --max-reply-tokens, or --chat-template-arg "
    "enable_thinking=false if the judge need not think",
    "prompt_too_long": "give more --max-model-len, or --overlong truncate-left",
    "reply_cut_off": "give more --max-reply-tokens, --strip-thinking think if the judge thinks "
    "first, or --decode choice",
    "low_label_mass": "the judge would write something else than a label: give --think-tokens 1000 "
    "if it thinks first, other labels (--scale), or another --judge; a smaller --min-label-mass "
    "takes them for ratings all the same",
}
_REMEDY = (
    "give --decode choice, --strip-thinking think if the judge thinks first, or another --judge"
)


def remedy_for_nulls(num_by_reason: Mapping[str, int]) -> str:
    """Return what to change so that most of the nulls would be ratings.

    Args:
        num_by_reason: Number of nulls by their reason; one at least.
    """
    num_by_remedy: Counter[str] = Counter()
    for reason, number in num_by_reason.items():
        num_by_remedy[_REMEDIES.get(reason, _REMEDY)] += number
    return num_by_remedy.most_common(1)[0][0]


class NoRatingsError(EveryShardError):
    """Error: most replies of a judge hold no rating."""


@dataclass(slots=True)
class NullWatch:
    """Counts the replies and the nulls of one call, from all its shards and threads.

    Attributes:
        is_on: False never stops the run.
        num_replies: Replies so far, those of earlier calls to the same shards included.
        num_nulls_by_reason: Numbers of these replies that hold no rating.
        shown_replies: The first of the replies that hold no rating.
    """

    is_on: bool
    num_replies: int = 0
    num_nulls_by_reason: Counter[str] = field(default_factory=Counter)
    shown_replies: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def count(
        self, null_reason: str | None, raw_reply: str | None, *, label_mass: float | None = None
    ) -> None:
        """Count one reply. That the rule does not apply is an answer like a rating.

        Args:
            null_reason: Why the reply holds no rating; None if it holds one.
            raw_reply: Text of the reply.
            label_mass: Probability of all labels together (decode ``expected`` alone).
        """
        with self._lock:
            self.num_replies += 1
            if null_reason in (None, DOES_NOT_APPLY):
                return
            self.num_nulls_by_reason[null_reason] += 1
            if len(self.shown_replies) < _NUM_SHOWN:
                text = " ".join((raw_reply or "").split())
                is_long = len(text) > _SHOWN_CHARACTERS
                text = text[:_SHOWN_CHARACTERS] + "…" * is_long
                if label_mass is not None:
                    text += f" ({percent(label_mass, digits=0)} on the labels)"
                self.shown_replies.append(text)

    def check(self) -> None:
        """Stop the run if most replies hold no rating.

        Raises:
            NoRatingsError: More than half of 50 or more replies are null.
        """
        with self._lock:
            reasons = self.num_nulls_by_reason
            if not self.is_on or self.num_replies < _MIN_REPLIES:
                return
            if reasons.total() <= _MAX_NULL_SHARE * self.num_replies:
                return
            by_reason = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common())
            raise NoRatingsError(
                f"{reasons.total()} of {self.num_replies} replies hold no rating ({by_reason}), "
                f"e.g. {', '.join(map(repr, self.shown_replies))}; {remedy_for_nulls(reasons)}; "
                "--allow-nulls goes on"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedJudge:
    """A judge that is asked no more once most of its replies hold no rating.

    Attributes:
        judge: The judge that replies.
        watch: Counter of the run's replies.
        null_reason_of: Function that returns why a reply holds no rating; None if it holds one.
    """

    judge: AskedJudge
    watch: NullWatch
    null_reason_of: Callable[[Reply], str | None]

    def reply(
        self,
        prompts: Sequence[Prompt],
        *,
        on_progress: ProgressHook,
        on_reply: ReplyHook = ignore_reply,
        **options: Any,
    ) -> list[Reply]:
        """Return the replies in the order of the prompts.

        Raises:
            NoRatingsError: Most replies hold no rating.
        """

        def count(index: int, reply: Reply) -> None:
            shown_reply = reply.answers[0] if reply.answers else reply
            logprobs = shown_reply.label_logprobs
            label_mass = None if logprobs is None else sum(map(math.exp, logprobs))
            self.watch.count(self.null_reason_of(reply), shown_reply.text, label_mass=label_mass)
            on_reply(index, reply)

        def check(num_done: int) -> None:
            self.watch.check()
            on_progress(num_done)

        return self.judge.reply(prompts, on_progress=check, on_reply=count, **options)
