"""Load rule sets: one TOML file per set, shipped or the user's own."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from textwrap import shorten
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
)

from encore.core.errors import InputError, did_you_mean
from encore.data.records import Rule, RuleSet, is_rule_id, rule_id_of

SHIPPED_RULE_SETS = ("encore-10", "encore-20")
#: Characters of a title that is cut from a text.
_MAX_TITLE = 80
#: Keys that `encore rules draft` writes.
_DRAFTED_KEYS = ("rating_rule",)


def rule_file(name_or_path: str | Path) -> Path:
    """Return the file of a shipped rule set by its name; any other argument is a path itself."""
    if str(name_or_path) in SHIPPED_RULE_SETS:
        return Path(__file__).parent / "rule_sets" / f"{name_or_path}.toml"
    return Path(name_or_path)


def load_rule_set(name_or_path: str | Path) -> RuleSet:
    """Load a shipped rule set by its name, or the rule set of a TOML file.

    >>> len(load_rule_set("encore-10").rules)
    10

    Each ``[[rules]]`` table has ``rating_rule``, which judges read. ``title`` defaults to its
    beginning, ``description`` to the whole, ``preference_rule`` and ``decision_rule`` to no text,
    ``rule_id`` to the kebab-case title (`encore.data.records.rule_id_of`). The order of the file is
    the head order. A table may also name the rule's origin (`encore.rules.pool`), which the digest
    does not cover.

    Args:
        name_or_path: ``encore-10``, ``encore-20``, or the path of a TOML file.

    Raises:
        InputError: The set does not exist, a key is wrong (the message names file, rule and key),
            or a rule is a draft.
    """
    path = rule_file(name_or_path)
    if not path.is_file():
        raise InputError(
            f"rule set {str(name_or_path)!r}: neither a shipped set "
            f"({', '.join(SHIPPED_RULE_SETS)}) nor a TOML file; give one of these or a path"
        )
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"rule set {path}: not valid TOML: {error}") from error
    try:
        file = _RuleFile.model_validate(data)
    except ValidationError as error:
        raise InputError(f"rule set {path}: {_problem_text(error, data)}") from error
    texts = {field.name for field in fields(Rule)}
    rules = tuple(Rule(**rule.model_dump(include=texts)) for rule in file.rules)
    for index, rule in enumerate(rules):
        if file.rules[index].is_draft:
            raise InputError(
                f"rule set {path}: rule {index} ({rule.title!r}) is a draft; read its texts, put "
                f"right what is wrong, then `encore rules draft {path} --accept {rule.rule_id}`"
            )
        same_id = (number for number in range(index) if rules[number].rule_id == rule.rule_id)
        if (first := next(same_id, None)) is not None:
            raise InputError(
                f"rule set {path}: rule {index} ({rule.title!r}), rule_id {rule.rule_id!r} is used "
                f"twice: rule {first} ({rules[first].title!r}) has it, too; set rule_id or change "
                "a title"
            )
    digest = rules_digest([asdict(rule) for rule in rules])
    return RuleSet(name=file.name, rules=rules, digest=digest)


def title_of(text: str) -> str:
    """Return the beginning of a text, as the title of a rule without one."""
    ellipsis = "…"
    short = shorten(text, _MAX_TITLE, placeholder=ellipsis)
    if short == ellipsis:  # a language without spaces: `shorten` cannot cut between words
        short = text.strip()[: _MAX_TITLE - 1] + ellipsis
    return short.rstrip(". ")


def _checked_rule_id(text: str) -> str:
    """Return a rule_id that somebody wrote, if it has the form of those made from titles."""
    if not is_rule_id(text):
        raise ValueError(
            "String should match pattern '^[a-z0-9]+(-[a-z0-9]+)*$' (letters of other scripts are "
            f"letters, too); did you mean {rule_id_of(text)!r}?"
        )
    return text


RuleId = Annotated[str, AfterValidator(_checked_rule_id)]
_Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class _RuleTable(BaseModel):
    model_config = ConfigDict(extra="forbid")

    rating_rule: _Text
    title: _Text = Field(default_factory=lambda rule: title_of(rule.get("rating_rule", "")))
    description: _Text = Field(default_factory=lambda rule: rule.get("rating_rule", ""))
    preference_rule: Annotated[str, StringConstraints(strip_whitespace=True)] = ""
    decision_rule: Annotated[str, StringConstraints(strip_whitespace=True)] = ""
    rule_id: RuleId = Field(default_factory=lambda rule: rule_id_of(rule.get("title", "")))
    source: str = ""
    licence: str = ""
    origin: str = ""
    merged_from: list[dict[str, str]] = []
    is_draft: bool = False


class _RuleFile(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str = Field(min_length=1)
    source: str | None = None
    licence: str | None = None
    rules: list[_RuleTable] = Field(min_length=1)


def _problem_text(error: ValidationError, data: Mapping[str, Any]) -> str:
    """Describe the first problem of a file, with the rule's number and title.

    A misspelled key is reported before the key that is missing for it.
    """
    problems = error.errors(include_url=False)
    unknown_keys = (problem for problem in problems if problem["type"] == "extra_forbidden")
    problem = next(unknown_keys, problems[0])
    *parents, key = problem["loc"]
    valid_keys = list(_RuleFile.model_fields)
    prefix = ""
    if len(parents) == 2:  # "rules" and the rule's index
        valid_keys = list(_RuleTable.model_fields)
        title = data["rules"][parents[1]].get("title", "no title")
        prefix = f"rule {parents[1]} ({title!r}), "
    if problem["type"] == "extra_forbidden":
        hint = did_you_mean(str(key), valid_keys) or f"; keys are {', '.join(valid_keys)}"
        return f"{prefix}unknown key {str(key)!r}{hint}"
    next_step = "; `encore rules draft` writes it" if key in _DRAFTED_KEYS else ""
    message = problem["msg"].removeprefix("Value error, ")
    return f"{prefix}key {str(key)!r}: {message}{next_step}"


def named_rule(name: str, rule_ids: Sequence[str]) -> str:
    """Return the id of the rule that --rule names by its id, or by its number in the tables.

    Raises:
        InputError: There is no such rule. The message lists the ids.
    """
    rule_by_number = {str(number): rule_id for number, rule_id in enumerate(rule_ids, start=1)}
    if name not in (*rule_ids, *rule_by_number):
        choices = f"a number from 1 to {len(rule_ids)}, or one of {', '.join(rule_ids)}"
        raise InputError(f"--rule {name!r}: expected {choices}")
    return name if name in rule_ids else rule_by_number[name]


def rules_digest(rules: Sequence[Mapping[str, str]]) -> str:
    """Return the SHA-256 over every text of every rule but that for decision models, in order.

    Args:
        rules: The fields of each rule (`encore.data.records.Rule`).
    """
    names = [field.name for field in fields(Rule) if field.name != "decision_rule"]
    texts = [[rule[name] for name in names] for rule in rules]
    return hashlib.sha256(json.dumps(texts, ensure_ascii=False).encode()).hexdigest()
