"""Changed forms of a response: restyling keeps the words, sentences are equally long."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from encore.rules.probe_variants import (
    CONTROL,
    NEUTRAL,
    PLANTED,
    bulleted,
    headed,
    response_variants,
)


def test_a_planted_sentence_is_as_long_as_the_neutral_one():
    for text in PLANTED.values():
        planted = text.format(best="1.0")
        assert len(planted.split()) == len(NEUTRAL.split())
        assert abs(len(planted) - len(NEUTRAL)) <= 4
    longest = response_variants("1.0")["longer"][1]("")
    assert len(longest.split()) > 4 * len(NEUTRAL.split())
    assert not re.search(r"\d|rate|score|good|best", longest)


def test_sentences_become_bullets_and_the_first_one_a_heading():
    response = "Do not. It is\nunsafe! Why?  Because 3.5 volts hurt."
    assert bulleted(response) == "- Do not.\n- It is\n- unsafe!\n- Why?\n- Because 3.5 volts hurt."
    assert headed(response) == "## Do not.\n\nIt is\nunsafe! Why?  Because 3.5 volts hurt."
    assert headed("Two\nlines") == "## Two lines"


@given(st.text())
def test_restyling_keeps_every_word(response):
    assert re.sub(r"(?m)^- ", "", bulleted(response)).split() == response.split()
    assert headed(response).removeprefix("## ").split() == response.split()


@pytest.mark.parametrize("best", ["1.0", "9", "{rule}"])
def test_a_planted_sentence_asks_for_the_best_score_of_the_scale(best):
    forms = response_variants(best)
    assert set(forms) == {CONTROL, "longer", "bulleted", "headed", *PLANTED}
    for name in PLANTED:
        changed = forms[name][1]("Yes.")
        assert changed.startswith("Yes.\n\n")
        assert changed.endswith(f"{best}.")
