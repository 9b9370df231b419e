"""Files that annotators give back: the page's JSON, a filled CSV, or Label Studio's JSON export."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

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
    answers: Mapping[str, list[Answer]]


#: The samples that a file names, and answers by annotator.
_Found = tuple[set[str], dict[str, list[Answer]]]


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
        samples, answers = (_read_json if text.lstrip()[:1] in ("{", "[") else _read_table)(text)
    # What a file of another kind has in their place.
    except (OSError, ValueError, KeyError, TypeError, AttributeError, csv.Error) as error:
        raise InputError(
            f"{path}: cannot be read as answers ({error!r}); expected a file that the page saved, "
            "a CSV file in UTF-8, or a JSON export of Label Studio"
        ) from error
    if len(samples) != 1 or not all(answers):
        raise InputError(
            f"{path}: expected one sample and annotators with names, found samples "
            f"{', '.join(sorted(samples)) or 'none'}; export or save the answers again"
        )
    if name and len(answers) != 1:
        raise InputError(
            f"{argument}: {path} has {len(answers)} annotators; NAME= is for a file of one"
        )
    if name:
        answers = dict(zip([name], answers.values(), strict=True))
    return AnswerFile(path=path, sample=samples.pop(), answers=answers)


def _read_json(text: str) -> _Found:
    data = json.loads(text)
    if isinstance(data, dict):
        keys = ("item_id", "question", "value")
        answers = [Answer(*(str(one[key]) for key in keys)) for one in data["answers"]]
        return {str(data["sample"])}, {str(data["annotator"]): answers}
    samples: set[str] = set()
    found: dict[str, list[Answer]] = {}
    for task in data:
        samples.add(str(task["data"]["sample"]))
        for annotation in task["annotations"]:
            who = annotation["completed_by"]
            name = (who.get("email") or who["id"]) if isinstance(who, dict) else who
            given = found.setdefault(str(name), [])
            results = [] if annotation.get("was_cancelled") else annotation["result"]
            for one in results:
                value = ", ".join(map(str, one["value"]["choices"]))
                given.append(Answer(str(task["data"][_ID_COLUMN]), str(one["from_name"]), value))
    return samples, found


def _read_table(text: str) -> _Found:
    """A table as a spreadsheet saves it; empty cells are no answers."""
    csv.field_size_limit(max(csv.field_size_limit(), len(text)))  # conversations may be long
    tables = [csv.DictReader(io.StringIO(text, newline=""), delimiter=one) for one in _SEPARATORS]
    table = next((one for one in tables if _ID_COLUMN in (one.fieldnames or ())), tables[0])
    columns = [name for name in QUESTION_NAMES if name in (table.fieldnames or ())]
    if not columns:
        raise ValueError(f"no column {_ID_COLUMN}, or none of {', '.join(QUESTION_NAMES)}")
    samples: set[str] = set()
    found: dict[str, list[Answer]] = {}
    for row in table:
        samples.add(row["sample"])
        given = found.setdefault(row["annotator"].strip(), [])
        asked = ((name, row[name] or "") for name in columns)
        given += [Answer(row[_ID_COLUMN], name, value) for name, value in asked if value.strip()]
    return samples, found
