"""Fill in the files of a sample as annotators do, in each format."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

#: Answers of an annotator: from an item's id and a question's name, or ``comment``, to a value,
#: empty for none.
Answering = Callable[[str, str], str]


def page_data(page: Path) -> dict[str, Any]:
    """Return the data of an HTML page: sample, annotator, items and questions."""
    data = re.search('id="data">(.*)</script>', page.read_text(encoding="utf-8"))
    assert data is not None
    return dict(json.loads(data[1]))


def table_rows(table: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file for annotators."""
    return [*csv.DictReader(io.StringIO(table.read_text(encoding="utf-8-sig"), newline=""))]


def save_page(page: Path, out: Path, answer: Answering, **changes: Any) -> Path:
    """Write the file that the page would save. ``changes`` replace keys of its JSON."""
    data = page_data(page)
    answers = [
        {"item_id": item["item_id"], "question": question["name"], "value": value}
        for question in [*data["questions"], {"name": "comment"}]
        for item in data["items"]
        if (value := answer(item["item_id"], question["name"]))
    ]
    saved = {"sample": data["sample"], "annotator": data["annotator"], "answers": answers}
    out.write_text(json.dumps(saved | changes))
    return out


def save_pages(pages: Sequence[Path], folder: Path, *answers: Answering) -> list[Path]:
    """Write the saved file of each annotator of a sample of pages."""
    return [
        save_page(page, folder / f"{page.stem}.json", answer)
        for page, answer in zip(pages, answers, strict=True)
    ]


def fill_table(table: Path, out: Path, answer: Answering, *, separator: str = ",") -> Path:
    """Write a CSV file of responses, filled in as a spreadsheet saves it.

    The annotator has the file's name. If the separator is a semicolon, decimals have a comma.
    """
    rows = table_rows(table)
    with out.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, list(rows[0]), delimiter=separator)
        writer.writeheader()
        for row in rows:
            label = answer(row["item_id"], "label")
            label = label.replace(".", ",") if separator == ";" else label
            comment = answer(row["item_id"], "comment")
            writer.writerow({**row, "annotator": out.stem, "label": label, "comment": comment})
    return out


def export_tasks(tasks: Path, out: Path, answers: Mapping[Any, Answering]) -> Path:
    """Write Label Studio's JSON export of responses that several users labelled."""
    content = json.loads(tasks.read_text(encoding="utf-8"))
    for task in content:
        task["annotations"] = []
        for user, answer in answers.items():
            label = answer(task["data"]["item_id"], "label")
            choice = {"from_name": "label", "type": "choices", "value": {"choices": [label]}}
            text = {"text": [answer(task["data"]["item_id"], "comment")]}
            comment = {"from_name": "comment", "type": "textarea", "value": text}
            results = [choice, comment]
            annotation = {"completed_by": user, "was_cancelled": not label, "result": results}
            task["annotations"].append(annotation)
    out.write_text(json.dumps(content))
    return out
