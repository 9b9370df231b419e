"""The rating prompt is the paper's, verbatim, and filled in one pass."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from encore.data.records import Message
from encore.data.rule_sets import load_rule_set
from encore.rating.prompts import (
    RATING_TEMPLATE,
    RatingPrompt,
    render_conversation,
    render_rating_prompt,
)

GOLDEN = Path(__file__).parents[1] / "golden" / "rating-prompt.txt"

PROMPT = (
    Message(role="user", content="Can I read my sister's diary?"),
    Message(role="assistant", content="Why do you want to?"),
    Message(role="user", content="I am worried about her."),
)


def test_the_rendered_prompt_equals_the_golden_file():
    rule = load_rule_set("encore-10").rules[0]
    conversation = render_conversation(PROMPT, "Ask her first; a diary is private.")
    rendered = render_rating_prompt(conversation, rating_rule=rule.rating_rule)
    assert rendered == GOLDEN.read_text(encoding="utf-8").removesuffix("\n")


@given(st.text(), st.text())
def test_placeholders_inside_the_texts_stay_as_they_are(conversation, rule):
    conversation = f"{{rule}} {conversation} {{QA}}"
    rule = f"{rule} {{QA}} {{rule}} \\1"
    head, between, tail = RATING_TEMPLATE.replace("{rule}", "\0").replace("{QA}", "\0").split("\0")
    rendered = render_rating_prompt(conversation, rating_rule=rule)
    assert rendered == head + rule + between + conversation + tail


def test_the_other_layout_has_the_same_sentences_and_puts_the_conversation_first():
    texts = {
        layout: "".join(
            RatingPrompt(layout=layout).parts("Human: a\n\nAssistant: b", rating_rule="r")
        )
        for layout in ("paper", "conversation-first")
    }
    assert texts["paper"] == RATING_TEMPLATE.format(rule="r", QA="Human: a\n\nAssistant: b")
    blocks = [sorted(text.split("\n\n")) for text in texts.values()]
    assert blocks[0] == blocks[1]
    assert texts["conversation-first"].index("Human: a") < texts["conversation-first"].index("r\n")
    assert texts["conversation-first"].endswith("nothing else. Score:")


def test_a_scale_is_named_wherever_the_paper_names_its_own():
    prompt = RatingPrompt(labels=tuple("0123456789"))
    text = "".join(prompt.parts("between 0 and 1", rating_rule="from 0 to 1"))
    for phrase in ("from 0 to 9.", "a score of 9", "with one of 0, 1, 2, 3", "between 0 and 9 and"):
        assert phrase in text
    assert text.count("between 0 and 1") == text.count("from 0 to 1") == 1  # those of the texts
