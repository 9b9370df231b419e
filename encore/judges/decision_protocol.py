"""Write requests to decision models and read their answers; nothing here opens a connection.

A decision model reads a conversation and some questions about it, and gives each possible answer a
probability. The prompt of such a judge is a JSON object: ``state`` is the conversation,
``questions`` are their texts. A question is known by its number, from 1 on.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from encore.judges import http_protocol as protocol
from encore.judges.base import (
    NO_USAGE,
    UNREADABLE_ANSWER,
    Decoding,
    Prompt,
    Reply,
    label_reply,
    storable_text,
    total_usage,
)
from encore.judges.judge_options import MAX_QUESTIONS, DecisionApi
from encore.judges.token_usage import RequestSize

PATHS: dict[DecisionApi, str] = {"systemone": protocol.SYSTEMONE, "decisions": protocol.DECISIONS}
#: Name of a yes-or-no question, which vLLM calls noul.
_PREDICATE: dict[DecisionApi, str] = {"systemone": "noul", "decisions": "predicate"}


def decision_prompt(state: str, questions: Sequence[str]) -> str:
    """Return the prompt with some questions about a state, such as a conversation."""
    return json.dumps({"state": state, "questions": [*questions]}, ensure_ascii=False)


def decision_requests(
    model: str, prompt: Prompt, decoding: Decoding, api: DecisionApi
) -> Iterator[tuple[list[str], dict[str, Any]]]:
    """Yield the keys of each request's questions, and its body; one holds most prompts.

    Args:
        model: Name of the model on the server.
        prompt: The prompt (`decision_prompt`).
        decoding: Way in which the judge answers, with the kind of the questions.
        api: Interface of the server.
    """
    assert isinstance(prompt, str), "a decision model's server makes the tokens"
    content = json.loads(prompt)
    text_by_key = {str(n): text for n, text in enumerate(content["questions"], start=1)}
    keys = [*text_by_key]
    for start in range(0, len(keys), MAX_QUESTIONS[api]):
        request_keys = keys[start : start + MAX_QUESTIONS[api]]
        questions = {key: _question(text_by_key[key], decoding, api) for key in request_keys}
        body: dict[str, Any] = {"model": model}
        if api == "systemone":
            body |= {"state": content["state"], "questions": questions}
        else:
            named_questions = [{"name": key, **question} for key, question in questions.items()]
            body |= {"input": content["state"], "questions": named_questions}
        yield request_keys, body


def _question(text: str, decoding: Decoding, api: DecisionApi) -> dict[str, Any]:
    """Return a question in the words of an interface."""
    if decoding.questions == "predicate":
        return {"type": _PREDICATE[api], "instructions": text}
    levels: dict[str, Any] = {"criteria": [*decoding.labels]}
    if api == "decisions":
        levels = {"levels": [{"label": label} for label in decoding.labels]}
    return {"type": "score", "instructions": text, **levels}


def read_decision(
    answer: Any,
    *,
    keys: Sequence[str],
    decoding: Decoding,
    api: DecisionApi,
    size: RequestSize | None = None,
) -> list[Reply]:
    """Read the answer to a request: one reply with the reply to each question.

    A question that the model refuses, or whose answer is missing or cannot be read, is null; the
    others keep their answers.

    Args:
        answer: The answer, which may be anything that JSON can hold.
        keys: Keys of the questions.
        decoding: Way in which the judge answers.
        api: Interface of the server.
        size: Size of the request, against which the token counts are checked.

    Raises:
        UnreadableAnswerError: The answer does not follow the protocol, or answers other questions.
    """
    try:
        answer = protocol.refusal_within(answer) or answer
        if "choices" in answer:  # the whole request was refused
            answers = protocol.read_chat(answer, decoding=decoding) * len(keys)
        else:
            answers = _replies(answer, keys, decoding, api)
        usage, remarks = protocol.usage_of(answer, size, text="")
        name = storable_text(str(answer.get("model") or ""))
    except protocol.FORM_ERRORS as error:
        raise protocol.unreadable(answer, error) from None
    fields: dict[str, Any] = {"usage": usage, "answered_by": name, "remarks": remarks}
    text = _joined_text(keys, answers)
    return [Reply(text=text, is_complete=True, answers=tuple(answers), **fields)]


def joined_reply(replies: Sequence[Reply]) -> Reply:
    """Return one reply to all questions of a prompt that took several requests."""
    if len(replies) == 1:
        return replies[0]
    answers = [answer for reply in replies for answer in reply.answers]
    return Reply(
        text=_joined_text([str(number + 1) for number in range(len(answers))], answers),
        is_complete=True,
        answers=tuple(answers),
        usage=total_usage(reply.usage for reply in replies),
        num_calls=sum(reply.num_calls for reply in replies),
        answered_by=replies[0].answered_by,
        remarks=tuple(dict.fromkeys(remark for reply in replies for remark in reply.remarks)),
    )


def _joined_text(keys: Sequence[str], answers: Sequence[Reply]) -> str:
    """Return the answers to all questions as a JSON object, for people."""
    texts = [answer.null_reason or answer.text for answer in answers]
    return json.dumps(dict(zip(keys, texts, strict=True)), ensure_ascii=False)


def _replies(
    answer: Mapping[str, Any], keys: Sequence[str], decoding: Decoding, api: DecisionApi
) -> list[Reply]:
    """Return the reply to each question.

    Raises:
        ValueError: Two answers have one key, or one has a strange key.
    """
    answer_by_key = _answers_by_key(answer, api)
    if not answer_by_key.keys() <= {*keys}:
        raise ValueError("an answer to another question")
    diagnostics = answer.get("diagnostics") or {}
    return [
        _reply_of(answer_by_key[key], diagnostics.get(key), decoding, api)
        if key in answer_by_key
        else Reply(text="", is_complete=True, null_reason="not_in_reply")
        for key in keys
    ]


def _answers_by_key(answer: Mapping[str, Any], api: DecisionApi) -> dict[str, Any]:
    """Return the answer to each question by its key.

    Raises:
        ValueError: Two answers have one key.
    """
    if api == "systemone":
        return dict(answer["answers"])
    answers = {str(one_answer["name"]): one_answer for one_answer in answer["answers"]}
    if len(answers) != len(answer["answers"]):
        raise ValueError("two answers have one name")
    return answers


def _reply_of(answer: Any, diagnostics: Any, decoding: Decoding, api: DecisionApi) -> Reply:
    """Return the reply to one question; null with its reason if it holds no probabilities."""
    try:
        if answer["type"] == "refusal":
            return Reply(text="", is_complete=True, null_reason="refusal")
        label_mass = 1.0 if diagnostics is None else _probability(diagnostics["label_mass"])
        probabilities = _probabilities(answer, decoding, api)
        total = label_mass * sum(probabilities)
        if total > protocol.MAX_PROBABILITY:
            raise ValueError(f"the probabilities of the levels add up to {total:.3g}")
    except protocol.FORM_ERRORS as error:
        text = str(protocol.unreadable(answer, error))
        return Reply(text=text, is_complete=False, null_reason=UNREADABLE_ANSWER)
    scale = label_mass / max(total, 1.0)  # rounded probabilities may add up to a little more
    logprobs = [math.log(scale * p) if scale * p else -math.inf for p in probabilities]
    return label_reply(decoding, logprobs, NO_USAGE)


def _probabilities(answer: Mapping[str, Any], decoding: Decoding, api: DecisionApi) -> list[float]:
    """Return the probability of each label, the lowest label first.

    Raises:
        ValueError: The answer is of another kind than the question, or has other levels.
    """
    kind = _PREDICATE[api] if decoding.questions == "predicate" else "score"
    if answer["type"] != kind:
        raise ValueError(f"it is no {kind}")
    if decoding.questions == "predicate":
        true = min(1.0, _probability(answer["noul" if api == "systemone" else "probability"]))
        return [1.0 - true, true]
    levels = answer["probabilities"]
    if api == "systemone":
        by_level = {int(level): value for level, value in levels.items()}
    else:
        by_level = {level["value"]: level["probability"] for level in levels}
        if [level["label"] for level in levels] != [decoding.labels[n] for n in by_level]:
            raise ValueError("its levels are others")
    if by_level.keys() != {*range(len(decoding.labels))}:
        raise ValueError(f"{len(by_level)} levels instead of {len(decoding.labels)}")
    return [_probability(by_level[level]) for level in range(len(decoding.labels))]


def _probability(value: Any) -> float:
    """Return a probability, which rounding may have put a little above 1.

    Raises:
        ValueError: It is no number, or not from 0 to 1.
    """
    if isinstance(value, bool | str) or not 0 <= float(value) <= protocol.MAX_PROBABILITY:
        raise ValueError(f"{value!r} is no probability")
    return float(value)
