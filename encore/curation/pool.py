"""Pools of principles: the rules that a rule set is chosen from, and the files that hold them."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import tomllib
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from textwrap import shorten
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from encore.data.records import Rule, slug
from encore.data.rules import RULE_ID_PATTERN, rule_file
from encore.errors import InputError, did_you_mean
from encore.files import atomic_write_bytes
from encore.spreadsheets import is_formula

#: A principle without a title is called by its beginning.
_MAX_TITLE = 80
_ID_DIGITS = 8
#: What becomes the description: the first of these that a record has.
_TEXT_KEYS = ("text", "description", "title", "rating_rule", "preference_rule")
_FILE_KEYS = ("name", "source", "licence", "rules")


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
    def provenance(self) -> Provenance:
        """Where the rule comes from, as another rule remembers it that stays in its place."""
        return Provenance(**{name: getattr(self, name) for name in Provenance.model_fields})

    def absorbing(self, *others: PoolRule) -> PoolRule:
        """This rule, with where the others and their copies come from."""
        known = [self.provenance, *self.merged_from]
        for other in others:
            known += [other.provenance, *other.merged_from]
        return self.model_copy(update={"merged_from": tuple(dict.fromkeys(known))[1:]})


#: The keys of a file in their order: what a rule says, then where it comes from.
_KEYS = [*dict.fromkeys([*(one.name for one in fields(Rule)), *PoolRule.model_fields])]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """The rules of one file, in its order.

    Attributes:
        name: The file's ``name``, or its own without the suffix.
        rules: Every record that has a text.
        empty: Where records without any text stand; they are in no rule.
        formulas: Where texts stand that a spreadsheet would run; they are kept as texts.
    """

    name: str
    rules: tuple[PoolRule, ...]
    empty: tuple[str, ...] = ()
    formulas: tuple[str, ...] = ()

    @property
    def notes(self) -> list[str]:
        """What a reader must know about the file, one sentence each."""
        found = {
            "records have no text and are left out": self.empty,
            "texts begin like a spreadsheet's formula and are kept as texts": self.formulas,
        }
        return [
            f"pool {self.name}: {len(where):,} {what}: {first_of(where)}"
            for what, where in found.items()
            if where
        ]


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
    read = _READERS.get(path.suffix.lower())
    if read is None:
        raise InputError(f"pool {path}: expected a file in {', '.join(_READERS)}, by its suffix")
    if not path.is_file():
        raise InputError(f"pool {path}: no such file; give the path of a pool")
    try:
        header, records = read(path.read_bytes().decode("utf-8-sig"))
        found = _rules_of(records, header, name or str(header.get("name") or path.stem))
    except ValueError as error:
        raise InputError(f"pool {path}: {error}") from error
    if not found.rules:
        raise InputError(f"pool {path}: no record has a text; expected one rule or more")
    num_uses = Counter(rule.rule_id for rule in found.rules)
    repeated = [rule_id for rule_id, count in num_uses.items() if count > 1]
    if repeated and not ids_may_repeat:
        raise InputError(
            f"pool {path}: rule_id {repeated[0]!r} is used twice; `encore rules merge {path} "
            "--output FILE.toml` gives each its own"
        )
    return found


#: Where a record stands, and its values.
_Record = tuple[str, Any]
_Read = tuple[Mapping[str, Any], Iterable[_Record]]


def _read_toml(text: str) -> _Read:
    header = tomllib.loads(text)
    for key in header:
        if key not in _FILE_KEYS:
            near = did_you_mean(key, _FILE_KEYS) or f"; keys are {', '.join(_FILE_KEYS)}"
            raise ValueError(f"unknown key {key!r}{near}")
    tables = header.get("rules", [])
    if not (isinstance(tables, list) and all(isinstance(table, dict) for table in tables)):
        raise ValueError("key 'rules': expected a [[rules]] table for each rule")
    return header, [(f"rule {number}", table) for number, table in enumerate(tables)]


def _read_csv(text: str) -> _Read:
    return {}, csv_rows(text)[1]


def csv_rows(text: str) -> tuple[Sequence[str], list[tuple[str, dict[str, str]]]]:
    """The columns of a CSV text, and for each row where it begins and its cells with a text.

    Raises:
        ValueError: The line, and what is wrong there.
    """
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    columns, rows = reader.fieldnames or [], []
    repeated = {column for column in columns if columns.count(column) > 1}
    if repeated:
        raise ValueError(f"line 1: column {min(repeated)!r} is there twice")
    try:
        for row in reader:
            if None in row:
                raise ValueError(
                    f"line {reader.line_num}: more cells than the header has columns; put a text "
                    "with commas in quotes"
                )
            cells = {column: cell for column, cell in row.items() if cell}
            num_breaks = sum(cell.count("\n") for cell in cells.values())
            rows.append((f"line {reader.line_num - num_breaks}", cells))
    except csv.Error as error:
        raise ValueError(f"after line {reader.line_num}: {error}") from error
    return columns, rows


def _read_json_lines(text: str) -> _Read:
    records = []
    # Not splitlines: a text may have other characters that Unicode calls a line's end.
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            try:
                records.append((f"line {number}", json.loads(line)))
            except ValueError as error:
                raise ValueError(f"line {number}: not valid JSON: {error}") from error
    return {}, records


_READERS = {".toml": _read_toml, ".csv": _read_csv, ".jsonl": _read_json_lines}


def _rules_of(records: Iterable[_Record], header: Mapping[str, Any], name: str) -> Pool:
    rules, empty, formulas = [], [], []
    for place, record in records:
        if not isinstance(record, Mapping):
            raise ValueError(f"{place}: expected a JSON object with the keys of a rule")
        values = {key: value for key, value in record.items() if _is_given(value)}
        texts = {key: value for key, value in values.items() if isinstance(value, str)}
        formulas += [f"{place} ({key})" for key, text in texts.items() if is_formula(text)]
        if {"text", "description"} <= values.keys():
            raise ValueError(f"{place}: both 'text' and 'description'; give one of them")
        text = next((values[key] for key in _TEXT_KEYS if key in values), None)
        values.pop("text", None)
        if text is None:
            empty.append(place)
            continue
        origin = str(values.get("rule_id", place))
        defaults = {"source": name, "licence": header.get("licence") or "", "origin": origin}
        rules.append(_rule(place, {**defaults, **values, "description": text}))
    return Pool(name=name, rules=tuple(rules), empty=tuple(empty), formulas=tuple(formulas))


def _is_given(value: object) -> bool:
    return value is not None and bool(str(value).strip())


def _rule(place: str, values: dict[str, Any]) -> PoolRule:
    text = values["description"]
    if isinstance(text, str):
        values.setdefault("title", title_of(text))
    if isinstance(values.get("title"), str):
        values.setdefault("rule_id", rule_id_of(values["title"]))
    try:
        return PoolRule.model_validate(values)
    except ValidationError as error:
        # Where a text is no text, the title and the id that are made of it are missing.
        problem = min(error.errors(include_url=False), key=lambda one: one["type"] == "missing")
        key = ".".join(map(str, problem["loc"]))
        if problem["type"] != "extra_forbidden":
            raise ValueError(f"{place}, key {key!r}: {problem['msg']}") from error
        known = [*_KEYS, "text"]
        near = did_you_mean(key, known) or f"; keys are {', '.join(known)}"
        raise ValueError(f"{place}: unknown key {key!r}{near}") from error


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
    if path.suffix != ".toml":
        raise InputError(f"--output {path}: expected a name that ends in .toml")
    if not path.parent.is_dir():
        raise InputError(f"--output {path}: no folder {path.parent}; make it first")


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
