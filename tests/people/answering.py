"""Fill in the files of a sample as annotators do, in each format."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

#: Answers of an annotator: from an item's id and a question's name to a value, empty for none.
Answering = Callable[[str, str], str]


def page_data(page: Path) -> dict[str, Any]:
    """Return the data of an HTML page: sample, annotator, items and questions."""
    data = re.search('id="data">(.*)</script>', page.read_text(encoding="utf-8"))
    assert data is not None
    return dict(json.loads(data[1]))


def save_page(page: Path, out: Path, answer: Answering, **changes: Any) -> Path:
    """Write the file that the page would save. ``changes`` replace keys of its JSON."""
    data = page_data(page)
    answers = [
        {"item_id": item["item_id"], "question": question["name"], "value": value}
        for item in data["items"]
        for question in data["questions"]
        if (value := answer(item["item_id"], question["name"]))
    ]
    saved = {"sample": data["sample"], "annotator": data["annotator"]}
    out.write_text(json.dumps({**saved, "answers": answers, **changes}))
    return out


def fill_table(table: Path, out: Path, answer: Answering, *, separator: str = ",") -> Path:
    """Write a filled CSV file as a spreadsheet saves it. The annotator has the file's name.

    If the separator is a semicolon, decimals have a comma.
    """
    rows = list(csv.DictReader(io.StringIO(table.read_text(encoding="utf-8-sig"), newline="")))
    for row in rows:
        row["annotator"] = out.stem
        for name in {"label", "clarity", "reliability"} & row.keys():
            value = answer(row["item_id"], name)
            row[name] = value.replace(".", ",") if separator == ";" else value
    with out.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, list(rows[0]), delimiter=separator)
        writer.writeheader()
        writer.writerows(rows)
    return out


def export_tasks(tasks: Path, out: Path, answers: Mapping[Any, Answering]) -> Path:
    """Write Label Studio's JSON export of tasks that several annotators labelled."""

    def annotation(user: Any, item_id: str, answer: Answering) -> dict[str, Any]:
        names = ("label",) if item_id in labelled else ("clarity", "reliability")
        result = [
            {"from_name": name, "type": "choices", "value": {"choices": [value]}}
            for name in names
            if (value := answer(item_id, name))
        ]
        return {"id": 1, "completed_by": user, "was_cancelled": not result, "result": result}

    content = json.loads(tasks.read_text(encoding="utf-8"))
    labelled = {task["data"]["item_id"] for task in content if "response" in task["data"]}
    for number, task in enumerate(content):
        item_id = task["data"]["item_id"]
        annotations = [annotation(user, item_id, answer) for user, answer in answers.items()]
        task |= {"id": number, "annotations": annotations, "predictions": []}
    out.write_text(json.dumps(content))
    return out


def pages_of(pages: Sequence[Path], folder: Path, *answers: Answering) -> list[Path]:
    """Write the saved file of each annotator of a sample of pages."""
    return [
        save_page(page, folder / f"{page.stem}.json", answer)
        for page, answer in zip(pages, answers, strict=True)
    ]
