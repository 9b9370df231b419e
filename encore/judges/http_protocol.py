"""Write requests and read answers of OpenAI's protocol; nothing here opens a connection."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

import numpy as np

from encore.core.errors import EncoreError
from encore.judges.base import (
    END_UNKNOWN,
    NO_USAGE,
    USAGE_ESTIMATED,
    Decoding,
    Prompt,
    Reply,
    Usage,
    label_reply,
    storable_text,
    total_usage,
)
from encore.judges.finish_reasons import EndMeaning, meaning_of_end
from encore.judges.token_usage import RequestSize, checked_usage, equal_shares

#: The largest number that the protocol allows. A label that is missing is less likely than these.
_TOP_LOGPROBS = 20
MODELS, CHAT, COMPLETIONS = "/models", "/chat/completions", "/completions"
SYSTEMONE, DECISIONS = "/systemone", "/decisions"
#: Reasons of nulls that this module sets as ``finish_reason`` of a refused request.
_NO_ANSWER = ("prompt_too_long", "refused")
#: Reasons of nulls by what the end of a reply means.
_REASON_OF_END = {"content_filter": "content_filter", "refusal": "refusal"}
#: Characters of an unknown ``finish_reason`` that are recorded.
_NUM_SHOWN = 24
#: White space at the ends of a token, also as SentencePiece and byte-level tokenizers write it.
_SPACES = " \t\r\n\u2581\u0120"
#: Rounded probabilities may add up to a little more than 1.
MAX_PROBABILITY = 1.01
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
    """Error: the server did not answer a prompt, and the prompt may be the reason.

    Attributes:
        usage: Tokens of answers that were paid for although they cannot be read.
        num_calls: Number of these answers.
    """

    usage: Usage = NO_USAGE
    num_calls: int = 0

    def add_cost(self, usage: Usage, num_calls: int) -> None:
        """Add answers that were paid for."""
        self.usage = total_usage([self.usage, usage])
        self.num_calls += num_calls


class ServerAwayError(EncoreError):
    """Error: the server takes no connection."""


class GatewayError(ServerAwayError, PromptFailedError):
    """Error: a gateway says that the server is away (502, 503, 504), or fails for one prompt."""


class UnreadableAnswerError(PromptFailedError):
    """Error: a complete answer does not follow the protocol.

    Attributes:
        answer: The answer as far as it is JSON; None if it is not.
    """

    def __init__(self, message: str, *, answer: Any = None) -> None:
        """Take the message and the answer."""
        super().__init__(message)
        self.answer = answer


class OtherModelError(UnreadableAnswerError):
    """Error: an answer is from another model. Its message is complete."""


#: Fields of a request that hold a reply to one of some labels: that of vLLM, of llama.cpp, and of
#: OpenAI, SGLang, Ollama and LM Studio.
ChoiceField = Literal["structured_outputs", "grammar", "response_format"]
CHOICE_FIELDS: tuple[ChoiceField, ...] = get_args(ChoiceField)


def chat_request(
    model: str,
    message: Prompt,
    decoding: Decoding,
    *,
    choice_field: ChoiceField = "structured_outputs",
) -> dict[str, Any]:
    """Return the body of a chat completion.

    Args:
        model: Name of the model on the server.
        message: The user's message.
        decoding: Way in which the judge answers.
        choice_field: Field that this server knows, for decoding ``choice``.
    """
    messages = [{"role": "user", "content": message}]
    body = {"model": model, "messages": messages, "temperature": 0}
    body["max_completion_tokens"] = decoding.max_new_tokens
    if decoding.think_tokens is not None:  # one request: the server ends the thinking
        body["thinking_token_budget"] = decoding.think_tokens
    if decoding.kind == "expected":
        body |= {"logprobs": True, "top_logprobs": _TOP_LOGPROBS}
    if decoding.kind == "choice" and decoding.num_scores:  # vLLM has this option and services too
        return body | _json_form(decoding.scores_schema)
    if decoding.kind == "choice" and choice_field == "grammar":
        labels = " | ".join(json.dumps(label, ensure_ascii=False) for label in decoding.labels)
        return body | {"grammar": f"root ::= {labels}"}
    if decoding.kind == "choice" and choice_field == "response_format":
        return body | _json_form(replace(decoding, num_scores=1).scores_schema)
    return body | _choice_options(decoding)


def _json_form(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the field that holds a reply to a JSON schema."""
    form = {"name": "scores", "strict": True, "schema": schema}
    return {"response_format": {"type": "json_schema", "json_schema": form}}


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
        "max_tokens": decoding.max_answer_tokens,
        "repetition_penalty": 1,
        "presence_penalty": 0,
        "frequency_penalty": 0,
    }
    if decoding.kind == "expected":
        body |= {"logprobs": 1, "logprob_token_ids": list(label_ids)}
        body["return_tokens_as_token_ids"] = True
    if decoding.stop:  # a mark may be a special token
        body |= {"stop": [decoding.stop], "skip_special_tokens": False, "return_token_ids": True}
    return body | _choice_options(decoding)


def _choice_options(decoding: Decoding) -> dict[str, Any]:
    """Return vLLM's option for decoding ``choice``. Servers ignore its older `guided_choice`."""
    if decoding.kind != "choice":
        return {}
    if decoding.num_scores:
        return {"structured_outputs": {"regex": decoding.scores_pattern}}
    return {"structured_outputs": {"choice": list(decoding.labels)}}


#: Errors of a reader that meets an answer in another form: values of other types, numbers beyond
#: a float, nesting without end.
FORM_ERRORS = (
    AttributeError,
    IndexError,
    KeyError,
    OverflowError,
    RecursionError,
    TypeError,
    ValueError,
)


def read_chat(answer: Any, *, decoding: Decoding, size: RequestSize | None = None) -> list[Reply]:
    """Read the answer to a chat completion, which has one reply.

    Args:
        answer: The answer, which may be anything that JSON can hold.
        decoding: Way in which the judge answers.
        size: Size of the request, against which the token counts are checked.

    Raises:
        UnreadableAnswerError: The answer does not follow the protocol, or lacks the
            log-probabilities that decoding ``expected`` needs.
    """
    try:
        answer = refusal_within(answer) or answer
        choice = _only_choice(answer["choices"])
        message, end = choice["message"], choice.get("finish_reason")
        meaning = _meaning_of_end(choice)
        text, refusal = _text_of(message.get("content")), _text_of(message.get("refusal"))
        thinking = _text_of(message.get("reasoning") or message.get("reasoning_content"))
        if decoding.kind == "choice" and not decoding.num_scores:
            text = _label_within(text)
        usage, remarks = usage_of(answer, size, text=refusal or text)
        fields = _fields_of(answer, choice, meaning) | {"usage": usage}
        fields["remarks"] += remarks
        reason = "refusal" if refusal else end if end in _NO_ANSWER else _REASON_OF_END.get(meaning)
        if reason is None and decoding.kind == "expected":
            logprobs = _label_logprobs(_logprobs(choice)["content"][0]["top_logprobs"], decoding)
            return [label_reply(decoding, logprobs, **fields)]
        if reason is None and not text.strip():
            text = thinking
            reason = "only_thinking" if thinking.strip() else "empty_reply"
        elif thinking and decoding.thinking_marks is not None:
            text = f"{thinking}{decoding.thinking_marks[1]}{text}"
        is_complete = meaning != "cut_off"
        return [Reply(text=refusal or text, is_complete=is_complete, null_reason=reason, **fields)]
    except FORM_ERRORS as error:
        raise unreadable(answer, error) from None


def _label_within(text: str) -> str:
    """Return the label in a reply that `_json_form` held to an object of one; else the reply."""
    try:
        [label] = json.loads(text).values()
    except (AttributeError, RecursionError, ValueError):
        return text
    return label if isinstance(label, str) else text


def _only_choice(choices: Sequence[Any]) -> Any:
    """Return the choice of an answer that was asked for one.

    Raises:
        ValueError: There is none, or there are several.
    """
    if len(choices) != 1:
        raise ValueError(f"{len(choices)} choices instead of one")
    return choices[0]


def _meaning_of_end(choice: Mapping[str, Any]) -> EndMeaning:
    """Return what the end of a choice means.

    Raises:
        ValueError: The server says that the model failed.
    """
    meaning = meaning_of_end(choice.get("finish_reason"))
    if meaning == "failed":
        error = choice.get("error") or choice["finish_reason"]
        raise ValueError(f"the server says that the model failed: {error}")
    return meaning


def _text_of(content: Any) -> str:
    """Return the text of a message, which some servers send in parts; null is an empty text.

    Raises:
        TypeError: It is something else.
    """
    if isinstance(content, list):
        return "".join(part["text"] for part in content if part.get("type") == "text")
    if content is not None and not isinstance(content, str):
        raise TypeError(f"the content is no text but {type(content).__name__}")
    return content or ""


def usage_of(
    answer: Mapping[str, Any], size: RequestSize | None, *, text: str
) -> tuple[Usage, tuple[str, ...]]:
    """Return the token counts of an answer, with a remark if they are an estimate."""
    if isinstance(answer.get("usage"), Usage):  # of an error: nothing was paid
        return answer["usage"], ()
    usage, is_estimated = checked_usage(answer, size, text=text)
    return usage, (USAGE_ESTIMATED,) if is_estimated and size is not None else ()


def _fields_of(
    answer: Mapping[str, Any], choice: Mapping[str, Any], meaning: EndMeaning
) -> dict[str, Any]:
    """Return the fields of every reply in an answer: its model, and a remark on its end."""
    name, end = answer.get("model"), choice.get("finish_reason")
    remark = f"{END_UNKNOWN} {first_words(end)[:_NUM_SHOWN]}" if end else END_UNKNOWN
    return {
        "answered_by": storable_text(name) if isinstance(name, str) else "",
        "remarks": (remark,) if meaning == "unknown" else (),
    }


def _label_logprobs(entries: Sequence[Any], decoding: Decoding) -> list[float]:
    """Return the log-probability of each label among a position's most likely tokens.

    Several tokens may have the text of a label, for example with and without a space before it:
    their probabilities are added. A token that is listed twice counts once.

    Raises:
        ValueError: The numbers are no log-probabilities.
    """
    listed = {(str(entry["token"]), _logprob(entry["logprob"])) for entry in entries}
    logprob_of_label = dict.fromkeys(decoding.labels, float("-inf"))
    for token, logprob in sorted(listed):
        label = token.strip(_SPACES)
        if label in logprob_of_label:
            logprob_of_label[label] = float(np.logaddexp(logprob_of_label[label], logprob))
    total = sum(map(math.exp, logprob_of_label.values()))
    if total > MAX_PROBABILITY:
        raise ValueError(f"the probabilities of the labels add up to {total:.3g}")
    excess = math.log(max(total, 1.0))
    return [logprob_of_label[label] - excess for label in decoding.labels]


def _logprob(value: Any) -> float:
    """Return a log-probability.

    Raises:
        ValueError: It is NaN, or the logarithm of more than 1.
    """
    logprob = float(value)
    if not logprob <= math.log(MAX_PROBABILITY):
        raise ValueError(f"{value} is no log-probability")
    return logprob


def read_completions(
    answer: Any,
    *,
    decoding: Decoding,
    num_prompts: int,
    label_ids: Sequence[int],
    size: RequestSize | None = None,
) -> list[Reply]:
    """Read the answer to a completion for several prompts.

    The replies share the tokens equally: a server counts them for the whole request.

    Raises:
        UnreadableAnswerError: The answer does not have one reply for each prompt, or lacks the
            log-probabilities that decoding ``expected`` needs.
    """
    try:
        choices = sorted(answer["choices"], key=lambda choice: int(choice["index"]))
        if [choice["index"] for choice in choices] != list(range(num_prompts)):
            raise ValueError(f"{len(choices)} answers to {num_prompts} prompts")
        texts = [str(choice["text"]) for choice in choices]
        usage, remarks = usage_of(answer, size, text="".join(texts))
        usages, replies = equal_shares(usage, num_prompts), list[Reply]()
        for choice, text in zip(choices, texts, strict=True):
            meaning = _meaning_of_end(choice)
            fields = _fields_of(answer, choice, meaning) | {"usage": usages[len(replies)]}
            fields["remarks"] += () if replies else remarks
            if decoding.kind == "expected":
                top = _logprobs(choice)["top_logprobs"][0]
                logprobs = [_logprob(top[f"token_id:{token_id}"]) for token_id in label_ids]
                replies.append(label_reply(decoding, logprobs, **fields))
                continue
            is_complete, reason = meaning != "cut_off", _REASON_OF_END.get(meaning)
            if decoding.stop:
                fields["token_ids"] = tuple(map(int, choice["token_ids"]))
            replies.append(Reply(text=text, is_complete=is_complete, null_reason=reason, **fields))
    except FORM_ERRORS as error:
        raise unreadable(answer, error) from None
    return replies


def _logprobs(choice: Mapping[str, Any]) -> Any:
    """Return the log-probabilities of a reply.

    Raises:
        ValueError: The reply has none.
    """
    if not (logprobs := choice.get("logprobs")):
        raise ValueError(
            "no log-probabilities, which --decode expected needs; give --decode text or choice"
        )
    return logprobs


def read_models(answer: Any) -> dict[str, dict[str, Any]]:
    """Read a server's list of models, by name; empty if the server has no list.

    Raises:
        UnreadableAnswerError: The answer does not follow the protocol.
    """
    try:
        return {str(model["id"]): dict(model) for model in answer["data"]}
    except FORM_ERRORS as error:
        raise unreadable(answer, error) from None


def answer_of_error(path: str, status: int, error: Any) -> dict[str, Any] | None:
    """Return the answer that an error is equivalent to; None for a failure.

    A missing list of models is an empty list. A refused prompt is a reply without an answer.

    Args:
        path: Path of the request, e.g. `CHAT`.
        status: HTTP status of the answer.
        error: The server's error; in this protocol an object with code and message.
    """
    if path == MODELS and status in (404, 405, 501):  # not every gateway has one
        return {"data": []}
    if path not in (CHAT, SYSTEMONE, DECISIONS) or not 400 <= status < 500:
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
    return {"choices": [choice], "usage": NO_USAGE}


def _is_refusal(error: Mapping[str, Any]) -> bool:
    """Return True if the codes of an error say that a prompt was refused for its content."""
    inner, details = error.get("innererror") or {}, error.get("metadata") or {}
    codes = (error.get("code"), error.get("type"), inner.get("code"), details.get("error_type"))
    return "flagged_input" in details or any(_REFUSAL_CODE.search(str(code)) for code in codes)


def refusal_within(answer: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the answer that an error inside an answer of status 200 is equivalent to."""
    choice = _only_choice(answer.get("choices") or [{}])
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
    try:
        text = str(answer)
    except RecursionError:
        text = "a deeply nested answer"
    return storable_text(" ".join(text.split())[:200]) or "nothing"


def unreadable(answer: Any, error: Exception) -> UnreadableAnswerError:
    """Return an error with the beginning of an answer and what is wrong with it."""
    problem = f"no {error.args[0]!r}" if isinstance(error, KeyError) else str(error)
    problem = problem if isinstance(answer, Mapping) else "no JSON object"
    return UnreadableAnswerError(f"{first_words(answer)} ({problem})", answer=answer)
