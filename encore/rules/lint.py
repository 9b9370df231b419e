"""Checks of a pool or a rule set: findings that a person reads before a judge reads the rules.

Empty and repeated texts are facts. Three checks are guesses from English words: a rule that asks
for two things, a text that contradicts the rating text, and a text for decision models that is no
statement. Each finding quotes the words that it rests on. ``docs/rule-pools.md`` says how often the
guesses are right.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from textwrap import shorten

from encore.core.number_text import first_names
from encore.rules.merge import plain_text
from encore.rules.polarity import are_opposed, verb_forms
from encore.rules.pool import TEXTS, PoolRule, read_pool
from encore.rules.rules_options import LintConfig

#: Name of the check, field of the rule, and message.
_Finding = tuple[str, str, str]
_JUDGE_FIELDS = ("preference_rule", "rating_rule")
#: Characters of a match that a finding quotes.
_MAX_QUOTED = 60
#: Questions and scores, which are no criterion that a response meets or does not.
_NO_CRITERION = re.compile(r"\?|\bscores?\b|\bfrom 0\b", re.IGNORECASE)
_REQUEST = re.compile(r"\b(?:should|must|shall|may not|ought to)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class LintReport:
    """Result of `lint`.

    Attributes:
        name: Name of the pool.
        num_rules: Number of rules in the pool.
        findings: Findings in the order of the rules: ``rule_id``, ``check``, ``field``, and the
            message ``said``.
        notes: Sentences about the pool as a whole.
    """

    name: str
    num_rules: int
    findings: tuple[dict[str, str], ...]
    notes: tuple[str, ...]


def lint(config: LintConfig) -> LintReport:
    """Check the texts of a pool or a rule set.

    Raises:
        InputError: The file cannot be read.
    """
    pool = read_pool(config.file)
    findings = [(label, "empty", "description", "the record has no text") for label in pool.empty]
    # A pool of principles has no texts for judges yet: they are not missing rule by rule.
    is_plain = not any(rule.texts.keys() & {*_JUDGE_FIELDS} for rule in pool.rules)
    first_rules: dict[tuple[str, str], PoolRule] = {}
    for rule in pool.rules:
        is_asked_for = not (is_plain or _has_one_text(rule))
        missing = [name for name in _JUDGE_FIELDS if is_asked_for and name not in rule.texts]
        no_text = "no text; `encore rules draft` writes it"
        problems = [("empty", field, no_text) for field in missing]
        problems += [*_repeated(rule, first_rules), *_two_things(rule)]
        problems += _decision_problems(rule)
        if rule.preference_rule and are_opposed(rule.preference_rule, rule.rating_rule):
            message = f"may contradict the preference text: {rule.preference_rule!r}"
            problems.append(("opposed", "rating_rule", message))
        findings += [(rule.rule_id, *problem) for problem in problems]
    drafts = [rule.rule_id for rule in pool.rules if rule.is_draft]
    notes = [f"{len(drafts):,} rules are drafts: {first_names(drafts)}"] if drafts else []
    if is_plain:
        notes.append("no rule has the texts that a judge reads; `encore rules draft` writes them")
    keys = ("rule_id", "check", "field", "said")
    return LintReport(
        name=pool.name,
        num_rules=len(pool.rules),
        findings=tuple(dict(zip(keys, finding, strict=True)) for finding in findings),
        notes=tuple(notes),
    )


def _repeated(rule: PoolRule, first_rules: dict[tuple[str, str], PoolRule]) -> Iterator[_Finding]:
    """Yield texts that an earlier rule or an earlier field of the rule has.

    Args:
        rule: The rule to check.
        first_rules: First rule with each field and text; the rule's texts are added.
    """
    first_fields: dict[str, str] = {}
    for field in TEXTS:
        text = plain_text(getattr(rule, field))
        earlier = first_rules.setdefault((field, text), rule)
        if text and earlier is not rule:
            origin = f"{earlier.rule_id} ({earlier.source}, {earlier.origin})"
            yield "repeated-text", field, f"the same as that of {origin}"
        earlier_field = first_fields.setdefault(text, field)
        # A description may repeat its title: a principle without a title is its own title.
        if text and earlier_field != field and field != "description" and not _has_one_text(rule):
            yield "repeated-field", field, f"the same as {earlier_field}"


def _decision_problems(rule: PoolRule) -> Iterator[_Finding]:
    """Yield what is wrong with the statement that a decision model judges, if anything.

    Without a statement of its own one is made of the rating text, which says what is demanded.
    """
    statement = rule.decision_rule
    if statement and (match := _REQUEST.search(statement)):
        message = f"says {match.group()!r}: state what is true of a response that keeps to the rule"
        yield "no-statement", "decision_rule", message
    if statement and are_opposed(statement, rule.rating_rule):
        message = f"may contradict the rating text: {rule.rating_rule!r}"
        yield "opposed", "decision_rule", message
    if not statement and (match := _NO_CRITERION.search(rule.rating_rule)):
        message = (
            f"made of a rating text that says {match.group()!r}: write a statement that is true of "
            "a response that keeps to the rule"
        )
        yield "no-statement", "decision_rule", message


def _has_one_text(rule: PoolRule) -> bool:
    """Return True if the rule was given as its rating text alone, which is a whole rule."""
    return not rule.preference_rule and rule.rating_rule == rule.description


def _two_things(rule: PoolRule) -> Iterator[_Finding]:
    """Yield a finding if the rating text, or else the description, asks for a second thing."""
    field = "rating_rule" if rule.rating_rule else "description"
    text = getattr(rule, field)
    requests = [part for part in re.split(r"(?<=[.!?;])\s+", text) if _REQUEST.search(part)]
    matches = [match.group().strip() for match in _second_request().finditer(text)]
    if matches := matches + requests[1:2]:
        quotes = [repr(shorten(match, _MAX_QUOTED, placeholder="…")) for match in matches]
        yield "two-things", field, f"seems to ask two things: {first_names(quotes)}"


@cache
def _second_request() -> re.Pattern[str]:
    """Return a pattern of a second verb after a conjunction, with the word that follows it."""
    verbs = "|".join(sorted(verb_forms("asking_verbs") | verb_forms("turning_verbs")))
    nouns = "|".join(sorted(verb_forms("asking_nouns")))
    object_follows = (
        r"(?=\s+(?:the|a|an|all|any|no|its|his|her|their|our|your|users?|people|"
        r"help|support|sources?|reasons?|alternatives?|where|how|whom?)\b)"
    )
    return re.compile(
        r"\b(?:and|but|as well as|while)\s+(?:also\s+|\w+ly\s+)?"
        rf"(?:should|must|not|never|does|do|is|are|that|{verbs}|(?:{nouns}){object_follows})"
        r"\s+\w+",
        re.IGNORECASE,
    )
