"""People's ratings of importance: CSV files, each checked whole.

A file has the columns ``annotator, rule_id, importance``, or ``rule_id`` and a column per
annotator. An empty cell is a rule that is not rated. The texts of the rules may stand beside.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from encore.curation.pool import PoolRule, first_of
from encore.errors import InputError, did_you_mean

#: Importance by rule id, by annotator.
People = Mapping[str, Mapping[str, float]]

_RULE, _ANNOTATOR, _IMPORTANCE = "rule_id", "annotator", "importance"
#: Columns that a sheet may show beside, so that people know what they rate.
_SHOWN = frozenset(PoolRule.model_fields)


def read_answers(
    files: Sequence[Path], rule_ids: Sequence[str], *, allow_unfinished: bool
) -> People:
    """Everybody's answers in some files.

    Args:
        files: Of different people.
        rule_ids: The rules that are rated.
        allow_unfinished: Accept annotators who did not rate every rule.

    Raises:
        InputError: File, row and what is wrong there.
    """
    found: dict[str, dict[str, float]] = {}
    file_of: dict[str, Path] = {}
    known = set(rule_ids)
    for path in files:
        for where, annotator, rule_id, text in _cells(path):
            answers = found.setdefault(annotator, {})
            problem = ""
            if file_of.setdefault(annotator, path) != path:
                problem = f"annotator {annotator!r} is in {file_of[annotator]} too"
            elif rule_id not in known:
                problem = f"unknown rule {rule_id!r}{did_you_mean(rule_id, rule_ids)}"
            elif rule_id in answers:
                problem = f"annotator {annotator!r} rates rule {rule_id!r} a second time"
            if problem:
                raise InputError(
                    f"{where}: {problem}; expected rules of the pool, and for every person a name "
                    "of their own, in one file, and each rule once"
                )
            if text:
                answers[rule_id] = _importance(text, where=where)
    for annotator, answers in found.items():
        missing = [rule_id for rule_id in rule_ids if rule_id not in answers]
        if missing and not allow_unfinished:
            raise InputError(
                f"{file_of[annotator]}: annotator {annotator!r} rated {len(answers)} of "
                f"{len(rule_ids)} rules; missing: {first_of(missing)}; finish the file, or give "
                "--allow-unfinished"
            )
    return found


def _importance(text: str, *, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not 0 <= value <= 1:  # false for NaN
        raise InputError(f"{where}: importance {text!r}, expected a number from 0 to 1")
    return value


def _cells(path: Path) -> Iterator[tuple[str, str, str, str]]:
    """Where an answer stands, annotator, rule id and the answer's text, of either layout."""
    try:
        stream = io.StringIO(path.read_text(encoding="utf-8-sig"), newline="")
        rows = [[cell.strip() for cell in row] for row in csv.reader(stream, strict=True)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"--people {path}: {error}; expected a CSV file in UTF-8") from error
    header = rows[0] if rows else []
    annotators = [name for name in header if name not in _SHOWN]
    is_long = {_ANNOTATOR, _IMPORTANCE} <= set(header)
    is_wide = not {_ANNOTATOR, _IMPORTANCE} & set(header) and annotators and all(annotators)
    if _RULE not in header or len(set(header)) < len(header) or not (is_long or is_wide):
        raise InputError(
            f"{path}: header {', '.join(header)!r}; expected different columns: {_ANNOTATOR}, "
            f"{_RULE} and {_IMPORTANCE}, or {_RULE} and one named after each annotator"
        )
    if not any(map(any, rows[1:])):
        raise InputError(f"{path}: no answer in it; expected numbers from 0 to 1")
    for number, cells in enumerate(rows[1:], start=2):
        if not any(cells):
            continue
        where = f"{path}, row {number}"
        row = dict(zip(header, cells, strict=False))
        if len(cells) != len(header) or (is_long and not row[_ANNOTATOR]):
            raise InputError(f"{where}: expected {len(header)} cells, and a name for everybody")
        if is_long:
            yield where, row[_ANNOTATOR], row[_RULE], row[_IMPORTANCE]
        else:
            yield from ((where, name, row[_RULE], row[name]) for name in annotators)
