"""Requests in OpenAI's protocol, and what the answers say; nothing here opens a connection."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from encore.core.errors import EncoreError, JudgeUnavailableError
from encore.judges.base import NO_USAGE, Decoding, Prompt, Reply, Usage, label_reply

#: The most that the protocol allows: a label that is not among them is less likely than these.
_TOP_LOGPROBS = 20
MODELS, CHAT, COMPLETIONS = "/models", "/chat/completions", "/completions"
#: Ends of a reply that is none; the second is of requests that are refused for it.
_NO_ANSWER = ("content_filter", "prompt_too_long")
_TOO_LONG = re.compile(r"context.length|too long|longer than the max", re.IGNORECASE)


class UnreadableAnswerError(EncoreError):
    """An answer is not what the protocol says: HTML, half of one, another model's."""


def chat_request(model: str, message: Prompt, decoding: Decoding) -> dict[str, Any]:
    """The body of a chat completion."""
    messages = [{"role": "user", "content": message}]
    body = {"model": model, "messages": messages, "temperature": 0}
    body["max_completion_tokens"] = decoding.max_new_tokens
    if decoding.kind == "expected":
        body |= {"logprobs": True, "top_logprobs": _TOP_LOGPROBS}
    return body | _choice(decoding)


def completions_request(
    model: str, prompts: Sequence[Prompt], *, decoding: Decoding, label_ids: Sequence[int]
) -> dict[str, Any]:
    """The body of one completion for several prompts of token ids, as vLLM understands it.

    Penalties in a model's own generation_config are for chat; the server would apply them.
    """
    body = {
        "model": model,
        "prompt": [list(token_ids) for token_ids in prompts],
        "temperature": 0,
        "max_tokens": decoding.max_new_tokens,
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


def read_chat(answer: Any, *, decoding: Decoding) -> list[Reply]:
    """The one reply in the answer to a chat completion.

    Raises:
        UnreadableAnswerError: It is none.
        JudgeUnavailableError: With `expected`: it has no log-probabilities.
    """
    try:
        [choice] = answer["choices"]
        message, end, usage = choice["message"], choice["finish_reason"], _usage(answer)
        text, refusal = message.get("content") or "", message.get("refusal")
        reason = "refusal" if refusal else end if end in _NO_ANSWER else None
        if reason is None and decoding.kind == "expected":
            top = _logprobs(choice)["content"][0]["top_logprobs"]
            found = {one["token"]: float(one["logprob"]) for one in top}
            logprobs = [found.get(label, float("-inf")) for label in decoding.labels]
            return [label_reply(decoding, logprobs, usage)]
        if reason is None and not text.strip():  # reasoning used the limit up, or there is nothing
            reason = "empty_reply"
        text, is_complete = refusal or text, end == "stop"
        return [Reply(text=text, is_complete=is_complete, null_reason=reason, usage=usage)]
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise _unreadable(answer, error) from None


def read_completions(
    answer: Any, *, decoding: Decoding, num_prompts: int, label_ids: Sequence[int]
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
        usages = [_usage(answer), *[NO_USAGE] * (num_prompts - 1)]
        replies = []
        for choice, usage in zip(choices, usages, strict=True):
            if decoding.kind == "expected":
                top = _logprobs(choice)["top_logprobs"][0]
                logprobs = [float(top[f"token_id:{token_id}"]) for token_id in label_ids]
                replies.append(label_reply(decoding, logprobs, usage))
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


def read_models(answer: Any) -> dict[str, dict[str, Any]]:
    """What a server says of its models, by name; empty where it has no list.

    Raises:
        UnreadableAnswerError: The answer is none of this protocol.
    """
    try:
        return {str(one["id"]): dict(one) for one in answer["data"]}
    except (KeyError, TypeError, ValueError) as error:
        raise _unreadable(answer, error) from None


def stands_for(path: str, status: int, error: Any) -> dict[str, Any] | None:
    """The answer that an error stands for: no list of models; a prompt that is refused.

    Args:
        path: What was asked for.
        status: Of HTTP.
        error: What the server says of it: in this protocol an object with code and message.
    """
    if path == MODELS and status == 404:  # not every gateway has one
        return {"data": []}
    if path != CHAT or status != 400 or not isinstance(error, Mapping):
        return None
    code = str(error.get("code"))
    is_too_long = _TOO_LONG.search(f"{code} {error.get('message')}")
    reason = "prompt_too_long" if is_too_long else code
    choice = {"message": {}, "finish_reason": reason}
    return {"choices": [choice]} if reason in _NO_ANSWER else None


def first_words(answer: Any) -> str:
    """The beginning of an answer in one line, for messages."""
    return " ".join(str(answer).split())[:200] or "nothing"


def _usage(answer: Mapping[str, Any]) -> Usage:
    counted = answer.get("usage") or {}
    details = counted.get("prompt_tokens_details") or {}
    return Usage(
        prompt_tokens=int(counted.get("prompt_tokens") or 0),
        cached_tokens=int(details.get("cached_tokens") or 0),
        output_tokens=int(counted.get("completion_tokens") or 0),
    )


def _unreadable(answer: Any, error: Exception) -> UnreadableAnswerError:
    what = f"no {error.args[0]!r}" if isinstance(error, KeyError) else str(error)
    what = what if isinstance(answer, Mapping) else "no JSON object"
    return UnreadableAnswerError(f"{first_words(answer)} ({what})")
