"""Files that annotators give back: the page's JSON, a filled CSV, or Label Studio's JSON export."""

from __future__ import annotations

import json
from collections.abc import Iterator
from json import JSONDecodeError
from pathlib import Path
from typing import NamedTuple

from encore.core.errors import InputError
from encore.data.table_files import CSV, csv_rows
from encore.people.questionnaire import QUESTION_NAMES


class Answer(NamedTuple):
    """One answer as it stands in a file."""

    sample: str
    annotator: str
    item_id: str
    question: str
    value: str


def read_answer_file(path: Path) -> list[Answer]:
    """The answers in a file, whatever its format.

    Raises:
        InputError: Nothing there, or no format that is known.
    """
    try:
        answers = [*(_of_table if path.suffix == CSV else _of_json)(path)]
    # What a file of another kind has in their place.
    except (OSError, JSONDecodeError, UnicodeError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{path}: cannot be read as answers ({error!r}); expected a file that the page saved, "
            "a CSV file in UTF-8, or a JSON export of Label Studio"
        ) from error
    if not answers or not all(one.annotator for one in answers):
        raise InputError(
            f"{path}: no answers, or some without an annotator; expected answers in the columns or "
            f"questions {', '.join(QUESTION_NAMES)}: fill them in, or save the answers again"
        )
    return answers


def _of_json(path: Path) -> Iterator[Answer]:
    data = json.loads(path.read_text(encoding="utf-8-sig"))
    if isinstance(data, dict):
        for one in data["answers"]:
            about = (one["item_id"], one["question"], one["value"])
            yield Answer(*map(str, (data["sample"], data["annotator"], *about)))
        return
    for task in data:
        sample, item_id = str(task["data"]["sample"]), str(task["data"]["item_id"])
        for annotation in task["annotations"]:
            who = annotation["completed_by"]
            name = (who.get("email") or who["id"]) if isinstance(who, dict) else who
            for one in () if annotation.get("was_cancelled") else annotation["result"]:
                value = ", ".join(map(str, one["value"]["choices"]))
                yield Answer(sample, str(name), item_id, str(one["from_name"]), value)


def _of_table(path: Path) -> Iterator[Answer]:
    """A table as a spreadsheet saves it; empty cells are no answers."""
    for _, row in csv_rows(path):
        for name in QUESTION_NAMES:
            if value := row.get(name, "").strip():
                yield Answer(row["sample"], row["annotator"].strip(), row["item_id"], name, value)
