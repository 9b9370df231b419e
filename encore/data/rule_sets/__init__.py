"""Rule sets: one TOML per set, shipped or the user's own."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from encore.core.errors import InputError, did_you_mean
from encore.data.records import Rule, RuleSet, slug

SHIPPED_RULE_SETS = ("encore-10", "encore-20")
RULE_ID_PATTERN = r"^[a-z0-9]+(-[a-z0-9]+)*$"
_WRITTEN_BY_DRAFT = ("preference_rule", "rating_rule")


def rule_file(name_or_path: str | Path) -> Path:
    """The file of the rule set shipped under a name; any other name is a path already."""
    if name_or_path in SHIPPED_RULE_SETS:
        return Path(__file__).parent / f"{name_or_path}.toml"
    return Path(name_or_path)


def load_rule_set(name_or_path: str | Path) -> RuleSet:
    """The rule set shipped under a name, or the one in a TOML file.

    Each ``[[rules]]`` table has ``title``, ``description``, ``preference_rule`` and
    ``rating_rule``; ``rule_id`` defaults to the kebab-case title. The file's order is the head
    order. Where a rule comes from (`encore.rules.pool`) may stand beside its texts; it is no
    part of the rule and its digest.

    Raises:
        InputError: No such set; or the file, rule and key that is wrong; a rule is a draft.
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
        raise InputError(f"rule set {path}: {_problem(error, data)}") from error
    texts = {field.name for field in fields(Rule)}
    rules = tuple(Rule(**rule.model_dump(include=texts)) for rule in file.rules)
    for index, rule in enumerate(rules):
        if file.rules[index].is_draft:
            raise InputError(
                f"rule set {path}: rule {index} ({rule.title!r}) is a draft; read its texts, put "
                f"right what is wrong, then `encore rules draft {path} --accept {rule.rule_id}`"
            )
        if rule.rule_id in [other.rule_id for other in rules[:index]]:
            raise InputError(
                f"rule set {path}: rule {index} ({rule.title!r}), rule_id {rule.rule_id!r} is used "
                "twice; set rule_id or change a title"
            )
    digest = rules_digest([asdict(rule) for rule in rules])
    return RuleSet(name=file.name, rules=rules, digest=digest)


_Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class _RuleTable(BaseModel):
    model_config = ConfigDict(extra="forbid")

    title: _Text
    description: _Text
    preference_rule: _Text
    rating_rule: _Text
    rule_id: str = Field(
        pattern=RULE_ID_PATTERN,
        default_factory=lambda rule: slug(rule.get("title", "")),
        validate_default=True,
    )
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


def _problem(error: ValidationError, data: Mapping[str, Any]) -> str:
    """One error, with the rule's number and title, what an unknown key may have meant."""
    problems = error.errors(include_url=False)
    # A key that is written wrong is unknown, and what it was meant to be is missing.
    first = next((one for one in problems if one["type"] == "extra_forbidden"), problems[0])
    *place, key = first["loc"]
    known = list(_RuleFile.model_fields)
    where = ""
    if len(place) == 2:
        known = list(_RuleTable.model_fields)
        title = data["rules"][place[1]].get("title", "no title")
        where = f"rule {place[1]} ({title!r}), "
    if first["type"] == "extra_forbidden":
        near = did_you_mean(str(key), known) or f"; keys are {', '.join(known)}"
        return f"{where}unknown key {str(key)!r}{near}"
    next_step = "; `encore rules draft` writes it" if key in _WRITTEN_BY_DRAFT else ""
    return f"{where}key {str(key)!r}: {first['msg']}{next_step}"


def rules_digest(rules: Sequence[Mapping[str, str]]) -> str:
    """SHA-256 over every text of every rule, in order. A rule is a mapping of `Rule`'s fields."""
    texts = [[rule[field.name] for field in fields(Rule)] for rule in rules]
    return hashlib.sha256(json.dumps(texts, ensure_ascii=False).encode()).hexdigest()
