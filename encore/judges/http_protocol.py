"""Write requests and read answers of OpenAI's protocol; nothing here opens a connection."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from encore.core.errors import EncoreError, JudgeUnavailableError
from encore.judges.base import NO_USAGE, Decoding, Prompt, Reply, Usage, label_reply

#: The largest number that the protocol allows. A label that is missing is less likely than these.
_TOP_LOGPROBS = 20
MODELS, CHAT, COMPLETIONS = "/models", "/chat/completions", "/completions"
#: Values of ``finish_reason`` of an answer that a filter stopped: OpenAI and Azure, Google (safety
#: to spii), Zhipu (sensitive).
_FILTERED = re.compile(
    "content_filter|safety|recitation|blocklist|prohibited_content|spii|sensitive", re.IGNORECASE
)
#: Reasons of nulls that this module sets as ``finish_reason`` of a refused request.
_NO_ANSWER = ("content_filter", "prompt_too_long", "refused")
#: Machine-readable codes by which services refuse a prompt for its content: OpenAI (invalid_prompt,
#: content_policy_violation), Azure (content_filter, ResponsibleAIPolicyViolation), Alibaba
#: (data_inspection_failed), Volcengine (SensitiveContentDetected), OpenRouter, Zhipu (1301).
_REFUSAL_CODE = re.compile(
    r"content_?filter|policy_?violation|cyber_policy|invalid_prompt|inspection_?failed"
    r"|sensitive_?content|moderation|safety|refusal|^1301$",
    re.IGNORECASE,
)
#: Beginnings of the messages of refusals that have a general code: Alibaba, DeepSeek, xAI. Only the
#: beginning counts, because a server may repeat the prompt.
_REFUSAL_MESSAGE = re.compile(
    r"(<400> )?InternalError\.Algo\.DataInspectionFailed|Content Exists Risk"
    r"|Content violates usage guidelines",
    re.IGNORECASE,
)
_TOO_LONG = re.compile(r"context.length|too long|longer than the max", re.IGNORECASE)
#: Codes and types of errors of services whose user has to pay or to raise a limit first.
_QUOTA_SPENT = re.compile(
    r"insufficient_(quota|balance|credits|funds)|exceeded_current_quota|credit_balance_exhausted|"
    r"(spend|hard)_limit_(exceeded|reached)|billing_(not_active|error)|budget_exceeded|Arrearage|"
    r"credit balance is too low"
)


class PromptFailedError(EncoreError):
    """Error: the server did not answer a prompt, and the prompt may be the reason."""


class ServerAwayError(EncoreError):
    """Error: the server takes no connection."""


class GatewayError(ServerAwayError, PromptFailedError):
    """Error: a gateway says that the server is away (502, 503, 504), or fails for one prompt."""


class UnreadableAnswerError(PromptFailedError):
    """Error: an answer does not follow the protocol, is incomplete, or is from another model."""


def chat_request(model: str, message: Prompt, decoding: Decoding) -> dict[str, Any]:
    """Return the body of a chat completion."""
    messages = [{"role": "user", "content": message}]
    body = {"model": model, "messages": messages, "temperature": 0}
    body["max_completion_tokens"] = decoding.max_new_tokens
    if decoding.kind == "expected":
        body |= {"logprobs": True, "top_logprobs": _TOP_LOGPROBS}
    if decoding.kind == "choice" and decoding.num_scores:  # vLLM has this option and services too
        schema = {"name": "scores", "strict": True, "schema": decoding.scores_schema}
        return body | {"response_format": {"type": "json_schema", "json_schema": schema}}
    return body | _choice_options(decoding)


def completions_request(
    model: str, prompts: Sequence[Prompt], *, decoding: Decoding, label_ids: Sequence[int]
) -> dict[str, Any]:
    """Return the body of a completion for several prompts of token ids, in vLLM's form.

    It turns off the penalties of the model's generation_config, which are for chat.

    Args:
        model: Name of the model on the server.
        prompts: Token ids of each prompt.
        decoding: Way in which the judge answers.
        label_ids: Token id of each label, for decoding ``expected``.
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
    return body | _choice_options(decoding)


def _choice_options(decoding: Decoding) -> dict[str, Any]:
    """Return vLLM's option for decoding ``choice``. Servers ignore its older `guided_choice`."""
    if decoding.kind != "choice":
        return {}
    if decoding.num_scores:
        return {"structured_outputs": {"regex": decoding.scores_pattern}}
    return {"structured_outputs": {"choice": list(decoding.labels)}}


def read_chat(answer: Any, *, decoding: Decoding) -> list[Reply]:
    """Read the answer to a chat completion, which has one reply.

    Raises:
        UnreadableAnswerError: The answer does not follow the protocol.
        JudgeUnavailableError: It lacks the log-probabilities that decoding ``expected`` needs.
    """
    try:
        answer = _refusal_within(answer) or answer
        [choice] = answer["choices"]
        if choice["finish_reason"] == "error":
            raise ValueError(f"the server says that the model failed: {choice.get('error')}")
        message, end, usage = choice["message"], choice["finish_reason"], _usage(answer)
        text, refusal = message.get("content") or "", message.get("refusal")
        reason = "refusal" if refusal else end if end in _NO_ANSWER else None
        if reason is None and _FILTERED.fullmatch(str(end)):
            reason = "content_filter"
        if reason is None and decoding.kind == "expected":
            top = _logprobs(choice)["content"][0]["top_logprobs"]
            logprob_of = {token["token"]: float(token["logprob"]) for token in top}
            logprobs = [logprob_of.get(label, float("-inf")) for label in decoding.labels]
            return [label_reply(decoding, logprobs, usage)]
        if reason is None and not text.strip():  # for example because reasoning reached the limit
            reason = "empty_reply"
        text, is_complete = refusal or text, end == "stop"
        return [Reply(text=text, is_complete=is_complete, null_reason=reason, usage=usage)]
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise _unreadable(answer, error) from None


def read_completions(
    answer: Any, *, decoding: Decoding, num_prompts: int, label_ids: Sequence[int]
) -> list[Reply]:
    """Read the answer to a completion for several prompts.

    The first reply has the tokens of all: a server counts them for the whole request.

    Raises:
        UnreadableAnswerError: The answer does not have one reply for each prompt.
        JudgeUnavailableError: It lacks the log-probabilities that decoding ``expected`` needs.
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
    """Return the log-probabilities of a reply.

    Raises:
        JudgeUnavailableError: The reply has none.
    """
    logprobs = choice.get("logprobs")
    if not logprobs:
        raise JudgeUnavailableError(
            "the judge's server gives no log-probabilities, which --decode expected needs; give "
            "--decode text or choice"
        )
    return logprobs


def read_models(answer: Any) -> dict[str, dict[str, Any]]:
    """Read a server's list of models, by name; empty if the server has no list.

    Raises:
        UnreadableAnswerError: The answer does not follow the protocol.
    """
    try:
        return {str(model["id"]): dict(model) for model in answer["data"]}
    except (KeyError, TypeError, ValueError) as error:
        raise _unreadable(answer, error) from None


def answer_of_error(path: str, status: int, error: Any) -> dict[str, Any] | None:
    """Return the answer that an error is equivalent to; None for a failure.

    A missing list of models is an empty list. A refused prompt is a reply without an answer.

    Args:
        path: Path of the request, e.g. `CHAT`.
        status: HTTP status of the answer.
        error: The server's error; in this protocol an object with code and message.
    """
    if path == MODELS and status == 404:  # not every gateway has one
        return {"data": []}
    if path != CHAT or not 400 <= status < 500:
        return None
    fields = error if isinstance(error, Mapping) else {"message": error}
    code, message = str(fields.get("code")), str(fields.get("message") or fields.get("detail"))
    if status == 400 and isinstance(error, Mapping) and _TOO_LONG.search(f"{code} {message}"):
        reason = "prompt_too_long"
    elif code == "content_filter":
        reason = code
    elif _is_refusal(fields) or _REFUSAL_MESSAGE.match(message):
        reason = "refused"
    else:
        return None
    choice = {"message": {"content": first_words(message)}, "finish_reason": reason}
    return {"choices": [choice]}


def _is_refusal(error: Mapping[str, Any]) -> bool:
    """Return True if the codes of an error say that a prompt was refused for its content."""
    inner, details = error.get("innererror") or {}, error.get("metadata") or {}
    codes = (error.get("code"), error.get("type"), inner.get("code"), details.get("error_type"))
    return "flagged_input" in details or any(_REFUSAL_CODE.search(str(code)) for code in codes)


def _refusal_within(answer: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the answer that an error inside an answer of status 200 is equivalent to."""
    [choice] = answer.get("choices") or [{}]
    error = answer.get("error") or choice.get("error")
    return answer_of_error(CHAT, 400, error) if error else None


def quota_error_within(answer: Any) -> Any:
    """Return the error of a spent quota that came with status 200; None without one.

    Gateways answer so if they learn of the error when they have sent the status.
    """
    error = answer.get("error") if isinstance(answer, Mapping) else None
    status = error.get("code") if isinstance(error, Mapping) else None
    return error if status == 402 or _QUOTA_SPENT.search(str(error)) else None


def is_quota_spent(status: int, text: str, *, headers: Mapping[str, str] | None = None) -> bool:
    """Return True for an error that lasts until the user pays or raises a limit at the service.

    Services say so with status 402, or as 429, 400 or 403 with a code. A 402 with a time to wait
    (OpenRouter: the credit is reserved by open requests) passes.

    Args:
        status: HTTP status of the answer.
        text: The answer with its error.
        headers: Headers of the answer.
    """
    has_wait = "Retry-After" in (headers or {})
    return (status == 402 and not has_wait) or _QUOTA_SPENT.search(text) is not None


def first_words(answer: Any) -> str:
    """Return the beginning of an answer on one line, for messages."""
    return " ".join(str(answer).split())[:200] or "nothing"


def _usage(answer: Mapping[str, Any]) -> Usage:
    """Return the token counts of an answer; 0 for those that are missing."""
    counts = answer.get("usage") or {}
    details = counts.get("prompt_tokens_details") or {}
    output_details = counts.get("completion_tokens_details") or {}
    return Usage(
        prompt_tokens=int(counts.get("prompt_tokens") or 0),
        cached_tokens=int(details.get("cached_tokens") or 0),
        output_tokens=int(counts.get("completion_tokens") or 0),
        thinking_tokens=int(output_details.get("reasoning_tokens") or 0),
    )


def _unreadable(answer: Any, error: Exception) -> UnreadableAnswerError:
    """Return an error with the beginning of an answer and what is wrong with it."""
    problem = f"no {error.args[0]!r}" if isinstance(error, KeyError) else str(error)
    problem = problem if isinstance(answer, Mapping) else "no JSON object"
    return UnreadableAnswerError(f"{first_words(answer)} ({problem})")
