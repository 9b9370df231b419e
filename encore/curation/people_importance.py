"""People's ratings of importance: CSV files, checked whole before any of them is kept.

A file has the columns ``annotator, rule_id, importance``, or ``rule_id`` and a column per
annotator. An empty cell is a rule that is not rated. The texts of the rules may stand beside.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from encore.errors import InputError, did_you_mean
from encore.files import atomic_write_bytes

#: Importance by rule id, by annotator.
People = Mapping[str, Mapping[str, float]]

_FOLDER = "people"
_RULE, _ANNOTATOR, _IMPORTANCE = "rule_id", "annotator", "importance"
#: Columns that a sheet may show beside, so that people know what they rate.
_SHOWN = {"title", "description", "preference_rule", "rating_rule", "source", "licence", "origin"}
_MOST_NAMED = 5


class _Answer(NamedTuple):
    where: str
    annotator: str
    rule_id: str
    text: str


def people_with(
    files: Sequence[Path], folder: Path, *, rule_ids: Sequence[str], allow_unfinished: bool
) -> People:
    """Everybody's answers, those in a folder and in new files; nothing is written.

    A new file takes the place of one of its name with the same annotators.

    Args:
        files: New ones.
        folder: Of the ratings of a pool; need not exist.
        rule_ids: The rules that are rated.
        allow_unfinished: Accept annotators in new files who did not rate every rule.

    Raises:
        InputError: File, line and what is wrong there.
    """
    names = Counter(path.name for path in files)
    if doubled := [name for name, count in names.items() if count > 1]:
        raise InputError(f"--people: two files are called {doubled[0]}; rename one of them")
    added = [(path, _read(path, rule_ids)) for path in files]
    for path, people in added:
        _check_replaced(path, people, folder / _FOLDER / path.name, rule_ids)
        if not allow_unfinished:
            _refuse_unfinished(path, people, rule_ids)
    kept = [path for path in _kept_files(folder) if path.name not in names]
    return _merged([*((path, _read(path, rule_ids)) for path in kept), *added])


def keep_people(files: Sequence[Path], folder: Path) -> None:
    """Copy files of answers into a folder."""
    for path in files:
        (folder / _FOLDER).mkdir(exist_ok=True)
        atomic_write_bytes(folder / _FOLDER / path.name, path.read_bytes())


def read_people(folder: Path, *, rule_ids: Sequence[str]) -> People:
    """Everybody's answers that a folder keeps.

    Raises:
        InputError: File, line and what is wrong there.
    """
    return _merged((path, _read(path, rule_ids)) for path in _kept_files(folder))


def _kept_files(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / _FOLDER).glob("[!.]*") if path.is_file())


def _merged(files: Iterable[tuple[Path, People]]) -> dict[str, Mapping[str, float]]:
    """The answers of several files, whose annotators must be different people."""
    found: dict[str, tuple[Path, Mapping[str, float]]] = {}
    for path, people in files:
        for annotator, answers in people.items():
            if annotator in found:
                raise InputError(
                    f"{path}: annotator {annotator!r} is in {found[annotator][0]} too; give every "
                    "person a name of their own, or all of a person's answers in one file"
                )
            found[annotator] = path, answers
    return {annotator: answers for annotator, (_, answers) in found.items()}


def _check_replaced(path: Path, people: People, kept: Path, rule_ids: Sequence[str]) -> None:
    """Refuse to put a file in the place of other people's."""
    if not kept.is_file():
        return
    if gone := sorted(set(_read(kept, rule_ids)) - set(people)):
        raise InputError(
            f"{path}: {kept} has its name and the answers of {gone[0]!r}, whom it lacks; rename "
            "the new file"
        )


def _refuse_unfinished(path: Path, people: People, rule_ids: Sequence[str]) -> None:
    for annotator, answers in people.items():
        missing = [rule_id for rule_id in rule_ids if rule_id not in answers]
        if missing:
            more = ", …" * (len(missing) > _MOST_NAMED)
            raise InputError(
                f"{path}: annotator {annotator!r} rated {len(answers)} of {len(rule_ids)} rules; "
                f"missing: {', '.join(missing[:_MOST_NAMED])}{more}; finish the file, or give "
                "--allow-unfinished"
            )


def _read(path: Path, rule_ids: Sequence[str]) -> dict[str, dict[str, float]]:
    """The answers in one file, by annotator; of some there may be none."""
    known = set(rule_ids)
    found: dict[str, dict[str, float]] = {}
    for where, annotator, rule_id, text in _answers(path):
        if rule_id not in known:
            raise InputError(
                f"{where}: unknown rule {rule_id!r}{did_you_mean(rule_id, rule_ids)}; expected a "
                "rule_id of the pool"
            )
        answers = found.setdefault(annotator, {})
        if not text:
            continue
        if rule_id in answers:
            raise InputError(
                f"{where}: annotator {annotator!r} rates rule {rule_id!r} a second time; two "
                "people need two names, and one person rates a rule once"
            )
        answers[rule_id] = _importance(text, where=where)
    if not any(found.values()):
        raise InputError(f"{path}: no answer in it; expected numbers from 0 to 1")
    return found


def _importance(text: str, *, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not 0 <= value <= 1:  # false for NaN
        raise InputError(f"{where}: importance {text!r}, expected a number from 0 to 1")
    return value


def _answers(path: Path) -> Iterator[_Answer]:
    """Every cell with an answer, empty ones too, of either layout."""
    rows = _rows(path)
    _, header = next(rows, ("", []))
    _check_header(path, header)
    is_long = _IMPORTANCE in header
    annotators = [name for name in header if name not in _SHOWN | {_RULE}]
    for where, cells in rows:
        if len(cells) != len(header):
            raise InputError(f"{where}: {len(cells)} cells, expected {len(header)} as the header")
        row = dict(zip(header, cells, strict=True))
        if is_long:
            if not row[_ANNOTATOR]:
                raise InputError(f"{where}: no annotator; give everybody a name")
            yield _Answer(where, row[_ANNOTATOR], row[_RULE], row[_IMPORTANCE])
        else:
            for name in annotators:
                yield _Answer(f"{where}, annotator {name!r}", name, row[_RULE], row[name])


def _check_header(path: Path, header: Sequence[str]) -> None:
    problem = ""
    doubled = [name for name, count in Counter(header).items() if count > 1]
    if _RULE not in header:
        problem = f"no column {_RULE}"
    elif doubled:
        problem = f"two columns {doubled[0]!r}"
    elif "" in header:
        problem = "a column without a name"
    elif (_ANNOTATOR in header) != (_IMPORTANCE in header):
        problem = f"only one of the columns {_ANNOTATOR} and {_IMPORTANCE}"
    elif not set(header) - _SHOWN - {_RULE}:
        problem = "no annotator's column"
    if problem:
        raise InputError(
            f"{path}: {problem} in its header ({', '.join(header)}); expected {_ANNOTATOR}, "
            f"{_RULE} and {_IMPORTANCE}, or {_RULE} and a column per annotator"
        )


def _rows(path: Path) -> Iterator[tuple[str, list[str]]]:
    """The lines of a CSV file that are not empty, each with where it stands; cells stripped."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise InputError(f"--people {path}: no such file") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 ({error.reason}); save it as CSV UTF-8") from error
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        for row in reader:
            if any(map(str.strip, row)):
                yield f"{path}, line {reader.line_num}", [cell.strip() for cell in row]
    except csv.Error as error:
        raise InputError(f"{path}, line {reader.line_num}: not CSV ({error})") from error
