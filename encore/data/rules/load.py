"""Load a rule set by shipped name or by the path of a TOML file."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from encore.data.records import Rule, RuleSet, slug
from encore.errors import InputError

SHIPPED_RULE_SETS = ("encore-10", "encore-20")

_Text = Field(min_length=1)


class _RuleToml(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", str_strip_whitespace=True)

    rule_id: str | None = Field(default=None, pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")
    title: str = _Text
    description: str = _Text
    preference_rule: str = _Text
    rating_rule: str = _Text


class _RuleSetToml(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = _Text
    source: str | None = None
    rules: tuple[_RuleToml, ...] = Field(min_length=1)


def load_rule_set(name_or_path: str | Path) -> RuleSet:
    """The rule set shipped under a name, or the one in a TOML file.

    Each ``[[rules]]`` table has ``title``, ``description``, ``preference_rule`` and
    ``rating_rule``; ``rule_id`` defaults to the kebab-case title. The file's order is the head
    order.

    Raises:
        InputError: No such set; or file, rule and field that is wrong.
    """
    path = _rule_set_path(name_or_path)
    parsed = _validate(_read_toml(path), path)
    rules = tuple(
        Rule(rule_id=rule.rule_id or slug(rule.title), **rule.model_dump(exclude={"rule_id"}))
        for rule in parsed.rules
    )
    _refuse_bad_ids(rules, path)
    return RuleSet(
        name=parsed.name, rules=rules, digest=rules_digest([asdict(rule) for rule in rules])
    )


def _rule_set_path(name_or_path: str | Path) -> Path:
    if name_or_path in SHIPPED_RULE_SETS:
        return Path(__file__).parent / f"{name_or_path}.toml"
    path = Path(name_or_path)
    if not path.is_file():
        raise InputError(
            f"rule set {str(name_or_path)!r}: neither a shipped set "
            f"({', '.join(SHIPPED_RULE_SETS)}) nor a TOML file; give one of these or a path"
        )
    return path


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"rule set {path}: not valid TOML: {error}") from error


def _validate(data: dict[str, Any], path: Path) -> _RuleSetToml:
    try:
        return _RuleSetToml.model_validate(data)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        raise InputError(
            f"rule set {path}: {_place(problem['loc'], data)}: {problem['msg']}"
            f" (got {problem['input']!r:.80})"
        ) from error


def _place(loc: tuple[int | str, ...], data: dict[str, Any]) -> str:
    """Name rule and field: ``rule 3 ('Some title'), field rating_rule``."""
    match loc:
        case ("rules", int(index), *rest):
            rule = data["rules"][index]
            title = rule.get("title") if isinstance(rule, dict) else None
            named = f" ({title!r})" if title else ""
            field = f", field {'.'.join(map(str, rest))}" if rest else ""
            return f"rule {index}{named}{field}"
        case _:
            return f"field {'.'.join(map(str, loc))}"


def _refuse_bad_ids(rules: tuple[Rule, ...], path: Path) -> None:
    for index, rule in enumerate(rules):
        if not rule.rule_id:
            raise InputError(
                f"rule set {path}: rule {index} ({rule.title!r}), field rule_id: the title has no "
                "ASCII letter or digit to make an id from; give the rule its own rule_id"
            )
    repeated = [key for key, count in Counter(rule.rule_id for rule in rules).items() if count > 1]
    if repeated:
        places = [str(index) for index, rule in enumerate(rules) if rule.rule_id == repeated[0]]
        raise InputError(
            f"rule set {path}: field rule_id: {repeated[0]!r} is used by rules "
            f"{' and '.join(places)}; ids must be unique (set rule_id or change a title)"
        )


def rules_digest(rules: Sequence[Mapping[str, str]]) -> str:
    """SHA-256 over every text of every rule, in order. A rule is a mapping of `Rule`'s fields."""
    texts = [[rule[field.name] for field in fields(Rule)] for rule in rules]
    return hashlib.sha256(json.dumps(texts, ensure_ascii=False).encode()).hexdigest()
