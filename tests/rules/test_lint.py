"""Lint finds planted defects, and two true ones in the paper's rules."""

from __future__ import annotations

from itertools import pairwise, product

from encore.rules.lint import lint
from encore.rules.polarity import are_opposed
from encore.rules.pool import PoolRule, read_pool, write_pool
from encore.rules.rules_options import LintConfig
from tests.golden.command_line import encore
from tests.worlds.studies import write_lines

PAPER = read_pool("encore-20").rules
#: Each pair contradicts itself; the last eight by meaning alone.
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
NUM_NEGATED_FOUND = 12
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


def num_opposed(pairs: list[tuple[str, str]]) -> int:
    """Return the number of pairs that are taken for contradictions."""
    return sum(
        are_opposed(f"Accept the response {preference}.", f"The response should {request}.")
        for preference, request in pairs
    )


def make_rule(rule_id: str, **texts: str) -> PoolRule:
    defaults = {
        "title": rule_id,
        "description": f"About {rule_id}.",
        "preference_rule": f"Accept the response that shows {rule_id}.",
        "rating_rule": f"The response should show {rule_id}.",
    }
    return PoolRule(rule_id=rule_id, **defaults | texts)


def test_the_papers_rules_have_two_findings_and_both_are_true():
    """Rules 12 and 15 each ask for two things."""
    findings = lint(LintConfig(file="encore-20")).findings
    checks = [(finding["check"], finding["field"]) for finding in findings]
    assert checks == [("two-things", "rating_rule")] * 2
    assert "'and promote critical'" in findings[0]["said"]
    assert "'and promote equality'" in findings[1]["said"]
    # No text contradicts a text of another rule either.
    assert not any(
        are_opposed(first.preference_rule, second.rating_rule)
        for first, second in product(PAPER, PAPER)
    )


def test_the_checks_find_as_many_contradictions_as_the_docs_say():
    assert (num_opposed(OPPOSED), len(OPPOSED)) == (NUM_OPPOSED_FOUND, 20)
    assert (num_opposed(AGREEING), len(AGREEING)) == (NUM_FALSE_ALARMS, 12)
    negated = [
        rule.rating_rule.replace("should", "should not").replace("should not not", "should")
        for rule in PAPER
    ]
    pairs = zip(PAPER, negated, strict=True)
    assert sum(are_opposed(rule.preference_rule, text) for rule, text in pairs) == NUM_NEGATED_FOUND


def test_planted_double_rules_are_found(tmp_path):
    """The request of each of the paper's rules is joined to that of the next rule."""
    requests = [rule.rating_rule.removeprefix("The response should ").rstrip(".") for rule in PAPER]
    texts = [f"The response should {first} and {second}." for first, second in pairwise(requests)]
    path = tmp_path / "rules.toml"
    write_pool(path, [make_rule(f"rule-{n}", rating_rule=text) for n, text in enumerate(texts)])
    checks = [finding["check"] for finding in lint(LintConfig(file=path)).findings]
    assert (checks.count("two-things"), len(texts)) == (NUM_DOUBLE_FOUND, 19)


def test_each_planted_defect_is_found_once(tmp_path):
    path = tmp_path / "rules.toml"
    rules = [
        make_rule("kindness"),
        make_rule("repeats", description="About  KINDNESS."),
        make_rule("same", rating_rule="About same."),
        make_rule("bare", rating_rule=""),
        make_rule("double", rating_rule="The response should be kind. It must also be short."),
        make_rule("contrary", rating_rule="The response should not show contrary."),
        make_rule("demanding", decision_rule="The response should show demanding."),
        make_rule("denied", decision_rule="The response does not show denied."),
        make_rule("stated", decision_rule="The response shows stated."),
        make_rule("asked", rating_rule="Does the response show asked?"),
        make_rule("draft").model_copy(update={"is_draft": True}),
    ]
    write_pool(path, rules)
    path.write_text(path.read_text() + '[[rules]]\ntitle = " "\n')
    finished = encore("rules", "lint", path, "--json")
    assert "9 findings in 11 rules of rules" in finished.err
    report = finished.json
    findings = [(row["rule_id"], row["check"], row["field"]) for row in report["findings"]]
    assert findings == [
        ("rule 11", "empty", "description"),
        ("repeats", "repeated-text", "description"),
        ("same", "repeated-field", "rating_rule"),
        ("bare", "empty", "rating_rule"),
        ("double", "two-things", "rating_rule"),
        ("contrary", "opposed", "rating_rule"),
        ("demanding", "no-statement", "decision_rule"),
        ("denied", "opposed", "decision_rule"),
        ("asked", "no-statement", "decision_rule"),
    ]
    assert report["notes"] == ["1 rules are drafts: draft"]


def test_a_rule_of_one_text_is_whole_and_findings_are_shown_by_rule(tmp_path):
    path, rating_rule = tmp_path / "mine.toml", "The response should not recommend a dosage."
    two_things = "It should be kind. It must be short."
    path.write_text(
        f'[[rules]]\nrating_rule = "{rating_rule}"\n\n[[rules]]\nrating_rule = "{two_things}"\n'
    )
    assert encore("rules", "lint", path).out == (
        "it-should-be-kind-it-must-be-short\n"
        "  rating_rule: seems to ask two things: 'It must be short.' (two-things)\n"
    )


def test_missing_texts_of_a_pool_of_principles_are_one_note(tmp_path):
    rows = [{"title": "A", "text": "One."}, {"title": "B", "text": "one."}]
    report = lint(LintConfig(file=write_lines(tmp_path / "pool.jsonl", rows)))
    [finding] = report.findings
    assert finding["check"] == "repeated-text"
    assert finding["said"] == "the same as that of a (pool, line 1)"
    assert "encore rules draft" in report.notes[0]
