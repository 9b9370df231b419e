"""What a judge reads, how its replies are read, and what both orders of a pair amount to."""

from __future__ import annotations

import numpy as np
import pytest

from encore.benchmarks.judging.comparison_prompt import (
    HOW_TO_ANSWER,
    prompt_digest,
    render_comparison,
)
from encore.benchmarks.judging.verdicts import (
    pair_credits,
    parse_verdict,
    reliability,
    remarks,
    single_order_credits,
    summarize,
)
from encore.judges.base import Reply
from tests.benchmarks.judging.scripted import make_pair


def test_the_answers_stand_where_the_order_says_and_nothing_else_changes():
    pair = make_pair(3)
    first, second = (
        render_comparison(pair, is_chosen_first=one, protocol="verdict-only")
        for one in (True, False)
    )
    assert first.index(pair.chosen) < first.index(pair.rejected)
    assert second.index(pair.rejected) < second.index(pair.chosen)
    swapped = first.replace(pair.chosen, "X").replace(pair.rejected, pair.chosen)
    assert swapped.replace("X", pair.rejected) == second
    for word in ("chosen", "rejected"):
        assert word not in first.casefold()


def test_placeholders_in_texts_stay_as_they_are():
    pair = make_pair(1, chosen="{answer_b} {criterion}", rejected="{how_to_answer}")
    prompt = render_comparison(pair, is_chosen_first=True, protocol="explained")
    assert "Good 1. {answer_b} {criterion}" in prompt
    assert "Bad 1. {how_to_answer}" in prompt


def test_the_digest_is_that_of_the_protocol():
    # As in judgings that exist: another digest would judge everything again.
    digests = {name: prompt_digest(name)[:12] for name in HOW_TO_ANSWER}
    assert digests == {"explained": "b61fb380c5a9", "verdict-only": "b58d44cad1b7"}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("[[A]]", ("A", None)),
        ("Both are fine, so [[B]]. Yes, [[B]]!", ("B", None)),
        ("[[A]] or [[B]]", (None, "two_verdicts")),
        ("A", (None, "no_verdict")),
        ("[[a]]", (None, "no_verdict")),
        (" \n", (None, "empty_reply")),
    ],
)
def test_a_verdict_is_one_place_in_double_brackets(text, found):
    assert parse_verdict(Reply(text=text, is_complete=True)) == found


def test_cut_off_replies_and_prompts_that_were_not_asked_give_none():
    assert parse_verdict(Reply(text="[[A]]", is_complete=False)) == (None, "reply_cut_off")
    assert parse_verdict(None) == (None, "prompt_too_long")


# Right in both orders; A both times; B both times; wrong both times; right, then nothing.
VERDICT_P2 = np.array([[1, 1], [1, -1], [-1, 1], [-1, -1], [1, 0]], dtype=np.int8)


def test_figures_of_verdicts_as_counted_by_hand():
    found = summarize(VERDICT_P2)
    assert pair_credits(VERDICT_P2).tolist() == [1, 0.5, 0.5, 0, 0.75]
    assert found.accuracy == pytest.approx(2.75 / 5)
    assert (found.accuracy_low, found.accuracy_high) == pytest.approx((2.5 / 5, 3 / 5))
    assert (found.num_unparsed, found.num_answered_twice) == (1, 4)
    assert found.consistency == 2 / 4
    # A: chosen first and named, or rejected first and named: 1 + 2 + 0 + 1 + 1 of 9.
    assert found.share_first == pytest.approx(5 / 9)
    assert found.always is None


def test_one_order_a_pair_is_a_seeded_draw_of_both():
    verdict_P2 = np.array([[1, -1]] * 1000, dtype=np.int8)
    credit_P = single_order_credits(verdict_P2, seed=1)
    assert set(credit_P.tolist()) == {0.0, 1.0}
    assert 0.45 < credit_P.mean() < 0.55
    assert credit_P.tolist() == single_order_credits(verdict_P2, seed=1).tolist()


def told(verdict_P2: np.ndarray, reasons: dict[str, int]) -> list[str]:
    """What is said of a judge called j."""
    summary = summarize(verdict_P2)
    said = remarks(summary, reasons, judge="j", bounds=(0.5, 0.6), figure="Safety")
    return [reliability(summary, judge="j"), *said]


def test_a_judge_that_follows_the_place_is_named():
    always = np.array([[1, -1]] * 3, dtype=np.int8)
    assert any("j always answers A: it follows the place" in one for one in told(always, {}))
    mostly = np.array([[1, -1]] * 39 + [[1, 1]], dtype=np.int8)  # A in 79 of 80
    assert any("j answers A in 98.8% of its verdicts" in one for one in told(mostly, {}))
    assert len(told(VERDICT_P2[:4], {})) == 1


def test_missing_verdicts_are_counted_with_what_they_could_have_made():
    said = told(VERDICT_P2, {"empty_reply": 1})
    assert said[0].startswith("judge j: 9 verdicts in 10 replies; both orders agree on 50.0% of 4")
    assert said[1] == "judge j: 1 of 10 verdicts are missing: the reply is empty"
    assert said[2].endswith("all right Safety would be 50.0% or 60.0%")
    none = told(np.zeros((2, 2), dtype=np.int8), {"no_verdict": 4})
    assert none[0].startswith("judge j: no verdict in 4 replies")
    assert none[0] in none[1:]
