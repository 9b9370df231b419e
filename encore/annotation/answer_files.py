"""Files that annotators give back: the page's JSON, a filled CSV, or Label Studio's JSON export."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from encore.annotation.questionnaire import QUESTION_NAMES
from encore.errors import InputError

_SEPARATORS = ",;\t"


class Answer(NamedTuple):
    """One answer as it stands in a file."""

    sample: str
    annotator: str
    item_id: str
    question: str
    value: str


def read_answer_file(argument: str) -> tuple[Path, list[Answer]]:
    """A file and the answers in it, whatever its format.

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
        answers = [*(_of_json if text.lstrip()[:1] in ("{", "[") else _of_table)(text)]
    # What a file of another kind has in their place.
    except (OSError, ValueError, KeyError, TypeError, AttributeError, csv.Error) as error:
        raise InputError(
            f"{path}: cannot be read as answers ({error!r}); expected a file that the page saved, "
            "a CSV file in UTF-8, or a JSON export of Label Studio"
        ) from error
    annotators = {one.annotator for one in answers}
    if not all(annotators) or not answers:
        raise InputError(
            f"{path}: no answers, or some without an annotator; expected answers in the columns or "
            f"questions {', '.join(QUESTION_NAMES)}: fill them in, or save the answers again"
        )
    if name and len(annotators) > 1:
        raise InputError(
            f"{argument}: {path} has {len(annotators)} annotators; NAME= is for a file of one"
        )
    return path, [one._replace(annotator=name or one.annotator) for one in answers]


def _of_json(text: str) -> Iterator[Answer]:
    data = json.loads(text)
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


def _of_table(text: str) -> Iterator[Answer]:
    """A table as a spreadsheet saves it; empty cells are no answers."""
    csv.field_size_limit(max(csv.field_size_limit(), len(text)))  # conversations may be long
    separator = max(_SEPARATORS, key=text.partition("\n")[0].count)
    for row in csv.DictReader(io.StringIO(text, newline=""), delimiter=separator):
        for name in QUESTION_NAMES:
            if value := (row.get(name) or "").strip():
                yield Answer(row["sample"], row["annotator"].strip(), row["item_id"], name, value)
