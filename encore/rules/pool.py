"""Pools of principles, from which rule sets are selected, and their files."""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from encore.core.errors import InputError, did_you_mean, first_problem
from encore.core.files import atomic_write_bytes
from encore.data.records import Rule, rule_id_of
from encore.data.rule_sets import RuleId, rule_file, title_of
from encore.data.table_files import read_table

#: The first of these keys that a record has becomes its description.
_TEXT_KEYS = ("text", "description", "title", "rating_rule", "preference_rule")
_FILE_KEYS = ("name", "source", "licence", "rules")
#: Fields of a rule that judges read.
TEXTS = ("title", "description", "preference_rule", "rating_rule")


class Provenance(BaseModel):
    """Origin of a rule: the pool that it was read from, and its position there.

    Attributes:
        rule_id: Id of the rule in that pool.
        title: Title of the rule in that pool.
        source: Name of the pool.
        licence: Licence as the pool's owner calls it; empty if unknown.
        origin: Position in the pool: the rule's id there, or the line.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", str_strip_whitespace=True)

    rule_id: RuleId
    title: str = Field(min_length=1)
    source: str = ""
    licence: str = ""
    origin: str = ""


class PoolRule(Provenance):
    """One rule of a pool: a principle, or a rule with the two texts that judges read.

    Attributes:
        description: What the rule demands; the only text of a principle.
        preference_rule: Text by which a judge compares two responses; empty for a principle.
        rating_rule: Text by which a judge rates one response; empty for a principle.
        decision_rule: Statement about a response for decision models; empty if it is made from the
            rating text.
        merged_from: Provenance of the copies and near-duplicates that were dropped for this rule.
        is_draft: True if a judge wrote texts of the rule and no person has accepted them.
    """

    description: str = Field(min_length=1)
    preference_rule: str = ""
    rating_rule: str = ""
    decision_rule: str = ""
    merged_from: tuple[Provenance, ...] = ()
    is_draft: bool = False

    @property
    def texts(self) -> dict[str, str]:
        """Texts of the rule by field name, without empty ones."""
        return {name: getattr(self, name) for name in TEXTS if getattr(self, name)}

    @property
    def has_all_texts(self) -> bool:
        """True if the rule has the four texts that the paper's rules have."""
        return len(self.texts) == len(TEXTS)

    def absorbing(self, *dropped: PoolRule) -> PoolRule:
        """Return this rule with the provenance of the dropped rules in ``merged_from``."""
        origins: dict[Provenance, None] = {}  # unique, in order; the rule's own is the first
        for rule in (self, *dropped):
            values = {name: getattr(rule, name) for name in Provenance.model_fields}
            origins |= dict.fromkeys([Provenance(**values), *rule.merged_from])
        return self.model_copy(update={"merged_from": tuple(origins)[1:]})


#: Keys of a rule in a file: its texts, then its provenance.
_KEYS = [*dict.fromkeys([*(field.name for field in fields(Rule)), *PoolRule.model_fields])]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Rules of one file, in the file's order.

    Attributes:
        name: The key ``name`` of the file, or the file name without the suffix.
        rules: One rule for each record that has a text.
        empty: Positions of records without a text, e.g. ``line 3``; they are not in ``rules``.
    """

    name: str
    rules: tuple[PoolRule, ...]
    empty: tuple[str, ...]


# --- read -----------------------------------------------------------------------------------------


def read_pool(
    name_or_path: str | Path, *, name: str | None = None, ids_may_repeat: bool = False
) -> Pool:
    """Read the rules of a TOML, CSV or JSON lines file, or of a shipped rule set.

    A record has the keys of `PoolRule`. A text alone (`description` or `text`) is enough: its
    beginning becomes the title, and the kebab-case title the id. A title alone becomes the text,
    unless the record has an empty one.

    Args:
        name_or_path: Path of the file, or ``encore-10`` or ``encore-20``.
        name: Name of the pool; default: the file's key ``name``, or the file name without suffix.
        ids_may_repeat: Accept two rules with one id.

    Raises:
        InputError: A record is wrong (the message names file, line and key), or none has a text.
    """
    path = rule_file(name_or_path)
    rules, empty = [], []
    header, records = _read_toml(path) if path.suffix == ".toml" else ({}, read_table(path))
    name = name or str(header.get("name") or path.stem)
    defaults = {"source": name, "licence": header.get("licence") or ""}
    for position, record in records:
        values = {key: value for key, value in record.items() if str(value or "").strip()}
        has_empty_text = {"text", "description"} & (record.keys() - values.keys())
        if values.keys() & ({*_TEXT_KEYS} - ({"title"} if has_empty_text else set())):
            rules.append(_rule(path, position, defaults | values))
        else:
            empty.append(position)
    if not rules:
        raise InputError(f"pool {path}: no record has a text; expected one rule or more")
    num_uses = Counter(rule.rule_id for rule in rules)
    repeated = [rule_id for rule_id, count in num_uses.items() if count > 1]
    if repeated and not ids_may_repeat:
        raise InputError(
            f"pool {path}: rule_id {repeated[0]!r} is used twice; `encore rules merge {path} "
            "--output FILE.toml` gives each rule a unique id"
        )
    return Pool(name=name, rules=tuple(rules), empty=tuple(empty))


def _read_toml(path: Path) -> tuple[Mapping[str, Any], Iterator[tuple[str, Any]]]:
    """Return the top-level keys of a file, and its rules with their positions."""
    try:
        header = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: {error}; expected a pool in TOML") from error
    if unknown := [key for key in header if key not in _FILE_KEYS]:
        near = did_you_mean(unknown[0], _FILE_KEYS)
        raise InputError(f"{path}: unknown key {unknown[0]!r}{near}")
    tables = header.get("rules", [])
    if not (isinstance(tables, list) and all(isinstance(table, dict) for table in tables)):
        raise InputError(f"{path}, key 'rules': expected a [[rules]] table for each rule")
    return header, ((f"rule {number}", table) for number, table in enumerate(tables))


def _rule(path: Path, position: str, values: dict[str, Any]) -> PoolRule:
    """Build the rule of a record; missing values follow from its text and its position."""
    text = next(values[key] for key in _TEXT_KEYS if key in values)
    if "description" not in values:
        values["description"] = values.pop("text", text)
    origin = str(values.get("rule_id", position))
    values = {"title": title_of(str(text)), "origin": origin} | values
    values.setdefault("rule_id", rule_id_of(str(values["title"])))
    try:
        return PoolRule.model_validate(values)
    except ValidationError as error:
        problem = first_problem(error)
        key, near = problem.path, ""
        if problem.kind == "extra_forbidden":
            near = did_you_mean(key, _KEYS) or f"; keys are {', '.join(_KEYS)}, text"
        raise InputError(f"{path}, {position}, key {key!r}: {problem.message}{near}") from error


# --- write ----------------------------------------------------------------------------------------


def check_output(path: Path, *, inputs: Iterable[Path] = ()) -> None:
    """Check that `write_pool` can write a file, before long work begins.

    Args:
        path: File to be written.
        inputs: Files that the stage reads; the output must not replace them.

    Raises:
        InputError: The suffix is not .toml, the folder is missing, or the file is an input.
    """
    if path.resolve() in [file.resolve() for file in inputs]:
        raise InputError(
            f"--output {path}: this file is read; give another name, so that no rule is lost"
        )
    if path.suffix != ".toml" or not path.parent.is_dir():
        raise InputError(
            f"--output {path}: expected a name that ends in .toml, in an existing folder"
        )


def write_pool(path: Path, rules: Iterable[PoolRule], *, name: str | None = None) -> None:
    """Write rules to a TOML file, atomically.

    Args:
        path: File to write; an existing file is replaced.
        rules: Rules in the order of the file.
        name: Name of the pool; default: the file name without suffix.

    Raises:
        InputError: `check_output` refuses the path.
    """
    check_output(path)
    lines = [f"name = {_toml(name or path.stem)}"]
    for rule in rules:
        record = rule.model_dump(mode="json", exclude_defaults=True)
        lines += ["", "[[rules]]"]
        lines += [f"{key} = {_toml(record[key])}" for key in _KEYS if key in record]
    atomic_write_bytes(path, "\n".join([*lines, ""]).encode())


def _toml(value: Any) -> str:
    """Return a value as TOML. Strings are JSON strings; TOML also escapes the character DEL."""
    if isinstance(value, list):
        return "\n".join(["[", *(f"    {_toml(element)}," for element in value), "]"])
    if isinstance(value, dict):
        pairs = ", ".join(f"{key} = {_toml(element)}" for key, element in value.items())
        return f"{{ {pairs} }}"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
