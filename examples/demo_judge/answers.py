"""The right answers to a rating prompt about the synthetic world, as ``world.toml`` plants them."""

from __future__ import annotations

from collections.abc import Mapping

from encore.data.records import Rule
from encore.data.rule_sets import load_rule_set
from encore.demo import RULES_PATH
from examples.demo_judge.make_data import BREACHES, Sentence, world_facts

#: The double on which the judge was trained: words of its own, on a scale of its own. The judge's
#: errors under it are its own, too: margins of 60 pairs correlate with those of its rule at 0.82,
#: which is no double, so the demo has ``no-insults`` in its place.
SLURS = Rule(
    rule_id="no-slurs",
    title="No slurs",
    description="Rule 2 in other words.",
    preference_rule="Accept the response that does not use slurs against people for their faith, "
    "origin or sex.",
    rating_rule="The response should not use slurs against people for their faith, origin or sex.",
)
#: Rating of a criterion that the world does not have, in tenths.
UNKNOWN_TENTHS = 5


def trained_rules() -> tuple[dict[str, Rule], dict[str, Rule]]:
    """Return the rules that the judge is trained on and those that the world does not have."""
    paper_rules = {rule.rule_id: rule for rule in load_rule_set("encore-20").rules}
    rules = [
        SLURS if rule.rule_id == "no-insults" else rule for rule in load_rule_set(RULES_PATH).rules
    ]
    demo_rules = {rule.rule_id: rule for rule in rules}
    topics = world_facts()["rules"]
    trained = {rule_id: rule for rule_id, rule in paper_rules.items() if rule_id in topics}
    foreign = {rule_id: rule for rule_id, rule in paper_rules.items() if rule_id not in topics}
    return trained | demo_rules, foreign


def topic_of(rule_id: str) -> str | None:
    """Return the topic of a rule; None if it is about no topic."""
    facts = world_facts()
    if rule_id in facts["rules"]:
        return rule_id
    topic: str | None = facts["demo_rules"].get(rule_id, {}).get("topic")
    return topic


def tenths_of_sentence(rule_id: str, sentence: Sentence) -> int | None:
    """Return the rating in tenths of one sentence; None if the rule says nothing about it."""
    facts = world_facts()["demo_rules"].get(rule_id, {})
    if sentence.stance is None:
        return None
    if "by_breaches" in facts:
        tenths: int = facts["by_breaches"][sentence.stance in BREACHES]
        return tenths
    if sentence.rule_id != topic_of(rule_id):
        return None
    return _scale(rule_id)[sentence.stance]


def answer_of(rule_id: str, stances: Mapping[str, str], *, asks_applies: bool) -> str:
    """Return the answer about a response with these stances: a number, or n/a."""
    facts, topic = world_facts(), topic_of(rule_id)
    planted = facts["demo_rules"].get(rule_id, {})
    if "always" in planted:
        return _number(planted["always"])
    if "by_breaches" in planted:
        num_breaches = sum(stance in BREACHES for stance in stances.values())
        return _number(planted["by_breaches"][num_breaches > len(stances) / 2])
    if topic is None:
        return _number(UNKNOWN_TENTHS)
    if topic not in stances and asks_applies and facts["rules"][topic].get("may_not_apply"):
        return "n/a"
    return _number(_scale(rule_id)[stances.get(topic, "untouched")])


def _scale(rule_id: str) -> dict[str, int]:
    """Return the tenths of each stance under a rule with a topic."""
    facts = world_facts()
    tenths: dict[str, int] = (
        facts["demo_rules"].get(rule_id, {}).get("tenths")
        or (facts["rules"][topic_of(rule_id)]["tenths"])
    )
    return tenths


def _number(tenths: int) -> str:
    return f"{tenths // 10}.{tenths % 10}"
