"""Annotators that fill in the files of a sample, in each format, as people would."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

#: What an annotator answers: of an item's id and a question, the value; empty for none.
Answering = Callable[[str, str], str]


def page_data(page: Path) -> dict[str, Any]:
    """What a page knows."""
    found = re.search('id="data">(.*)</script>', page.read_text(encoding="utf-8"))
    assert found is not None
    return dict(json.loads(found[1]))


def save_page(page: Path, out: Path, answer: Answering, **changes: Any) -> Path:
    """The file that the page saves."""
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
    """A CSV file as a spreadsheet saves it, of an annotator who is called as the file.

    With a semicolon, decimals have a comma.
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
    """Label Studio's JSON export of tasks that several annotators labelled."""

    def annotation(who: Any, item_id: str, answer: Answering) -> dict[str, Any]:
        names = ("label",) if item_id in labelled else ("clarity", "reliability")
        given = {name: value for name in names if (value := answer(item_id, name))}
        result = [
            {"from_name": name, "type": "choices", "value": {"choices": [value]}}
            for name, value in given.items()
        ]
        return {"id": 1, "completed_by": who, "was_cancelled": not given, "result": result}

    content = json.loads(tasks.read_text(encoding="utf-8"))
    labelled = {task["data"]["item_id"] for task in content if "response" in task["data"]}
    for number, task in enumerate(content):
        item_id = task["data"]["item_id"]
        made = [annotation(who, item_id, answer) for who, answer in answers.items()]
        task |= {"id": number, "annotations": made, "predictions": []}
    out.write_text(json.dumps(content))
    return out


def pages_of(pages: Sequence[Path], folder: Path, *answers: Answering) -> list[Path]:
    """One saved file for each annotator of a sample of pages."""
    return [
        save_page(page, folder / f"{page.stem}.json", answer)
        for page, answer in zip(pages, answers, strict=True)
    ]
