"""Read a judge's reply. Pure functions: a rating in [0, 1], or a reason why there is none."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_HALF_EVEN, Decimal
from typing import Any

import numpy as np
from scipy.special import entr

from encore.data.rating_runs import DOES_NOT_APPLY
from encore.judges.base import Decoding, Reply
from encore.runs.worker import RunReport

#: One ASCII decimal, optionally with ``Score:`` before it and a full stop after it. ``.5`` is a
#: number; signs, exponents, leading zeros, thousands separators, percent signs, fractions are not.
_NUMBER = r"((?:0|[1-9][0-9]*)(?:\.[0-9]+)?|\.[0-9]+)"
_SCORE = re.compile(rf"(?:score:\s*)?{_NUMBER}\.?", re.IGNORECASE | re.ASCII)
_NEGATIVE = re.compile(rf"(?:score:\s*)?-{_NUMBER}\.?", re.IGNORECASE | re.ASCII)
_NOT_APPLICABLE = re.compile(r"(?:score:\s*)?(?:n/?a|not applicable)\.?", re.IGNORECASE | re.ASCII)
_CENT = Decimal("0.01")
#: A JSON object, maybe as a block of Markdown, as judges write it.
_JSON_OBJECT = re.compile(r"(?:```(?:json)?\s*)?(\{.*\})(?:\s*```)?", re.DOTALL)

#: Reasons of nulls that come from a server's filter, and the largest share without a warning.
_REFUSALS = ("content_filter", "refused", "refusal", "empty_reply", "only_thinking")
_MAX_REFUSED_SHARE = 0.05

#: Part of a run's identity: raise it whenever any reply would be read differently.
PARSER_VERSION = 1


def parse_reply(raw_reply: str) -> tuple[float | None, str | None]:
    """Return the rating in a reply, rounded half-even to 2 decimals, or the reason of a null.

    Only ASCII white space around the reply is ignored. Anything but a single number (``8/10``,
    ``0,8``, ``80 %``, two numbers, prose, other scripts' digits) is null. The paper does not say
    how such replies count; a guess such as 0 or 0.5 would change a rule's entropy and accuracy.
    """
    text = raw_reply.strip(" \t\r\n")
    if not text:
        return None, "empty_reply"
    match = _SCORE.fullmatch(text)
    if match is None:
        return None, "out_of_range" if _NEGATIVE.fullmatch(text) else "not_a_single_number"
    value = Decimal(match.group(1))
    if value > 1:
        return None, "out_of_range"
    return float(value.quantize(_CENT, rounding=ROUND_HALF_EVEN)), None


def scale_values(labels: Sequence[str]) -> tuple[float, ...]:
    """Return the rating that each label of a scale stands for, the lowest first.

    Labels that are all numbers from 0 to 1 are their own ratings; others are evenly spaced.
    """
    numbers = [parse_reply(label)[0] for label in labels]
    if all(number is not None for number in numbers):
        return tuple(float(number) for number in numbers if number is not None)
    return tuple(position / (len(labels) - 1) for position in range(len(labels)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Content of a reply: a rating, or the reason why there is none.

    Attributes:
        rating: Rating in [0, 1]: a multiple of 0.01, or the value of one of the scale's labels.
        null_reason: Reason of a missing rating: ``empty_reply``, ``not_a_single_number``,
            ``out_of_range``, ``reply_cut_off``, ``prompt_too_long``, ``not_on_scale``,
            ``low_label_mass``; of several scores ``not_in_reply``, ``not_an_object_of_scores``;
            from a server also ``content_filter``, ``refused``, ``refusal``, ``only_thinking``,
            ``server_error``, ``unreadable_answer``. The reason ``does_not_apply`` is no failure:
            the judge says so.
        expected_rating: Mean rating over the labels' probabilities (decode ``expected`` alone).
        label_mass: Probability of all labels together, from 0 to 1 (``expected`` alone).
        reply_entropy: Entropy in nats of the labels' probabilities (``expected`` alone).
    """

    rating: float | None = None
    null_reason: str | None = None
    expected_rating: float | None = None
    label_mass: float | None = None
    reply_entropy: float | None = None


def text_of_answer(reply: Reply, decoding: Decoding) -> str | None:
    """Return a reply without the judge's thinking; None if reply or thinking is cut off.

    The first mark may be missing, because a chat template may write it at the end of the prompt.
    """
    if not reply.is_complete:
        return None
    if decoding.thinking_marks is None:
        return reply.text
    opening, closing = decoding.thinking_marks
    if decoding.think_tokens is not None:  # all before the mark is thinking
        return reply.text.rpartition(closing)[2]
    answer, remainder = "", reply.text
    while closing in remainder:
        thinking, _, remainder = remainder.partition(closing)
        answer += thinking.partition(opening)[0] if opening in thinking else ""
    return None if opening in remainder else answer + remainder


def thinking_tokens(replies: Sequence[Reply], decoding: Decoding) -> dict[str, int]:
    """Return the output tokens that went into thinking, as they were counted or estimated.

    The estimate is the share of the characters that are no part of the answer.
    """
    counted = sum(reply.usage.thinking_tokens for reply in replies)
    num_characters = sum(len(reply.text) for reply in replies)
    if counted or decoding.thinking_marks is None or not num_characters:
        return {"thinking_tokens": counted, "estimated_thinking_tokens": 0}
    num_in_answers = sum(len(text_of_answer(reply, decoding) or "") for reply in replies)
    num_tokens = sum(reply.usage.output_tokens for reply in replies)
    share = 1 - num_in_answers / num_characters
    return {"thinking_tokens": 0, "estimated_thinking_tokens": round(share * num_tokens)}


def read_reply(reply: Reply | None, decoding: Decoding, *, min_label_mass: float) -> Answer:
    """Read a reply. None stands for a prompt that was too long to be asked."""
    if reply is None:
        return Answer(null_reason="prompt_too_long")
    if reply.null_reason is not None:
        return Answer(null_reason=reply.null_reason)
    if reply.label_logprobs is not None:
        return _read_labels(reply.label_logprobs, decoding, min_label_mass=min_label_mass)
    text = text_of_answer(reply, decoding)
    if text is None:
        return Answer(null_reason="reply_cut_off")
    if decoding.not_applicable is not None and _NOT_APPLICABLE.fullmatch(text.strip(" \t\r\n")):
        return Answer(null_reason=DOES_NOT_APPLY)
    if decoding.kind == "choice":
        value_by_label = dict(zip(decoding.scale, scale_values(decoding.scale), strict=True))
        rating = value_by_label.get(text.strip())
        return Answer(rating=rating, null_reason="not_on_scale" if rating is None else None)
    rating, null_reason = parse_reply(text)
    return Answer(rating=rating, null_reason=null_reason)


def read_answers(reply: Reply | None, decoding: Decoding, *, min_label_mass: float) -> list[Answer]:
    """Read the answer to each rule of a prompt, in the order of the prompt.

    A reply with several scores is one JSON object whose keys are numbers of the list. A score that
    is missing, or there twice, is null. A strange key makes all null: the judge may have counted
    from 0. A decision model's answers to several questions are read one by one.
    """
    if reply is not None and reply.answers:
        return [
            read_reply(one_answer, decoding, min_label_mass=min_label_mass)
            for one_answer in reply.answers
        ]
    answer = read_reply(reply, decoding, min_label_mass=min_label_mass)
    if decoding.num_scores is None:
        return [answer]
    text = None if reply is None else text_of_answer(reply, decoding)
    if reply is None or reply.null_reason is not None or text is None:
        return [answer] * decoding.num_scores
    scores = _parse_scores(text)
    if scores is None or not scores.keys() <= {*decoding.score_keys}:
        return [Answer(null_reason="not_an_object_of_scores")] * decoding.num_scores
    return [
        read_reply(replace(reply, text=scores[key]), decoding, min_label_mass=min_label_mass)
        if key in scores
        else Answer(null_reason="not_in_reply")
        for key in decoding.score_keys
    ]


def _parse_scores(text: str) -> dict[str, str] | None:
    """Return the values of a JSON object as they are written; None if the text is no object.

    A value that is no number or text, or that is there twice, is not a score: its text is a word.
    """

    def unique(items: list[tuple[str, Any]]) -> dict[str, str]:
        num_times = Counter(key for key, _ in items)
        is_score = {key: isinstance(value, str) and num_times[key] == 1 for key, value in items}
        return {key: value if is_score[key] else "none" for key, value in items}

    if (match := _JSON_OBJECT.fullmatch(text.strip(" \t\r\n"))) is None:
        return None
    try:
        scores: dict[str, str] = json.loads(
            match[1], parse_float=str, parse_int=str, object_pairs_hook=unique
        )
    except (ValueError, RecursionError):
        return None
    return scores


def note_on_refusals(report: RunReport) -> str | None:
    """Return a warning if many prompts of a run got no answer, else None."""
    reasons = report.counts_by("null_reasons")
    num_refused = sum(reasons.get(reason, 0) for reason in _REFUSALS)
    rated = [shard for shard in report.outcomes if shard.action == report.kind.DONE]
    num_rows = sum(shard.num_rows for shard in rated)
    if num_refused <= _MAX_REFUSED_SHARE * num_rows:
        return None
    return (
        f"{num_refused:,} of {num_rows:,} prompts got no answer: safety data trigger filters, and "
        "the ratings that are left are no fair sample; use a judge without a filter, or give one "
        "that reasons more --max-reply-tokens"
    )


def _read_labels(
    label_logprobs: Sequence[float], decoding: Decoding, *, min_label_mass: float
) -> Answer:
    mass_L = np.exp(np.asarray(label_logprobs, dtype=np.float64))
    mass = float(mass_L.sum())
    if not mass >= min_label_mass:
        return Answer(null_reason="low_label_mass", label_mass=mass)
    values_L = np.array(scale_values(decoding.scale))
    most_likely = decoding.most_likely(label_logprobs)
    if most_likely >= len(values_L):  # the last label, of a rule that does not apply
        return Answer(null_reason=DOES_NOT_APPLY, label_mass=mass)
    mass_L = mass_L[: len(values_L)]
    mass_on_scale = float(mass_L.sum())
    return Answer(
        rating=float(values_L[most_likely]),
        expected_rating=float(mass_L @ values_L / mass_on_scale),
        label_mass=mass,
        reply_entropy=float(entr(mass_L / mass_on_scale).sum()),
    )
