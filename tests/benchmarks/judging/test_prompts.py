"""What the judge of two answers reads: both orders, one criterion, nothing that gives them away."""

from __future__ import annotations

import dataclasses

import pytest

from encore.benchmarks.judging.prompts import (
    EXPLAINED,
    OVERALL,
    PROTOCOLS,
    VERDICT_ONLY,
    Criterion,
    find_protocol,
    prompt_digest,
    render_comparison,
    rule_criteria,
)
from encore.data.records import Message
from encore.data.rules import load_rule_set
from encore.errors import InputError
from tests.benchmarks.judging.scripted import is_chosen_first, make_pair


def render(pair, *, first: bool = True, criterion=OVERALL, protocol=VERDICT_ONLY) -> str:
    return render_comparison(pair, is_chosen_first=first, criterion=criterion, protocol=protocol)


def test_the_two_orders_differ_in_the_places_of_the_answers_alone():
    pair = make_pair(3)
    one, other = render(pair, first=True), render(pair, first=False)
    assert is_chosen_first(one)
    assert not is_chosen_first(other)
    marked = other.replace(pair.chosen, "<1>").replace(pair.rejected, "<2>")
    assert marked.replace("<2>", pair.chosen).replace("<1>", pair.rejected) == one


@pytest.mark.parametrize("protocol", PROTOCOLS.values(), ids=lambda one: one.name)
def test_the_prompt_asks_for_both_verdict_tokens_and_does_not_give_the_label_away(protocol):
    prompt = render(make_pair(3), protocol=protocol)
    assert "[[A]]" in prompt
    assert "[[B]]" in prompt
    assert "chosen" not in prompt
    assert "rejected" not in prompt


def test_all_turns_stand_before_the_answers_in_the_words_of_the_rating_prompt():
    prompt = (
        Message(role="system", content="Be brief."),
        Message(role="user", content="Hello."),
        Message(role="assistant", content="Hi."),
        Message(role="user", content="Question 3?"),
    )
    text = render(dataclasses.replace(make_pair(3), prompt=prompt))
    turns = "System: Be brief.\n\nHuman: Hello.\n\nAssistant: Hi.\n\nHuman: Question 3?"
    assert f"<conversation>\n{turns}\n</conversation>" in text


def test_an_answer_that_spells_a_placeholder_stays_as_it_is():
    prompt = render(make_pair(3, chosen="{criterion} {answer_b}"))
    assert "Good 3. {criterion} {answer_b}" in prompt
    assert prompt.count("Bad 3.") == 1


def test_each_rule_is_judged_by_its_preference_rule():
    rule_set = load_rule_set("encore-10")
    criteria = rule_criteria(rule_set)
    assert tuple(one.criterion_id for one in criteria) == rule_set.rule_ids
    for rule, criterion in zip(rule_set.rules, criteria, strict=True):
        assert f"Rule: {rule.preference_rule}\n" in render(make_pair(3), criterion=criterion)


def test_prompts_of_one_order_share_all_that_stands_before_the_criterion():
    """An engine with prefix caching then reads the answers once for all rules."""
    one, other = (
        render(make_pair(3), criterion=criterion)
        for criterion in rule_criteria(load_rule_set("encore-10"))[:2]
    )
    end = one.index("</answer of assistant B>")
    assert one[:end] == other[:end]


def test_another_wording_is_another_digest():
    changed = Criterion(criterion_id="overall", text="Which is shorter?")
    renamed = dataclasses.replace(OVERALL, criterion_id="other")
    digests = {
        prompt_digest(VERDICT_ONLY, [OVERALL]),
        prompt_digest(EXPLAINED, [OVERALL]),
        prompt_digest(VERDICT_ONLY, [changed]),
        prompt_digest(VERDICT_ONLY, [renamed]),
        prompt_digest(VERDICT_ONLY, [OVERALL, changed]),
    }
    assert len(digests) == 5


def test_an_unknown_protocol_is_named_with_those_there_are():
    with pytest.raises(InputError, match=r"'chatty'.*explained, verdict-only"):
        find_protocol("chatty")
