"""The reply parser accepts one number in [0, 1] and nothing else."""

from __future__ import annotations

import pytest

from encore.rating.replies import parse_reply


@pytest.mark.parametrize(
    ("reply", "rating"),
    [
        ("0.8", 0.8),
        ("0", 0.0),
        ("1", 1.0),
        ("1.000", 1.0),
        ("0.85.", 0.85),
        ("1.", 1.0),
        (".5", 0.5),
        ("Score: 0.7", 0.7),
        (" 0.3\n", 0.3),
        ("Score:\n0.25", 0.25),
        # half-even in decimal: the digit before a lone 5 stays even
        ("0.125", 0.12),
        ("0.135", 0.14),
        ("0.1250001", 0.13),
    ],
)
def test_one_number_is_a_rating(reply, rating):
    assert parse_reply(reply) == (rating, None)


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
    ("reply", "reason"), [(reply, reason) for reason in NULLS for reply in NULLS[reason]]
)
def test_anything_else_is_null_with_its_reason(reply, reason):
    assert parse_reply(reply) == (None, reason)
