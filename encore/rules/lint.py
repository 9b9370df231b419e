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

from encore.rules.merge import plain_text
from encore.rules.polarity import are_opposed, verb_forms
from encore.rules.pool import TEXTS, PoolRule, first_of, read_pool
from encore.rules.rules_config import LintConfig

#: What was looked for, in which text, and what was found there.
_Found = tuple[str, str, str]
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
    findings = [(place, "empty", "description", "the record has no text") for place in pool.empty]
    is_plain = not any(rule.texts.keys() & {*_BOTH_FORMATS} for rule in pool.rules)
    first: dict[tuple[str, str], PoolRule] = {}
    for rule in pool.rules:
        lacking = [] if is_plain else [field for field in _BOTH_FORMATS if field not in rule.texts]
        found = [("empty", one, "no text; `encore rules draft` writes it") for one in lacking]
        found += [*_repeated(rule, first), *_two_things(rule)]
        if rule.preference_rule and are_opposed(rule.preference_rule, rule.rating_rule):
            said = f"may contradict the preference text: {rule.preference_rule!r}"
            found.append(("opposed", "rating_rule", said))
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
    """Texts that an earlier rule has, ``first`` is the first one with each; or another field."""
    fields: dict[str, str] = {}
    for field in TEXTS:
        text = plain_text(getattr(rule, field))
        other = first.setdefault((field, text), rule)
        if text and other is not rule:
            said = f"the same as that of {other.rule_id} ({other.source}, {other.origin})"
            yield "repeated-text", field, said
        same = fields.setdefault(text, field)
        if text and same != field and field != "description":  # which may be its own title
            yield "repeated-field", field, f"the same as {same}"


def _two_things(rule: PoolRule) -> Iterator[_Found]:
    """Where the text that a judge rates by, or else the description, asks for a second thing."""
    field = "rating_rule" if rule.rating_rule else "description"
    text = getattr(rule, field)
    sentences = [one for one in re.split(r"(?<=[.!?;])\s+", text) if _SENTENCE_ASKS.search(one)]
    matches = [match.group().strip() for match in _second_request().finditer(text)]
    if matches := matches + sentences[1:2]:
        shown = [repr(shorten(match, _MAX_SHOWN, placeholder="…")) for match in matches]
        yield "two-things", field, f"seems to ask two things: {first_of(shown)}"


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
