"""Answers of servers of decision models: each depends on the text and the question alone."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

#: Faults of one question of a request, the second, with the reason of its null rating.
QUESTION_FAULTS = {
    "refused_question": "refusal",
    "wordy_question": "unreadable_answer",
    "other_kind": "unreadable_answer",
    "impossible": "unreadable_answer",
    "missing_question": "not_in_reply",
    "little_mass": "low_label_mass",
}


def probability(state: str, question: str) -> float:
    """Return the probability that a statement is true."""
    return hashlib.sha256(f"{state}|{question}".encode()).digest()[0] / 255


def level_probabilities(state: str, question: str, num_levels: int) -> list[float]:
    """Return the probability of each level, the lowest first."""
    weights = [1 + 9 * probability(state, f"{question}|{level}") for level in range(num_levels)]
    return [weight / sum(weights) for weight in weights]


def answer_to_decision(body: dict[str, Any], *, fault: str) -> dict[str, Any]:
    """Return the answer to a request of either interface, without the model's name."""
    if "state" in body:
        state, questions = body["state"], body["questions"]
    else:
        state = body["input"]
        questions = {question["name"]: question for question in body["questions"]}
    answers = {key: _answer(state, question) for key, question in questions.items()}
    diagnostics = {key: {"label_mass": 0.75, "argmax_is_label": True} for key in answers}
    key = [*answers][1 % len(answers)]
    if fault == "missing_question":
        del answers[key]
    elif fault == "little_mass":
        diagnostics[key]["label_mass"] = 0.25
    elif fault in QUESTION_FAULTS:
        answers[key] |= _CHANGES[fault]
    elif fault == "strange_key":
        answers["0"] = answers.pop(key)
    usage = {"input_tokens": 100 * len(questions), "output_tokens": len(questions)}
    if "state" in body:
        return {"answers": answers, "usage": usage, "diagnostics": diagnostics}
    named = [{"name": key, **answer} for key, answer in answers.items()]
    return {"answers": named[::-1], "usage": usage}


#: Changes of an answer by fault.
_CHANGES: dict[str, dict[str, Any]] = {
    "refused_question": {"type": "refusal"},
    "wordy_question": {"probability": "high", "noul": "high", "probabilities": "high"},
    "other_kind": {"type": "choice"},
    "impossible": {"probability": 1.5, "noul": -0.5, "probabilities": None},
}


def _answer(state: str, question: dict[str, Any]) -> dict[str, Any]:
    kind, text = question["type"], question["instructions"]
    if kind == "noul":
        return {"type": kind, "noul": probability(state, text)}
    if kind == "predicate":
        return {"type": kind, "probability": probability(state, text)}
    if "criteria" in question:
        levels: Sequence[Any] = question["criteria"]
        return {"type": kind, "probabilities": _by_level(state, text, levels)}
    labels = [level["label"] for level in question["levels"]]
    probabilities = _by_level(state, text, labels)
    entries = [
        {"label": label, "value": level, "probability": probabilities[str(level)]}
        for level, label in enumerate(labels)
    ]
    return {"type": kind, "probabilities": entries[::-1]}


def _by_level(state: str, text: str, levels: Sequence[str]) -> dict[str, float]:
    probabilities = level_probabilities(state, text, len(levels))
    return {str(level): value for level, value in enumerate(probabilities)}
