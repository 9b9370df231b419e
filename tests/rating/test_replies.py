"""The reply parser accepts one number in [0, 1] and nothing else."""

from __future__ import annotations

import math

import pytest

from encore.judges.base import Decoding, Reply, Usage
from encore.judges.judge_options import JudgeConfig
from encore.rating.rating_options import RatingConfig
from encore.rating.replies import parse_reply, read_reply, scale_values, thinking_tokens

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


THINKING = Decoding(max_reply_tokens=1000, thinking_marks=("<think>", "</think>"))


@pytest.mark.parametrize(
    ("text", "rating", "reason"),
    [
        ("<think>0.1 or 0.9?</think> 0.7", 0.7, None),
        ("0.1 or 0.9?</think>\n\nScore: 0.7", 0.7, None),  # the template wrote the first mark
        ("<think></think>0.7", 0.7, None),
        ("<think>a</think><think>b</think>0.7", 0.7, None),
        ("<think>a <think>b</think> c</think>0.7", 0.7, None),
        ("0.7", 0.7, None),  # it did not think
        ("<think>0.7", None, "reply_cut_off"),
        ("<think>a</think>0.7<think>b", None, "reply_cut_off"),
        ("<think>a</think>", None, "empty_reply"),
        ("Sure: <think>a</think> 0.7", None, "not_a_single_number"),
        ("<think>a</think> 0.2 <think>b</think> 0.7", None, "not_a_single_number"),
    ],
)
def test_thinking_is_no_part_of_the_answer(text, rating, reason):
    answer = read_reply(Reply(text=text, is_complete=True), THINKING, min_label_mass=0.5)
    assert (answer.rating, answer.null_reason) == (rating, reason)


def test_thinking_stays_in_the_answer_without_the_option():
    reply = Reply(text="<think>a</think> 0.7", is_complete=True)
    decoding = Decoding(max_reply_tokens=1000)
    assert read_reply(reply, decoding, min_label_mass=0.5).null_reason == "not_a_single_number"


@pytest.mark.parametrize("decoding", [THINKING, Decoding(max_reply_tokens=3)])
def test_a_reply_that_its_limit_cut_off_is_null_whatever_it_holds(decoding):
    reply = Reply(text="<think>a</think>0.7"[-3:], is_complete=False)
    assert read_reply(reply, decoding, min_label_mass=0.5).null_reason == "reply_cut_off"


@pytest.mark.parametrize(
    ("name", "marks"),
    [("think", ("<think>", "</think>")), ("[THINK],[/THINK]", ("[THINK]", "[/THINK]"))],
)
def test_marks_have_a_name_or_are_given(name, marks):
    config = RatingConfig(judge=JudgeConfig(model="judge"), strip_thinking=name)
    assert config.thinking_marks == marks


def test_tokens_of_thinking_are_those_of_the_server_or_a_share_of_the_characters():
    # 30 characters, of which the answers " 0.7" and "0.5" are 7; 100 output tokens: 76.7.
    usage = Usage(prompt_tokens=9, output_tokens=50)
    texts = ["<think>....</think> 0.7", "0.5", "<thi"]
    replies = [
        Reply(text=texts[0], is_complete=True, usage=usage),
        Reply(text=texts[1], is_complete=True, usage=usage),
        Reply(text=texts[2], is_complete=False),
    ]
    assert sum(map(len, texts)) == 30
    assert thinking_tokens(replies, THINKING) == {
        "thinking_tokens": 0,
        "estimated_thinking_tokens": 77,
    }
    counted = [*replies, Reply(text="0.5", is_complete=True, usage=Usage(9, 0, 50, 40))]
    assert thinking_tokens(counted, THINKING)["thinking_tokens"] == 40
    assert thinking_tokens(replies, EXPECTED)["estimated_thinking_tokens"] == 0
