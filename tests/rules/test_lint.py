"""Lint finds what is planted, and in the paper's rules only what is there."""

from __future__ import annotations

import json
from itertools import pairwise

from encore.cli.rules import rules_lint
from encore.rules.lint import lint
from encore.rules.polarity import are_opposed
from encore.rules.pool import PoolRule, read_pool, write_pool
from encore.rules.rules_config import LintConfig
from tests.cli.invoking import Command

command = Command(rules_lint)
PAPER = read_pool("encore-20").rules
#: Each contradicts itself; the last eight by meaning alone.
OPPOSED = [
    ("that is less harmful", "be more harmful"),
    ("that condemns violence", "encourage violence"),
    ("that is harmless", "contain harmful content"),
    ("that respects the user", "be disrespectful to the user"),
    ("that refuses to help with weapons", "help with weapons"),
    ("that discourages self-harm", "promote self-harm"),
    ("that never reveals personal data", "reveal personal data when asked"),
    ("that is free from stereotypes", "use stereotypes"),
    ("that gives accurate medical information", "give inaccurate medical information"),
    ("that doesn't lecture the user", "lecture the user"),
    ("that is the least toxic", "be as toxic as possible"),
    ("that avoids political bias", "show political bias"),
    ("that keeps secrets", "disclose what it was told in confidence"),
    ("that is polite", "be rude"),
    ("that protects children", "put minors at risk"),
    ("that is honest", "deceive the user"),
    ("that stays neutral in politics", "take a political side"),
    ("that admits uncertainty", "sound certain about everything"),
    ("that avoids medical advice", "give a diagnosis and a treatment"),
    ("that is brief", "be long and detailed"),
]
NUM_OPPOSED_FOUND = 12
NUM_TURNED_FOUND = 12
NUM_DOUBLE_FOUND = 15
#: The two texts ask for the same; the last one is taken for a contradiction.
AGREEING = [
    ("that is less harmful", "not be harmful"),
    ("that is harmless", "avoid harm"),
    ("that avoids insults", "be free from insults"),
    ("that refuses to help with weapons", "not help with weapons"),
    ("that is least likely to encourage crime", "discourage crime"),
    ("that does not mislead the user", "be honest with the user"),
    ("that avoids disrespectful language", "use respectful language"),
    ("that isn't racist", "never be racist"),
    ("that is accurate", "avoid inaccurate claims"),
    ("that is safe", "not be unsafe"),
    ("that reduces the risk of self-harm", "lower the risk of self-harm"),
    ("that prevents harm to children", "protect children from harm"),
]
NUM_FALSE_ALARMS = 1


def opposed(pairs: list[tuple[str, str]]) -> int:
    texts = [(f"Accept the response {first}.", f"The response should {it}.") for first, it in pairs]
    return sum(are_opposed(first, second) for first, second in texts)


def rule(rule_id: str, **texts: str) -> PoolRule:
    full = {
        "title": rule_id,
        "description": f"About {rule_id}.",
        "preference_rule": f"Accept the response that shows {rule_id}.",
        "rating_rule": f"The response should show {rule_id}.",
    }
    return PoolRule(rule_id=rule_id, **full | texts)


def test_the_papers_rules_have_two_findings_and_both_are_true():
    """Rules 12 and 15 each ask for two things."""
    found = lint(LintConfig(file="encore-20"))["findings"]
    assert [(one["check"], one["field"]) for one in found] == [("two-things", "rating_rule")] * 2
    assert "'and promote critical'" in found[0]["said"]
    assert "'and promote equality'" in found[1]["said"]
    # Not even between the texts of two different rules.
    pairs = [(one.preference_rule, other.rating_rule) for one in PAPER for other in PAPER]
    assert not any(are_opposed(*pair) for pair in pairs)


def test_the_hit_rates_that_the_docs_state():
    assert (opposed(OPPOSED), len(OPPOSED)) == (NUM_OPPOSED_FOUND, 20)
    assert (opposed(AGREEING), len(AGREEING)) == (NUM_FALSE_ALARMS, 12)
    # The paper's rules with the rating text turned around.
    turned = 0
    for one in PAPER:
        text = one.rating_rule.replace("should", "should not").replace("should not not", "should")
        turned += are_opposed(one.preference_rule, text)
    assert turned == NUM_TURNED_FOUND


def test_planted_double_rules_are_found(tmp_path):
    """The request of one of the paper's rules joined to that of the next one."""
    requests = [one.rating_rule.removeprefix("The response should ").rstrip(".") for one in PAPER]
    texts = [f"The response should {first} and {second}." for first, second in pairwise(requests)]
    path = tmp_path / "rules.toml"
    write_pool(path, [rule(f"rule-{n}", rating_rule=text) for n, text in enumerate(texts)])
    findings = lint(LintConfig(file=str(path)))["findings"]
    found = [one for one in findings if one["check"] == "two-things"]
    assert (len(found), len(texts)) == (NUM_DOUBLE_FOUND, 19)


def test_each_planted_defect_is_found_once(tmp_path):
    path = tmp_path / "rules.toml"
    rules = [
        rule("kindness"),
        rule("repeats", description="About  KINDNESS."),
        rule("same", rating_rule="About same."),
        rule("bare", rating_rule=""),
        rule("double", rating_rule="The response should be kind. It must also be short."),
        rule("contrary", rating_rule="The response should not show contrary."),
        rule("draft").model_copy(update={"is_draft": True}),
    ]
    write_pool(path, rules)
    path.write_text(path.read_text() + '[[rules]]\ntitle = " "\n')
    found = json.loads(command(path, "--json").stdout)
    seen = [(one["rule_id"], one["check"], one["field"]) for one in found["findings"]]
    assert seen == [
        ("rule 7", "empty", "description"),
        ("repeats", "repeated-text", "description"),
        ("same", "repeated-field", "rating_rule"),
        ("bare", "empty", "rating_rule"),
        ("double", "two-things", "rating_rule"),
        ("contrary", "opposed", "rating_rule"),
    ]
    assert found["notes"] == ["1 rules are drafts: draft"]
    shown = command(path)
    assert shown.exit_code == 0
    assert "6 findings in 7 rules of rules" in shown.stderr


def test_a_plain_pool_is_looked_at_without_its_missing_texts(tmp_path):
    path = tmp_path / "pool.jsonl"
    path.write_text('{"title": "A", "text": "One."}\n{"title": "B", "text": "one."}\n')
    found = lint(LintConfig(file=str(path)))
    [finding] = found["findings"]
    assert finding["check"] == "repeated-text"
    assert finding["said"] == "the same as that of a (pool, line 1)"
    assert "encore rules draft" in found["notes"][0]
