"""Pools of principles: the rules that a rule set is chosen from, and the files that hold them."""

from __future__ import annotations

import hashlib
import json
import tomllib
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from textwrap import shorten
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from encore.core.errors import InputError, did_you_mean, first_problem
from encore.core.files import atomic_write_bytes
from encore.data.records import Rule, slug
from encore.data.rule_sets import RULE_ID_PATTERN, rule_file
from encore.data.table_files import read_table

#: A principle without a title is called by its beginning.
_MAX_TITLE = 80
_ID_DIGITS = 8
#: What becomes the description: the first of these that a record has.
_TEXT_KEYS = ("text", "description", "title", "rating_rule", "preference_rule")
_FILE_KEYS = ("name", "source", "licence", "rules")
#: The texts of a rule, as judges read them.
TEXTS = ("title", "description", "preference_rule", "rating_rule")


class Provenance(BaseModel):
    """Where a rule comes from.

    Attributes:
        rule_id: Its id there.
        title: Its title there.
        source: Name of the pool.
        licence: As the pool's owner calls it; empty where it is not known.
        origin: Where in the pool: the id it has there, or the line.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", str_strip_whitespace=True)

    rule_id: str = Field(pattern=RULE_ID_PATTERN)
    title: str = Field(min_length=1)
    source: str = ""
    licence: str = ""
    origin: str = ""


class PoolRule(Provenance):
    """One rule of a pool: a principle, with the two texts that a judge reads once it has them."""

    description: str = Field(min_length=1)
    preference_rule: str = ""
    rating_rule: str = ""
    merged_from: tuple[Provenance, ...] = ()
    is_draft: bool = False

    @property
    def texts(self) -> dict[str, str]:
        """The texts that the rule has, as judges read them."""
        return {name: getattr(self, name) for name in TEXTS if getattr(self, name)}

    @property
    def has_all_texts(self) -> bool:
        """Whether it has the four texts that a rule set needs."""
        return len(self.texts) == len(TEXTS)

    @property
    def provenances(self) -> list[Provenance]:
        """Where the rule comes from, and then the rules in whose place it stays."""
        own = {name: getattr(self, name) for name in Provenance.model_fields}
        return [Provenance(**own), *self.merged_from]

    def absorbing(self, *others: PoolRule) -> PoolRule:
        """This rule, with where the others and their copies come from."""
        known = dict.fromkeys(one for rule in (self, *others) for one in rule.provenances)
        return self.model_copy(update={"merged_from": tuple(known)[1:]})


#: The keys of a file in their order: what a rule says, then where it comes from.
_KEYS = [*dict.fromkeys([*(one.name for one in fields(Rule)), *PoolRule.model_fields])]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """The rules of one file, in its order.

    Attributes:
        name: The file's ``name``, or its own without the suffix.
        rules: Every record that has a text.
        empty: Where records without any text stand; they are in no rule.
    """

    name: str
    rules: tuple[PoolRule, ...]
    empty: tuple[str, ...]


def first_of(names: Sequence[str], *, count: int = 5) -> str:
    """The first names of a list, and how many more there are."""
    rest = f" and {len(names) - count:,} more" if len(names) > count else ""
    return ", ".join(names[:count]) + rest


# --- read -----------------------------------------------------------------------------------------


def read_pool(
    name_or_path: str | Path, *, name: str | None = None, ids_may_repeat: bool = False
) -> Pool:
    """The rules of a TOML, CSV or JSON lines file, or of a shipped rule set.

    A record has `PoolRule`'s keys. A text alone is enough (`description`, or `text`): the title is
    its beginning, and the id the kebab-case title. A title alone is its own text.

    Args:
        name_or_path: Path of the file, or ``encore-10`` or ``encore-20``.
        name: The pool's name; default: the file's ``name``, or its own without the suffix.
        ids_may_repeat: Two rules may have one id.

    Raises:
        InputError: The file, the line and the key that is wrong; no rule has a text.
    """
    path = rule_file(name_or_path)
    rules, empty = [], []
    header, records = _read_toml(path) if path.suffix == ".toml" else ({}, read_table(path))
    name = name or str(header.get("name") or path.stem)
    about = {"source": name, "licence": header.get("licence") or ""}
    for place, record in records:
        values = {key: value for key, value in record.items() if str(value or "").strip()}
        if values.keys() & {*_TEXT_KEYS}:
            rules.append(_rule(path, place, about | values))
        else:
            empty.append(place)
    if not rules:
        raise InputError(f"pool {path}: no record has a text; expected one rule or more")
    num_uses = Counter(rule.rule_id for rule in rules)
    repeated = [rule_id for rule_id, count in num_uses.items() if count > 1]
    if repeated and not ids_may_repeat:
        raise InputError(
            f"pool {path}: rule_id {repeated[0]!r} is used twice; `encore rules merge {path} "
            "--output FILE.toml` gives each its own"
        )
    return Pool(name=name, rules=tuple(rules), empty=tuple(empty))


def _read_toml(path: Path) -> tuple[Mapping[str, Any], Iterator[tuple[str, Any]]]:
    """The keys of a file; each of its rules, and where it stands."""
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


def _rule(path: Path, place: str, values: dict[str, Any]) -> PoolRule:
    """A record's rule: what it does not say follows from its text and its place."""
    text = next(values[key] for key in _TEXT_KEYS if key in values)
    if "description" not in values:
        values["description"] = values.pop("text", text)
    values = {"title": title_of(str(text)), "origin": str(values.get("rule_id", place))} | values
    values.setdefault("rule_id", rule_id_of(str(values["title"])))
    try:
        return PoolRule.model_validate(values)
    except ValidationError as error:
        problem = first_problem(error)
        key, near = problem.path, ""
        if problem.kind == "extra_forbidden":
            near = did_you_mean(key, _KEYS) or f"; keys are {', '.join(_KEYS)}, text"
        raise InputError(f"{path}, {place}, key {key!r}: {problem.message}{near}") from error


def title_of(text: str) -> str:
    """The beginning of a principle's text, for one that has no title."""
    mark = "…"
    # A language without spaces has no place to cut at.
    short = shorten(text, _MAX_TITLE, placeholder=mark)
    return (text.strip()[: _MAX_TITLE - 1] + mark if short == mark else short).rstrip(". ")


def rule_id_of(title: str) -> str:
    """The kebab-case title without accents; where that is nothing, a hash of the title."""
    plain = unicodedata.normalize("NFKD", title).encode("ascii", "ignore").decode()
    digest = hashlib.sha256(title.encode("utf-8", "surrogatepass")).hexdigest()
    return slug(plain) or f"rule-{digest[:_ID_DIGITS]}"


# --- write ----------------------------------------------------------------------------------------


def check_output(path: Path, *, inputs: Iterable[Path] = ()) -> None:
    """Refuse a name under which `write_pool` cannot write, before there is work to lose.

    Raises:
        InputError: Another suffix, no such folder, or one of the files that are read.
    """
    if path.resolve() in [one.resolve() for one in inputs]:
        raise InputError(
            f"--output {path}: this file is read; give another name, so that no rule is lost"
        )
    if path.suffix != ".toml" or not path.parent.is_dir():
        raise InputError(
            f"--output {path}: expected a name that ends in .toml, in a folder that is there"
        )


def write_pool(path: Path, rules: Iterable[PoolRule], *, name: str | None = None) -> None:
    """Put rules into a TOML file, whole or not at all.

    Args:
        path: The file; replaced if it is there.
        rules: In the order of the file.
        name: The pool's name; default: the file's, without suffix.

    Raises:
        InputError: As for `check_output`.
    """
    check_output(path)
    lines = [f"name = {_toml(name or path.stem)}"]
    for rule in rules:
        record = rule.model_dump(mode="json", exclude_defaults=True)
        lines += ["", "[[rules]]"]
        lines += [f"{key} = {_toml(record[key])}" for key in _KEYS if key in record]
    atomic_write_bytes(path, "\n".join([*lines, ""]).encode())


def _toml(value: Any) -> str:
    """A TOML value. JSON has the same escapes, but for the one control character that it allows."""
    if isinstance(value, list):
        return "\n".join(["[", *(f"    {_toml(one)}," for one in value), "]"])
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{key} = {_toml(one)}' for key, one in value.items())} }}"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
