"""Rule sets: one TOML per set, shipped or the user's own."""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from encore.data.records import Rule, RuleSet, slug
from encore.errors import InputError, did_you_mean

SHIPPED_RULE_SETS = ("encore-10", "encore-20")
_TEXTS = ("title", "description", "preference_rule", "rating_rule")
_RULE_ID = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


def load_rule_set(name_or_path: str | Path) -> RuleSet:
    """The rule set shipped under a name, or the one in a TOML file.

    Each ``[[rules]]`` table has ``title``, ``description``, ``preference_rule`` and
    ``rating_rule``; ``rule_id`` defaults to the kebab-case title. The file's order is the head
    order.

    Raises:
        InputError: No such set; or the file, line, rule and key that is wrong.
    """
    path = Path(name_or_path)
    if name_or_path in SHIPPED_RULE_SETS:
        path = Path(__file__).parent / f"{name_or_path}.toml"
    elif not path.is_file():
        raise InputError(
            f"rule set {str(name_or_path)!r}: neither a shipped set "
            f"({', '.join(SHIPPED_RULE_SETS)}) nor a TOML file; give one of these or a path"
        )
    try:
        text = path.read_text(encoding="utf-8-sig")
        data = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"rule set {path}: not valid TOML: {error}") from error
    file = _RuleFile(path, text.splitlines())
    file.check(data, known={"name", "source", "rules"}, required=("name",))
    tables = data.get("rules")
    if not (isinstance(tables, list) and tables and all(isinstance(one, dict) for one in tables)):
        raise InputError(f"rule set {path}: expected one [[rules]] table or more")
    rules = tuple(file.rule(table, index) for index, table in enumerate(tables))
    first: dict[str, int] = {}
    for index, rule in enumerate(rules):
        if first.setdefault(rule.rule_id, index) != index:
            raise InputError(
                f"rule set {path}: rule_id {rule.rule_id!r} is used by rules "
                f"{first[rule.rule_id]} and {index}; set rule_id or change a title"
            )
    digest = rules_digest([asdict(rule) for rule in rules])
    return RuleSet(name=data["name"], rules=rules, digest=digest)


@dataclass(frozen=True, slots=True)
class _RuleFile:
    """A file's lines, to say where an error is."""

    path: Path
    lines: Sequence[str]

    def rule(self, table: Mapping[str, Any], index: int) -> Rule:
        """The rule in one table."""
        self.check(table, known={*_TEXTS, "rule_id"}, required=_TEXTS, index=index)
        texts = {name: table[name].strip() for name in _TEXTS}
        rule_id = table.get("rule_id", slug(texts["title"])).strip()
        if not _RULE_ID.fullmatch(rule_id):
            problem = (
                f"key 'rule_id' is {rule_id!r}, expected lower-case ASCII letters, digits and "
                "hyphens; without one it is made of the title"
            )
            raise self._error(problem, "rule_id", table, index)
        return Rule(rule_id=rule_id, **texts)

    def check(
        self,
        table: Mapping[str, Any],
        *,
        known: Collection[str],
        required: Sequence[str],
        index: int | None = None,
    ) -> None:
        """Refuse unknown and missing keys, and values that are no text."""
        for key, value in table.items():
            problem = ""
            if key not in known:
                near = did_you_mean(key, sorted(known)) or f"; keys are {', '.join(sorted(known))}"
                problem = f"unknown key {key!r}{near}"
            elif key != "rules" and not (isinstance(value, str) and value.strip()):
                problem = f"key {key!r} is {json.dumps(value, default=str):.40}, expected text"
            if problem:
                raise self._error(problem, key, table, index)
        for key in required:
            if key not in table:
                raise self._error(f"key {key!r} is missing", "", table, index)

    def _error(
        self, problem: str, key: str, table: Mapping[str, Any], index: int | None
    ) -> InputError:
        """An error with line, rule number and title."""
        place = "" if index is None else f"rule {index} ({table.get('title', 'no title')!r}), "
        rule = -1
        for number, line in enumerate(self.lines, start=1):
            rule += line.strip().replace(" ", "") == "[[rules]]"
            is_there = (index is None and rule < 0) or rule == index
            if key and is_there and re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*=", line):
                place = f"line {number}, {place}"
        return InputError(f"rule set {self.path}: {place}{problem}")


def rules_digest(rules: Sequence[Mapping[str, str]]) -> str:
    """SHA-256 over every text of every rule, in order. A rule is a mapping of `Rule`'s fields."""
    texts = [[rule[field.name] for field in fields(Rule)] for rule in rules]
    return hashlib.sha256(json.dumps(texts, ensure_ascii=False).encode()).hexdigest()
