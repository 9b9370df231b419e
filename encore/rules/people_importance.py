"""People's ratings of importance: CSV files, each checked whole.

A file has the column ``rule_id`` and a column per annotator. An empty cell is a rule that is not
rated. The texts of the rules may stand beside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from encore.core.errors import InputError, did_you_mean
from encore.data.table_files import csv_rows
from encore.rules.pool import PoolRule

#: Importance by rule id, by annotator.
People = Mapping[str, Mapping[str, float]]

_RULE = "rule_id"


def read_answers(files: Sequence[Path], rule_ids: Sequence[str]) -> People:
    """Everybody's answers in some files; what is not rated is missing.

    Args:
        files: Of different people.
        rule_ids: The rules that are rated.

    Raises:
        InputError: File, line and what is wrong there.
    """
    found: dict[str, dict[str, float]] = {}
    for path in files:
        for annotator, answers in _answers_in(path, rule_ids).items():
            if annotator in found:
                raise InputError(
                    f"{path}: annotator {annotator!r} is in another file too; give every person a "
                    "name of their own, in one file"
                )
            if not answers:
                raise InputError(f"{path}: annotator {annotator!r} rated no rule; give numbers")
            found[annotator] = answers
    return found


def _answers_in(path: Path, rule_ids: Sequence[str]) -> dict[str, dict[str, float]]:
    rows = dict(csv_rows(path))
    columns = [*next(iter(rows.values()), ())]
    found: dict[str, dict[str, float]] = {
        name: {} for name in columns if name not in PoolRule.model_fields
    }
    if _RULE not in columns or not found or not all(found):
        raise InputError(
            f"{path}: columns {', '.join(columns)!r}, {len(rows)} rows; expected {_RULE} and a "
            "column named after each annotator, with numbers from 0 to 1"
        )
    rated = set()
    for place, row in rows.items():
        rule_id = row[_RULE].strip()
        if rule_id not in rule_ids:
            near = did_you_mean(rule_id, rule_ids)
            raise InputError(f"{path}, {place}: unknown rule {rule_id!r}{near}")
        if rule_id in rated:
            raise InputError(f"{path}, {place}: rule {rule_id!r} a second time; expected it once")
        rated.add(rule_id)
        for name, answers in found.items():
            if text := row[name].strip():
                answers[rule_id] = _importance(text, where=f"{path}, {place}")
    return found


def _importance(text: str, *, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not 0 <= value <= 1:  # false for NaN
        raise InputError(f"{where}: importance {text!r}, expected a number from 0 to 1")
    return value
