"""A verdict is read only where a reply has exactly one; nothing is guessed."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from encore.benchmarks.judging.verdicts import parse_verdict
from encore.judges.base import Reply


def parsed(text: str, *, is_complete: bool = True):
    verdict = parse_verdict(Reply(text=text, is_complete=is_complete))
    return verdict.place, verdict.null_reason


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[[A]]", ("A", None)),
        (" The second is kinder.\n\n[[B]].", ("B", None)),
        ("[[B]] Final verdict: [[B]]", ("B", None)),
        ("", (None, "empty_reply")),
        (" \n", (None, "empty_reply")),
        ("A", (None, "no_verdict")),
        ("[A]", (None, "no_verdict")),
        ("[[a]]", (None, "no_verdict")),
        ("[[C]]", (None, "no_verdict")),
        ("[[ A ]]", (None, "no_verdict")),
        ("Assistant A is better.", (None, "no_verdict")),
        # RewardBench's own reader looks for [[A]] first, whatever stands last.
        ("[[A]] would be if it were polite, so [[B]]", (None, "two_verdicts")),
        ("[[B]] or [[A]]", (None, "two_verdicts")),
    ],
)
def test_a_reply_is_read_as_its_one_verdict_or_as_none_with_a_reason(text, expected):
    assert parsed(text) == expected


def test_a_cut_off_reply_is_none_even_with_a_verdict_in_it():
    assert parsed("[[A]] because", is_complete=False) == (None, "reply_cut_off")


def test_a_prompt_that_was_never_asked_is_none():
    verdict = parse_verdict(None)
    assert (verdict.place, verdict.null_reason) == (None, "prompt_too_long")


#: Texts of which many spell a verdict, nearly spell one, or spell both.
replies = st.lists(
    st.sampled_from(["[[A]]", "[[B]]", "[[", "]]", "A", "B", " "]) | st.text(max_size=3), max_size=6
).map("".join)


@given(replies, st.booleans())
@example("so [[A]]", True)
@example("[[A]] or [[B]]", True)
def test_there_is_a_verdict_exactly_where_one_of_the_two_is_spelt(text, is_complete):
    place, reason = parsed(text, is_complete=is_complete)
    assert (place is None) != (reason is None)
    spelt = [one for one in ("A", "B") if f"[[{one}]]" in text]
    assert ([] if place is None else [place]) == (spelt if is_complete and len(spelt) == 1 else [])
