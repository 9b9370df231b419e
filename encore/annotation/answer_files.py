"""Files that annotators give back: the page's JSON, a filled CSV, or Label Studio's JSON export."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from encore.annotation.questionnaire import QUESTION_NAMES
from encore.errors import InputError

#: A column that every table of answers has, by which its separator is known.
_ID_COLUMN = "item_id"
_SEPARATORS = ",;\t"


class Answer(NamedTuple):
    """One answer as it stands in a file."""

    item_id: str
    question: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerFile:
    """A file of answers; ``answers`` has one entry for each annotator, perhaps without any."""

    path: Path
    sample: str
    answers: Mapping[str, tuple[Answer, ...]]


class _SavedAnswer(BaseModel):
    item_id: str
    question: str
    value: str


class _SavedPage(BaseModel):
    encore_annotations: Literal[1]
    sample: str
    annotator: str = Field(min_length=1)
    answers: list[_SavedAnswer]


class _User(BaseModel):
    id: int
    email: str = ""


class _Result(BaseModel):
    from_name: str
    value: dict[str, Any]


class _Annotation(BaseModel):
    completed_by: int | str | _User
    was_cancelled: bool = False
    result: list[_Result]

    @property
    def annotator(self) -> str:
        who = self.completed_by
        return (who.email or str(who.id)) if isinstance(who, _User) else str(who)


class _TaskData(BaseModel):
    sample: str
    item_id: str


class _Task(BaseModel):
    data: _TaskData
    annotations: list[_Annotation]


def read_answer_file(argument: str) -> AnswerFile:
    """The answers in a file, whatever its format.

    Args:
        argument: ``FILE``, or ``NAME=FILE`` to call its one annotator NAME.

    Raises:
        InputError: Nothing there, no format that is known, or a name for several annotators.
    """
    name, equals, where = argument.partition("=")
    if not equals or Path(argument).exists():
        name, where = "", argument
    path = Path(where)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"{path}: cannot be read ({error}); expected a file that the page saved, a CSV file in "
            "UTF-8, or a JSON export of Label Studio"
        ) from error
    read = _read_json if text.lstrip()[:1] in ("{", "[") else _read_table
    try:
        found = read(path, text)
    except (ValueError, csv.Error) as error:
        raise InputError(f"{path}: {_problem(error)}; export or save the answers again") from error
    if not name:
        return found
    if len(found.answers) != 1:
        raise InputError(
            f"{argument}: {path} has {len(found.answers)} annotators; NAME= is for a file of one"
        )
    (answers,) = found.answers.values()
    return AnswerFile(path=path, sample=found.sample, answers={name: answers})


def _problem(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False)[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return str(error)


def _read_json(path: Path, text: str) -> AnswerFile:
    data = json.loads(text)
    if isinstance(data, dict):
        page = _SavedPage.model_validate(data)
        answers = tuple(Answer(**one.model_dump()) for one in page.answers)
        return AnswerFile(path=path, sample=page.sample, answers={page.annotator: answers})
    found: dict[str, list[Answer]] = {}
    samples = set()
    for task in TypeAdapter(list[_Task]).validate_python(data):
        samples.add(task.data.sample)
        for annotation in task.annotations:
            if not annotation.was_cancelled:
                given = found.setdefault(annotation.annotator, [])
                given += _labelled(task.data.item_id, annotation)
    return _one_sample(path, samples, found)


def _labelled(item_id: str, annotation: _Annotation) -> Iterator[Answer]:
    for result in annotation.result:
        if "choices" in result.value:
            value = ", ".join(map(str, result.value["choices"]))
            yield Answer(item_id, result.from_name, value)


def _read_table(path: Path, text: str) -> AnswerFile:
    """A table as a spreadsheet saves it; empty cells are no answers."""
    head = text.partition("\n")[0]
    separator = next((one for one in _SEPARATORS if _ID_COLUMN in head.split(one)), None)
    if separator is None:
        raise ValueError(f"neither JSON nor a CSV file with a column {_ID_COLUMN}")
    found: dict[str, list[Answer]] = {}
    samples = set()
    csv.field_size_limit(max(csv.field_size_limit(), len(text)))  # conversations may be long
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=separator)
    columns = [name for name in reader.fieldnames or () if name in QUESTION_NAMES]
    if not columns:
        raise ValueError(f"no column to fill in; expected one of {', '.join(QUESTION_NAMES)}")
    for number, row in enumerate(reader, start=1):
        sample, annotator = row.get("sample"), row.get("annotator")
        if not (sample and annotator and row[_ID_COLUMN]):
            raise ValueError(f"row {number} has no sample, annotator or {_ID_COLUMN}")
        samples.add(sample)
        given = found.setdefault(annotator.strip(), [])
        asked = ((name, row[name] or "") for name in columns)
        given += [Answer(row[_ID_COLUMN], name, value) for name, value in asked if value.strip()]
    return _one_sample(path, samples, found)


def _one_sample(path: Path, samples: set[str], found: Mapping[str, list[Answer]]) -> AnswerFile:
    if len(samples) != 1 or not found:
        named = ", ".join(sorted(samples)) or "none"
        raise ValueError(f"expected one sample and an annotator, found samples: {named}")
    answers = {name: tuple(given) for name, given in found.items()}
    return AnswerFile(path=path, sample=samples.pop(), answers=answers)
