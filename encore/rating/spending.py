"""Hold a rating run within its budget while its requests are sent.

A server's replies cost money and are kept one by one, so a run may end anywhere in a shard. Prompts
are asked in groups. Before each group its cost is estimated: from the bytes of its prompts until
replies tell their tokens, then from the replies so far. A group takes at most half of what is left,
or all prompts if they take four fifths of it, so an estimate that is wrong by a few per cent does
not matter.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from encore.core.errors import ShardClosedError
from encore.judges.base import (
    NO_USAGE,
    AskedJudge,
    Decoding,
    ProgressHook,
    Prompt,
    Reply,
    ReplyHook,
    Usage,
    ignore_reply,
    total_usage,
)
from encore.judges.token_usage import prompt_size, prompt_tokens_at_most
from encore.rating.rating_options import LimitOptions

#: Prompts in the first group, whose replies tell the tokens of a prompt.
_NUM_FIRST_PROMPTS = 16
_GROUP_SHARE, _LAST_GROUP_SHARE = 0.5, 0.8
_WAIT_SECONDS = 1.0
_MILLION = 1_000_000


@dataclass(slots=True, kw_only=True)
class SpendingLimit:
    """Money that the requests of a run may cost. Worker threads share it.

    Attributes:
        limit: Largest cost of the run, earlier calls included.
        price_input: Money per million prompt tokens.
        price_output: Money per million tokens of the replies.
        max_reply_tokens: Largest number of tokens of a reply, the estimate before replies tell.
        num_questions: Questions in a prompt, for each of which a decision model may read it again.
        max_read_again: Largest number of tokens of the thinking, which a second request reads with
            the prompt; 0 if a reply takes one request.
        spent: Cost of all replies so far.
        is_used_up: True once the next prompt would go beyond the limit.
    """

    limit: float
    price_input: float
    price_output: float
    max_reply_tokens: int
    num_questions: int = 1
    max_read_again: int = 0
    spent: float = 0.0
    is_used_up: bool = False
    _reserved: float = 0.0
    _num_groups: int = 0
    _num_replies: int = 0
    _prompt_size: int = 0
    _usage: Usage = NO_USAGE
    _largest_cost: float = 0.0
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def cost(self, usage: Usage) -> float:
        """Return the cost of some tokens."""
        return (
            self.price_input * usage.prompt_tokens + self.price_output * usage.output_tokens
        ) / _MILLION

    @contextlib.contextmanager
    def group(self, prompts: Sequence[Prompt]) -> Iterator[int]:
        """Reserve money for the first of some prompts while they are asked.

        The value is the number of prompts that may be asked now; 0 if the budget is used up.
        """
        with self._changed:
            while True:
                cost_P = np.cumsum([self._estimate(prompt) for prompt in prompts])
                num_prompts = self._num_affordable(cost_P)
                if num_prompts or not self._num_groups:
                    break
                self._changed.wait(_WAIT_SECONDS)  # another thread's group may cost less
            self.is_used_up = self.is_used_up or not num_prompts
            reserved = float(cost_P[num_prompts - 1]) if num_prompts else 0.0
            self._reserved += reserved
            self._num_groups += 1
        try:
            yield num_prompts
        finally:
            with self._changed:
                self._num_groups -= 1
                self._reserved = self._reserved - reserved if self._num_groups else 0.0
                self._changed.notify_all()

    def add(self, prompt: Prompt, reply: Reply) -> None:
        """Count the cost of a reply. Where its tokens are missing an upper estimate counts."""
        with self._changed:
            usage = reply.usage
            if usage == NO_USAGE and reply.null_reason is None:
                usage = Usage(
                    prompt_tokens=self._prompt_tokens_at_most(prompt),
                    output_tokens=self.max_reply_tokens,
                )
            self.spent += self.cost(usage)
            self._largest_cost = max(self._largest_cost, self.cost(usage))
            if usage != NO_USAGE:
                self._num_replies += 1
                self._prompt_size += prompt_size(prompt)
                self._usage = total_usage([self._usage, usage])

    def _num_affordable(self, cost_P: NDArray[np.float64]) -> int:
        """Return the number of prompts of the next group, given the cost of all up to each.

        Money stays for one reply as dear as the dearest so far instead of the mean.
        """
        mean_cost = self.cost(self._usage) / max(self._num_replies, 1)
        free = self.limit - self.spent - self._reserved - max(0.0, self._largest_cost - mean_cost)
        num_fitting = int(np.searchsorted(cost_P, free, side="right"))
        if not self._num_replies:
            num_in_group = min(_NUM_FIRST_PROMPTS, num_fitting)
        elif cost_P[-1] <= _LAST_GROUP_SHARE * free:
            return num_fitting
        else:
            num_in_group = int(np.searchsorted(cost_P, _GROUP_SHARE * free, side="right"))
        return max(num_in_group, min(1, num_fitting))

    def _prompt_tokens_at_most(self, prompt: Prompt) -> int:
        """Return an upper estimate of the tokens that the requests for a prompt read."""
        num_tokens = self.num_questions * prompt_tokens_at_most(prompt)
        return num_tokens + bool(self.max_read_again) * (num_tokens + self.max_read_again)

    def _estimate(self, prompt: Prompt) -> float:
        """Return the estimated cost of a prompt and its reply."""
        prompt_tokens: float = self._prompt_tokens_at_most(prompt)
        reply_tokens = float(self.num_questions * self.max_reply_tokens)
        if self._num_replies:
            prompt_tokens = self._usage.prompt_tokens / self._prompt_size * prompt_size(prompt)
            reply_tokens = self._usage.output_tokens / self._num_replies
        return (self.price_input * prompt_tokens + self.price_output * reply_tokens) / _MILLION


def spending_limit(
    how: LimitOptions, decoding: Decoding, *, num_questions: int, has_tokenizer: bool
) -> SpendingLimit | None:
    """Return the limit of what requests may cost; None if their tokens alone do not tell.

    Args:
        how: Budget and prices.
        decoding: Way in which the judge answers.
        num_questions: Questions in a prompt.
        has_tokenizer: True for a judge whose thinking and answer take two requests.
    """
    if how.budget is None or how.price_input is None or how.price_gpu_hour:
        return None
    return SpendingLimit(
        limit=how.budget,
        price_input=how.price_input,
        price_output=how.price_output or 0.0,
        max_reply_tokens=decoding.max_new_tokens,
        num_questions=num_questions,
        max_read_again=decoding.max_thinking_tokens if has_tokenizer else 0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetedJudge:
    """A judge that is asked in groups of prompts, each of which a budget has money for.

    Attributes:
        judge: The judge that replies.
        spending: Limit of what the run's requests may cost.
    """

    judge: AskedJudge
    spending: SpendingLimit

    def reply(
        self,
        prompts: Sequence[Prompt],
        *,
        on_progress: ProgressHook,
        on_reply: ReplyHook = ignore_reply,
        sessions: Sequence[str] = (),
        num_answered: int | None = None,
        **options: Any,
    ) -> list[Reply]:
        """Return the replies in the order of the prompts.

        Raises:
            ShardClosedError: The budget is used up. The replies so far were given to ``on_reply``.
        """
        replies: list[Reply] = []

        def count(position: int, reply: Reply) -> None:
            on_reply(len(replies) + position, reply)
            self.spending.add(prompts[len(replies) + position], reply)

        def report(num_done: int) -> None:
            on_progress(len(replies) + num_done)

        while len(replies) < len(prompts):
            start = len(replies)
            with self.spending.group(prompts[start:]) as num_prompts:
                if not num_prompts:
                    raise ShardClosedError(
                        f"the budget is used up after {start} of {len(prompts)} prompts; "
                        "their replies are kept for a call with a larger --budget"
                    )
                replies += self.judge.reply(
                    prompts[start : start + num_prompts],
                    on_progress=report,
                    on_reply=count,
                    sessions=sessions[start : start + num_prompts],
                    num_answered=None if num_answered is None else num_answered + start,
                    **options,
                )
        return replies
