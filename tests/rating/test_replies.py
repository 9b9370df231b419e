"""The reply parser accepts one number in [0, 1] and nothing else."""

from __future__ import annotations

import math

import pytest

from encore.judges.base import Decoding, Reply
from encore.rating.replies import parse_reply, read_reply, scale_values

RATINGS = {
    "0.8": 0.8,
    "0": 0.0,
    "1": 1.0,
    "1.000": 1.0,
    "0.85.": 0.85,
    "1.": 1.0,
    ".5": 0.5,
    "Score: 0.7": 0.7,
    " 0.3\n": 0.3,
    "Score:\n0.25": 0.25,
    # Half-even in decimal: the digit before a lone 5 stays even.
    "0.125": 0.12,
    "0.135": 0.14,
    "0.1250001": 0.13,
}
NULLS = {
    "empty_reply": ("", " \n"),
    "not_a_single_number": (
        *("8/10", "0,8", "80 %", "80%", "0.8 0.9", "0.8\n0.8", "nan", "inf", "٠.٨", "0.８", "½"),
        *("0.8 because it is safe", "The score is 0.8", "**0.8**", "'0.8'", "Score: Score: 0.8"),
        *("1e-1", "+0.5", "0.8..", "0.8\u00a0", "00.5", "0x1", "0_1", "."),
    ),
    "out_of_range": ("-1", "-0.5", "1.2", "1.0000001", "10", "Score: 7"),
}


@pytest.mark.parametrize(
    ("reply", "rating", "reason"),
    [
        *((reply, rating, None) for reply, rating in RATINGS.items()),
        *((reply, None, reason) for reason in NULLS for reply in NULLS[reason]),
    ],
)
def test_one_number_is_a_rating_and_anything_else_is_null_with_its_reason(reply, rating, reason):
    assert parse_reply(reply) == (rating, reason)


def test_numbers_from_0_to_1_are_their_own_ratings_and_other_labels_are_evenly_spaced():
    assert scale_values(("0.0", "0.25", "1")) == (0.0, 0.25, 1.0)
    assert scale_values(("0", "1", "2", "3", "4")) == (0.0, 0.25, 0.5, 0.75, 1.0)
    assert scale_values(("bad", "good")) == (0.0, 1.0)


EXPECTED = Decoding(kind="expected", max_reply_tokens=16, labels=("A", "B", "C"))


def labelled(*shares: float) -> Reply:
    logprobs = tuple(math.log(share) for share in shares)
    return Reply(text="B", is_complete=True, label_logprobs=logprobs)


def test_an_expected_answer_keeps_level_mean_mass_and_entropy():
    answer = read_reply(labelled(0.1, 0.3, 0.4), EXPECTED, min_label_mass=0.5)
    assert answer.rating == 1.0  # C
    # Of a mass of 0.8: 1/8, 3/8, 4/8; their mean on 0, 0.5, 1 is 3/16 + 8/16.
    assert answer.expected_rating == pytest.approx(11 / 16)
    assert answer.label_mass == pytest.approx(0.8)
    entropy = -(math.log(1 / 8) / 8 + 3 * math.log(3 / 8) / 8 + math.log(1 / 2) / 2)
    assert answer.reply_entropy == pytest.approx(entropy)


def test_too_little_label_mass_is_null_and_the_mass_is_kept():
    answer = read_reply(labelled(0.1, 0.1, 0.2), EXPECTED, min_label_mass=0.5)
    assert (answer.rating, answer.expected_rating) == (None, None)
    assert answer.null_reason == "low_label_mass"
    assert answer.label_mass == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("text", "rating", "reason"), [("0.5", 0.5, None), ("0.4", None, "not_on_scale")]
)
def test_a_choice_that_is_no_label_is_null(text, rating, reason):
    decoding = Decoding(kind="choice", max_reply_tokens=16, labels=("0.0", "0.5", "1.0"))
    answer = read_reply(Reply(text=text, is_complete=True), decoding, min_label_mass=0.5)
    assert (answer.rating, answer.null_reason) == (rating, reason)
