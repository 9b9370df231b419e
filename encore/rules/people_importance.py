"""People's ratings of importance, read from CSV files and checked.

A file has the column ``rule_id`` and one column per annotator. An empty cell means that the
annotator did not rate the rule. Columns with the texts of the rules are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from encore.core.errors import InputError, did_you_mean
from encore.data.table_files import csv_rows
from encore.rules.pool import PoolRule

#: Importance by rule id, by annotator.
People = Mapping[str, Mapping[str, float]]


def read_answers(files: Sequence[Path], rule_ids: Sequence[str]) -> People:
    """Read the answers of all annotators. Rules that an annotator did not rate are missing.

    Args:
        files: CSV files of different annotators.
        rule_ids: Ids of the rules that may be rated.

    Raises:
        InputError: A file is wrong; the message names the file, the line and the value.
    """
    people: dict[str, dict[str, float]] = {}
    for path in files:
        for annotator, answers in _read_file(path, rule_ids).items():
            if annotator in people:
                raise InputError(
                    f"{path}: annotator {annotator!r} is in another file too; give every person a "
                    "name of their own, in one file"
                )
            if not answers:
                raise InputError(f"{path}: annotator {annotator!r} rated no rule; give numbers")
            people[annotator] = answers
    return people


def _read_file(path: Path, rule_ids: Sequence[str]) -> dict[str, dict[str, float]]:
    """Read the importance by rule id of each annotator of one file."""
    rows = dict(csv_rows(path))
    columns = [*next(iter(rows.values()), ())]
    people: dict[str, dict[str, float]] = {
        name: {} for name in columns if name not in PoolRule.model_fields
    }
    if "rule_id" not in columns or not people or not all(people):
        raise InputError(
            f"{path}: columns {', '.join(columns)!r}, {len(rows)} rows; expected rule_id and a "
            "column named after each annotator, with numbers from 0 to 1"
        )
    seen = set()
    for line, row in rows.items():
        rule_id = row["rule_id"].strip()
        if rule_id not in rule_ids:
            near = did_you_mean(rule_id, rule_ids)
            raise InputError(f"{path}, {line}: unknown rule {rule_id!r}{near}")
        if rule_id in seen:
            raise InputError(f"{path}, {line}: rule {rule_id!r} a second time; expected it once")
        seen.add(rule_id)
        for name, answers in people.items():
            if text := row[name].strip():
                answers[rule_id] = _importance(text, position=f"{path}, {line}")
    return people


def _importance(text: str, *, position: str) -> float:
    """Return the number in a cell, or raise if it is not from 0 to 1."""
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not 0 <= value <= 1:  # false for NaN
        raise InputError(f"{position}: importance {text!r}, expected a number from 0 to 1")
    return value
