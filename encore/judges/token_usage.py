"""Check the token counts that a server gives for a reply before they are believed.

They decide what a run has cost. A count that is missing or impossible is replaced by an upper
estimate, so that a budget holds whatever a server says.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from encore.judges.base import Prompt, Usage

#: Tokens of a byte of text, at most. English has about 0.23.
TOKENS_PER_BYTE = 0.5
#: Tokens that a server may add to a prompt: a chat template, a system prompt of its own.
_MAX_ADDED_TOKENS = 8192
#: Tokens that a reply may have beyond its limit: servers count its end differently.
_MAX_TOKENS_BEYOND = 16
_MAX_THINKING_TOKENS = 1_000_000
#: Answers that tell a server's tokens for a byte, and how much more others may have.
_MIN_ANSWERS, _MARGIN = 8, 1.25
_LIMIT_FIELDS = ("max_completion_tokens", "max_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSize:
    """Size of a request, which bounds the tokens of its answer.

    Attributes:
        max_prompt_tokens: Upper estimate of the tokens of all its prompts.
        num_bytes: Bytes of its prompts as text, or token ids: no text has more tokens.
        max_output_tokens: Largest number of tokens of all its replies; None without a limit.
    """

    max_prompt_tokens: int
    num_bytes: int
    max_output_tokens: int | None


#: Bounds of a request of unknown size, such as that of a batch file: nothing is estimated.
_UNKNOWN_SIZE = RequestSize(max_prompt_tokens=0, num_bytes=1_000_000, max_output_tokens=None)


def prompt_size(prompt: Prompt) -> int:
    """Return the bytes of a text, or the number of token ids."""
    return len(prompt.encode()) if isinstance(prompt, str) else len(prompt)


def prompt_tokens_at_most(prompt: Prompt) -> int:
    """Return an upper estimate of a prompt's tokens."""
    return round(prompt_size(prompt) * (TOKENS_PER_BYTE if isinstance(prompt, str) else 1))


@dataclass(slots=True)
class LearnedTokens:
    """Tokens per size in the believable answers of a server, for its other answers.

    Attributes:
        num_answers: Number of answers with believable counts.
        most_per_size: Largest number of prompt tokens for a byte of text, or for a token id.
    """

    num_answers: int = 0
    most_per_size: float = 0.0

    def add(self, usage: Usage, size: RequestSize) -> None:
        """Learn from an answer with believable counts."""
        self.num_answers += 1
        self.most_per_size = max(self.most_per_size, usage.prompt_tokens / max(size.num_bytes, 1))

    def prompt_tokens_at_most(self, prompts: Sequence[Prompt]) -> int:
        """Return an upper estimate of the tokens of some prompts, closer once answers told."""
        num_tokens = sum(map(prompt_tokens_at_most, prompts))
        if self.num_answers < _MIN_ANSWERS:
            return num_tokens
        learned = _MARGIN * self.most_per_size * sum(map(prompt_size, prompts))
        return min(num_tokens, math.ceil(learned))


def request_size(
    prompts: Sequence[Prompt], body: Mapping[str, Any], learned: LearnedTokens | None = None
) -> RequestSize:
    """Return the size of a request for some prompts with this body."""
    limits = [body[name] for name in _LIMIT_FIELDS if isinstance(body.get(name), int)]
    return RequestSize(
        max_prompt_tokens=(learned or LearnedTokens()).prompt_tokens_at_most(prompts),
        num_bytes=sum(map(prompt_size, prompts)),
        max_output_tokens=len(prompts) * max(limits) if limits else None,
    )


def checked_usage(answer: Any, size: RequestSize | None, *, text: str = "") -> tuple[Usage, bool]:
    """Return the token counts of an answer, and True if one of them had to be estimated.

    Args:
        answer: The answer, which may be anything that JSON can hold.
        size: Size of the request; None if it is not known, and nothing can be estimated.
        text: Text of the replies, where they could be read.
    """
    counts = _in_words_of_chats(answer.get("usage") if isinstance(answer, Mapping) else None)
    size = size or _UNKNOWN_SIZE
    num_text_bytes = len(text.encode(errors="replace"))
    details = _mapping(counts.get("completion_tokens_details"))
    thinking = _count(details.get("reasoning_tokens"), at_most=_MAX_THINKING_TOKENS) or 0
    most_output = _MAX_THINKING_TOKENS
    if size.max_output_tokens is not None:
        most_output = max(size.max_output_tokens, num_text_bytes) + thinking + _MAX_TOKENS_BEYOND
    prompt = _count(
        counts.get("prompt_tokens"), at_least=1, at_most=size.num_bytes + _MAX_ADDED_TOKENS
    )
    output = _count(
        counts.get("completion_tokens"), at_least=min(1, num_text_bytes), at_most=most_output
    )
    estimated_output = max(size.max_output_tokens or 0, num_text_bytes)
    usage = Usage(
        prompt_tokens=size.max_prompt_tokens if prompt is None else prompt,
        cached_tokens=_cached(counts, prompt or 0),
        output_tokens=estimated_output if output is None else output,
        thinking_tokens=min(thinking, output or 0),
    )
    return usage, prompt is None or output is None


def _in_words_of_chats(usage: Any) -> Mapping[str, Any]:
    """Return token counts under the names that chats have, whichever names the interface has."""
    names = {"input": "prompt", "output": "completion"}
    counts = {}
    for name, count in _mapping(usage).items():
        first, _, last = str(name).partition("_")
        counts[f"{names.get(first, first)}_{last}"] = count
    return counts


def equal_shares(usage: Usage, num_shares: int) -> list[Usage]:
    """Return token counts that add up to some, and differ by one at most.

    >>> [share.prompt_tokens for share in equal_shares(Usage(prompt_tokens=100), 3)]
    [34, 33, 33]
    """
    divided = [divmod(count, num_shares) for count in usage]
    return [
        Usage(*(quotient + (number < remainder) for quotient, remainder in divided))
        for number in range(num_shares)
    ]


def _cached(counts: Mapping[str, Any], num_prompt_tokens: int) -> int:
    """Return the prompt's tokens from a cache; 0 if the server does not say a possible number."""
    details = _mapping(counts.get("prompt_tokens_details"))
    return _count(details.get("cached_tokens"), at_most=num_prompt_tokens) or 0


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _count(value: Any, *, at_least: int = 0, at_most: int) -> int | None:
    """Return a number of tokens; None if the value is no whole number within the bounds."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if at_least <= value <= at_most and value == int(value) else None
