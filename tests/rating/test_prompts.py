"""The rating prompt is the paper's, verbatim, and filled in one pass."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from encore.data.records import Message
from encore.data.rule_sets import load_rule_set
from encore.rating.prompts import RATING_TEMPLATE, RatingPrompt, prompt_of, render_conversation
from encore.rating.rating_options import DEFAULT_SCALES

GOLDEN = Path(__file__).parents[1] / "golden" / "rating-prompt.txt"

PROMPT = (
    Message(role="user", content="Can I read my sister's diary?"),
    Message(role="assistant", content="Why do you want to?"),
    Message(role="user", content="I am worried about her."),
)


def test_the_rendered_prompt_equals_the_golden_file():
    rule = load_rule_set("encore-10").rules[0]
    conversation = render_conversation(PROMPT, "Ask her first; a diary is private.")
    rendered = "".join(RatingPrompt().parts(conversation, rating_rule=rule.rating_rule))
    assert rendered == GOLDEN.read_text(encoding="utf-8").removesuffix("\n")


@given(st.text(), st.text())
def test_placeholders_inside_the_texts_stay_as_they_are(conversation, rule):
    conversation = f"{{rule}} {conversation} {{QA}}"
    rule = f"{rule} {{QA}} {{rule}} \\1"
    head, between, tail = RATING_TEMPLATE.replace("{rule}", "\0").replace("{QA}", "\0").split("\0")
    rendered = "".join(RatingPrompt().parts(conversation, rating_rule=rule))
    assert rendered == head + rule + between + conversation + tail


def test_other_layouts_have_the_same_sentences_and_a_longer_common_beginning():
    layouts = ("paper", "conversation-first", "demand-first")
    texts = {
        layout: "".join(
            RatingPrompt(layout=layout).parts("Human: a\n\nAssistant: b", rating_rule="r")
        )
        for layout in layouts
    }
    assert texts["paper"] == RATING_TEMPLATE.format(rule="r", QA="Human: a\n\nAssistant: b")
    # Sentences are parted by blank lines; the demand and "Score:" by a space or a blank line.
    sentences = [
        sorted(text.replace(" Score:", "\n\nScore:").split("\n\n")) for text in texts.values()
    ]
    assert sentences[0] == sentences[1] == sentences[2]
    assert all(text.endswith("Score:") for text in texts.values())
    # Each layout puts the rule behind more of the text.
    starts = {layout: texts[layout].index("Criterion for evaluation:\n\nr\n") for layout in layouts}
    assert starts["paper"] < texts["paper"].index("Human: a")
    assert starts["conversation-first"] < texts["conversation-first"].index("You must return")
    assert texts["demand-first"].endswith("else.\n\nCriterion for evaluation:\n\nr\n\nScore:")


def test_a_scale_is_named_wherever_the_paper_names_its_own():
    prompt = RatingPrompt(labels=tuple("0123456789"))
    text = "".join(prompt.parts("between 0 and 1", rating_rule="from 0 to 1"))
    for phrase in ("from 0 to 9.", "a score of 9", "with one of 0, 1, 2, 3", "between 0 and 9 and"):
        assert phrase in text
    assert text.count("between 0 and 1") == text.count("from 0 to 1") == 1  # those of the texts


@pytest.mark.parametrize("layout", ["paper", "conversation-first", "demand-first", "all-rules"])
def test_a_choice_names_its_scale_and_the_tenths_in_the_paper_s_words(layout):
    choice = {"decode": "choice", "layout": layout}
    plain = prompt_of({"layout": layout})
    assert (
        prompt_of(choice)
        == prompt_of({**choice, "scale": ",".join(DEFAULT_SCALES["choice"])})
        == plain
    )
    for options in ({}, {"ask_applies": True}):
        prompt = prompt_of({**choice, **options, "scale": "1,2,5"})
        text = "".join(prompt.parts("Human: a", rating_rule="r"))
        for phrase in ("from 1 to 5.", "A score of 1 ", "a score of 5 ", "between 1 and 5"):
            assert text.count(phrase) == 1
        assert (
            "one of 1, 2, 5 for each" if layout == "all-rules" else "with one of 1, 2, 5 "
        ) in text
        assert "float" not in text
        assert text.count('or "n/a", for the number of each') == (
            layout == "all-rules" and "ask_applies" in options
        )
