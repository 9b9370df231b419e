"""Requests in OpenAI's protocol, and what the answers say; nothing here opens a connection."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from encore.errors import EncoreError, JudgeUnavailableError
from encore.judges.base import NO_TOKENS, Decoding, Reply, Usage, labelled

#: The most that the protocol allows: a label that is not among them is less likely than these.
_TOP_LOGPROBS = 20
_TOO_LONG = re.compile(r"context.length|too long|longer than the max", re.IGNORECASE)


class UnreadableAnswerError(EncoreError):
    """An answer is not what the protocol says: HTML, half of one, another model's."""


def chat_request(
    model: str, message: str, decoding: Decoding, *, limit: str = "max_tokens"
) -> dict[str, Any]:
    """The body of a chat completion.

    Args:
        model: The server's name for it.
        message: The user's.
        decoding: How the judge answers.
        limit: What the server calls the limit of the reply's length.
    """
    messages = [{"role": "user", "content": message}]
    body = {"model": model, "messages": messages, "temperature": 0, limit: decoding.room}
    if decoding.kind == "expected":
        body |= {"logprobs": True, "top_logprobs": _TOP_LOGPROBS}
    return body | _choice(decoding)


def completions_request(
    model: str,
    prompts: Sequence[Sequence[int]],
    decoding: Decoding,
    *,
    label_ids: Sequence[int],
) -> dict[str, Any]:
    """The body of one completion for several prompts of token ids, as vLLM understands it.

    Penalties in a model's own generation_config are for chat; the server would apply them.
    """
    body = {
        "model": model,
        "prompt": [list(token_ids) for token_ids in prompts],
        "temperature": 0,
        "max_tokens": decoding.room,
        "repetition_penalty": 1,
        "presence_penalty": 0,
        "frequency_penalty": 0,
    }
    if decoding.kind == "expected":
        body |= {"logprobs": 1, "logprob_token_ids": list(label_ids)}
        body["return_tokens_as_token_ids"] = True
    return body | _choice(decoding)


def _choice(decoding: Decoding) -> dict[str, Any]:
    """As vLLM calls it. With its older `guided_choice`, servers answer anything."""
    is_choice = decoding.kind == "choice"
    return {"structured_outputs": {"choice": list(decoding.labels)}} if is_choice else {}


def read_chat(answer: Any, decoding: Decoding) -> Reply:
    """The reply in the answer to a chat completion.

    Raises:
        UnreadableAnswerError: It is none.
        JudgeUnavailableError: With `expected`: it has no log-probabilities.
    """
    try:
        [choice] = answer["choices"]
        message, usage = choice["message"], read_usage(answer)
        text, refusal = message.get("content") or "", message.get("refusal")
        if choice.get("finish_reason") == "content_filter":
            return refused("content_filter", text, usage=usage)
        if refusal:
            return refused("refusal", str(refusal), usage=usage)
        if decoding.kind == "expected":
            top = _logprobs(choice)["content"][0]["top_logprobs"]
            found = {one["token"]: float(one["logprob"]) for one in top}
            logprobs = [found.get(label, float("-inf")) for label in decoding.labels]
            return labelled(decoding, logprobs, usage)
        if not text.strip():  # the limit was used up by reasoning, or there is nothing to say
            return refused("empty_reply", text, usage=usage)
        return Reply(text=text, is_complete=choice["finish_reason"] == "stop", usage=usage)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise _unreadable(answer, error) from None


def read_completions(
    answer: Any, decoding: Decoding, *, num_prompts: int, label_ids: Sequence[int]
) -> list[Reply]:
    """The replies in the answer to one completion for several prompts.

    The first reply carries the tokens of all: a server counts them for the whole request.

    Raises:
        UnreadableAnswerError: It has not one for each prompt.
        JudgeUnavailableError: With `expected`: it has no log-probabilities.
    """
    try:
        choices = sorted(answer["choices"], key=lambda choice: int(choice["index"]))
        if [choice["index"] for choice in choices] != list(range(num_prompts)):
            raise ValueError(f"{len(choices)} answers to {num_prompts} prompts")
        usages = [read_usage(answer), *[NO_TOKENS] * (num_prompts - 1)]
        replies = []
        for choice, usage in zip(choices, usages, strict=True):
            if decoding.kind == "expected":
                top = _logprobs(choice)["top_logprobs"][0]
                logprobs = [float(top[f"token_id:{token_id}"]) for token_id in label_ids]
                replies.append(labelled(decoding, logprobs, usage))
            else:
                text, is_complete = str(choice["text"]), choice["finish_reason"] == "stop"
                replies.append(Reply(text=text, is_complete=is_complete, usage=usage))
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise _unreadable(answer, error) from None
    return replies


def _logprobs(choice: Mapping[str, Any]) -> Any:
    found = choice.get("logprobs")
    if not found:
        raise JudgeUnavailableError(
            "the judge's server gives no log-probabilities, which --decode expected needs; give "
            "--decode text or choice"
        )
    return found


def read_usage(answer: Mapping[str, Any]) -> Usage:
    """The tokens that an answer counts; zeros where it does not."""
    counted = answer.get("usage") or {}
    details = counted.get("prompt_tokens_details") or {}
    return Usage(
        prompt_tokens=int(counted.get("prompt_tokens") or 0),
        cached_tokens=int(details.get("cached_tokens") or 0),
        output_tokens=int(counted.get("completion_tokens") or 0),
    )


def read_refusal(status: int, error: Any) -> Reply | None:
    """The reply that a refused request stands for: the prompt was filtered, or it is too long.

    Args:
        status: Of HTTP.
        error: What the answer says of it: in this protocol an object with code and message.
    """
    if status != 400 or not isinstance(error, Mapping):
        return None
    if error.get("code") == "content_filter":
        return refused("content_filter", "")
    said = f"{error.get('code')} {error.get('message')}"
    return refused("prompt_too_long", "") if _TOO_LONG.search(said) else None


def refused(reason: str, text: str, *, usage: Usage = NO_TOKENS) -> Reply:
    """A reply that is no answer."""
    return Reply(text=text, is_complete=True, null_reason=reason, usage=usage)


def _unreadable(answer: Any, error: Exception) -> UnreadableAnswerError:
    what = f"no {error.args[0]!r}" if isinstance(error, KeyError) else str(error)
    what = what if isinstance(answer, Mapping) else "no JSON object"
    return UnreadableAnswerError(f"{first_words(answer)} ({what})")


def first_words(answer: Any) -> str:
    """The beginning of an answer in one line, for messages."""
    return " ".join(str(answer).split())[:200] or "nothing"
