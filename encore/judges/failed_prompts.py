"""Count prompts that a server does not answer, and what their answers cost all the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from encore.judges.base import Reply, total_usage
from encore.judges.http_protocol import PromptFailedError

#: Prompts that may fail even if fewer are answered.
_MAX_FAILED = 10


@dataclass(slots=True)
class PromptCounts:
    """Numbers of prompts in one call of `HttpJudge.reply`.

    Attributes:
        num_answered: Prompts answered before the call; None if no prompt may be set aside.
        num_sent: Prompts sent so far.
        num_failed: Prompts that failed, and were not answered when they were sent again.
        num_read: Requests whose answer could be read.
    """

    num_answered: int | None
    num_sent: int = 0
    num_failed: int = 0
    num_read: int = 0

    @property
    def allow_failures(self) -> bool:
        """Return True while prompts may be set aside: few fail, or at most half of all."""
        if self.num_answered is None:
            return False
        num_others = self.num_answered + self.num_sent - self.num_failed
        return self.num_failed <= max(_MAX_FAILED, num_others)


def set_aside_reply(error: PromptFailedError, reason: str) -> Reply:
    """Return the reply that stands for a prompt without an answer, with what it cost."""
    return Reply(
        text=str(error),
        is_complete=False,
        null_reason=reason,
        usage=error.usage,
        num_calls=max(1, error.num_calls),
    )


def with_cost(replies: Sequence[Reply], cost: PromptFailedError) -> list[Reply]:
    """Return replies of which the first has the cost of earlier answers too."""
    if not cost.num_calls:
        return [*replies]
    [first, *later_replies] = replies
    usage = total_usage([first.usage, cost.usage])
    return [replace(first, usage=usage, num_calls=first.num_calls + cost.num_calls), *later_replies]
