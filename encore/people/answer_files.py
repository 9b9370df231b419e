"""Read annotators' files: JSON saved by the page, filled CSV, or Label Studio's JSON export."""

from __future__ import annotations

import json
from collections.abc import Iterator
from json import JSONDecodeError
from pathlib import Path
from typing import NamedTuple

from encore.core.errors import InputError
from encore.data.table_files import CSV, csv_rows
from encore.people.questionnaire import COMMENT, QUESTION_NAMES


class Answer(NamedTuple):
    """One answer as a file states it, not yet checked.

    Attributes:
        sample: Key of the sample.
        annotator: Name of the annotator.
        item_id: Id of the item in the sample.
        question: Name of the question, one of `QUESTION_NAMES` if the file is right, or `COMMENT`.
        value: Text of the answer or comment.
    """

    sample: str
    annotator: str
    item_id: str
    question: str
    value: str


def read_answer_file(path: Path) -> list[Answer]:
    """Read the answers in a file of any of the three formats.

    Raises:
        InputError: The file cannot be read, has an unknown format or no answers, or an answer has
            no annotator.
    """
    if not path.is_file():
        raise InputError(f"{path}: no such file; expected answers that the page saved")
    try:
        answers = [*(_table_answers if path.suffix == CSV else _json_answers)(path)]
    # JSON of another shape raises the last three.
    except (OSError, JSONDecodeError, UnicodeError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{path}: cannot be read as answers ({error!r}); expected a file that the page saved, "
            "a CSV file in UTF-8, or a JSON export of Label Studio"
        ) from error
    if not answers or not all(answer.annotator for answer in answers):
        raise InputError(
            f"{path}: no answers, or some without an annotator; expected answers in the columns or "
            f"questions {', '.join(QUESTION_NAMES)}: fill them in, or save the answers again"
        )
    return answers


def _json_answers(path: Path) -> Iterator[Answer]:
    """Yield the answers of an object that the page saved, or of a list of Label Studio's tasks."""
    data = json.loads(path.read_text(encoding="utf-8-sig"))
    if isinstance(data, dict):
        sample, annotator = str(data["sample"]), str(data["annotator"])
        for answer in data["answers"]:
            texts = (str(answer[key]) for key in ("item_id", "question", "value"))
            yield Answer(sample, annotator, *texts)
        return
    for task in data:
        sample, item_id = str(task["data"]["sample"]), str(task["data"]["item_id"])
        for annotation in task["annotations"]:
            user = annotation["completed_by"]
            annotator = (user.get("email") or user["id"]) if isinstance(user, dict) else user
            for choice in () if annotation.get("was_cancelled") else annotation["result"]:
                value = ", ".join(
                    map(str, choice["value"].get("choices") or choice["value"]["text"])
                )
                yield Answer(sample, str(annotator), item_id, str(choice["from_name"]), value)


def _table_answers(path: Path) -> Iterator[Answer]:
    """Yield the answers of a CSV file as a spreadsheet saves it, without empty cells."""
    for _, row in csv_rows(path):
        for name in (*QUESTION_NAMES, COMMENT):
            if value := row.get(name, "").strip():
                yield Answer(row["sample"], row["annotator"].strip(), row["item_id"], name, value)
