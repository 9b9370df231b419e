"""What a person should look at in a pool or a rule set before a judge reads it.

Empty and repeated texts are facts. Whether a rule asks two things, and whether its preference text
and its rating text contradict each other, are guesses from English words: each finding shows what
it rests on. ``docs/rule-pools.md`` says how often they are right.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from textwrap import shorten
from typing import Any

from encore.curation.curation_config import LintConfig
from encore.curation.merge import plain_text
from encore.curation.polarity import are_opposed, verb_forms
from encore.curation.pool import PoolRule, first_of, read_pool, title_of

#: What was looked for, in which text, and what was found there.
_Found = tuple[str, str, str]
_TEXTS = ("title", "description", "preference_rule", "rating_rule")
_BOTH_FORMATS = ("preference_rule", "rating_rule")
#: So much of a match is shown.
_MAX_SHOWN = 60
_SENTENCE_ASKS = re.compile(r"\b(?:should|must|shall|may not|ought to)\b", re.IGNORECASE)


def lint(config: LintConfig) -> dict[str, Any]:
    """Look through a pool or a rule set.

    Returns:
        JSON values: ``name``, ``num_rules``, ``findings`` in the order of the rules, ``notes``.

    Raises:
        InputError: The file cannot be read.
    """
    pool = read_pool(config.file)
    is_plain = not any(rule.preference_rule or rule.rating_rule for rule in pool.rules)
    findings = [(place, "empty", "description", "the record has no text") for place in pool.empty]
    first: dict[tuple[str, str], PoolRule] = {}
    for rule in pool.rules:
        found = [*_repeated(rule, first), *([] if is_plain else _fields_of(rule))]
        found += [*_two_things(rule), *_opposed(rule)]
        findings += [(rule.rule_id, *one) for one in found]
    drafts = [rule.rule_id for rule in pool.rules if rule.is_draft]
    notes = [f"{len(drafts):,} rules are drafts: {first_of(drafts)}"] if drafts else []
    if is_plain:
        notes.append("no rule has the texts that a judge reads; `encore rules draft` writes them")
    keys = ("rule_id", "check", "field", "said")
    return {
        "name": pool.name,
        "num_rules": len(pool.rules),
        "findings": [dict(zip(keys, finding, strict=True)) for finding in findings],
        "notes": notes,
    }


def _repeated(rule: PoolRule, first: dict[tuple[str, str], PoolRule]) -> Iterator[_Found]:
    """Texts that an earlier rule has; ``first`` is the first rule with each."""
    for field in _TEXTS:
        text = plain_text(getattr(rule, field))
        other = first.setdefault((field, text), rule)
        if text and other is not rule:
            said = f"the same as that of {other.rule_id} ({other.source}, {other.origin})"
            yield "repeated-text", field, said


def _fields_of(rule: PoolRule) -> Iterator[_Found]:
    """Empty texts, and texts that stand in two fields."""
    if empty := " and ".join(field for field in _BOTH_FORMATS if not getattr(rule, field)):
        yield "empty", empty, "no text; `encore rules draft` writes it"
    first: dict[str, str] = {}
    for field in _TEXTS:
        text = plain_text(getattr(rule, field))
        other = first.setdefault(text, field)
        is_beginning = rule.title == title_of(rule.description) and field == "description"
        if text and other != field and not is_beginning:
            yield "repeated-field", field, f"the same as {other}"


def _two_things(rule: PoolRule) -> Iterator[_Found]:
    """Where the text that a judge rates by, or else the description, asks for a second thing."""
    field = next(one for one in ("rating_rule", "description") if getattr(rule, one))
    text = getattr(rule, field)
    sentences = [one for one in re.split(r"(?<=[.!?;])\s+", text) if _SENTENCE_ASKS.search(one)]
    matches = [match.group().strip() for match in _second_request().finditer(text)]
    if len(sentences) > 1:
        matches.append(sentences[1])
    if matches:
        shown = [repr(shorten(match, _MAX_SHOWN, placeholder="…")) for match in matches]
        yield "two-things", field, f"seems to ask two things: {first_of(shown)}"


def _opposed(rule: PoolRule) -> Iterator[_Found]:
    if rule.preference_rule and are_opposed(rule.preference_rule, rule.rating_rule):
        said = f"may contradict the preference text: {rule.preference_rule!r}"
        yield "opposed", "rating_rule", said


@cache
def _second_request() -> re.Pattern[str]:
    """A second verb after a conjunction, with the word that follows it."""
    verbs = "|".join(sorted(verb_forms("asking_verbs") | verb_forms("turning_verbs")))
    nouns = "|".join(sorted(verb_forms("asking_nouns")))
    object_follows = r"(?=\s+(?:the|a|an|all|any|no|its|his|her|their|our|your|users?|people)\b)"
    return re.compile(
        r"\b(?:and|but|as well as|while)\s+(?:also\s+|\w+ly\s+)?"
        rf"(?:should|must|not|never|does|do|is|are|that|{verbs}|(?:{nouns}){object_follows})"
        r"\s+\w+",
        re.IGNORECASE,
    )
