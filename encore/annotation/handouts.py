"""The files for annotators: Label Studio's tasks and config, CSV, or a page that works offline."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np

from encore.annotation.annotate_config import Format, Order
from encore.annotation.questionnaire import Item, Questionnaire

#: What a saved page says of itself.
PAGE_FORMAT = 1
#: With these a spreadsheet takes a cell for a formula.
_FORMULA_SIGNS = tuple("=+-@\t\r\n＝＋－＠")
_PAGE = Path(__file__).parent / "page"
#: Keys of choices on the page, in the order of all choices of an item.
_KEYS = "1234567890qwert"


def handouts(
    sheet: Questionnaire,
    *,
    key: str,
    seed: int,
    file_format: Format,
    num_annotators: int,
    order: Order,
) -> dict[str, bytes]:
    """The content of each file for annotators, by name.

    Label Studio gives one set of tasks to all of its annotators, so order and number are its own.

    Args:
        sheet: What they see.
        key: Of the sample.
        seed: Of the annotators' own orders.
        file_format: Of the files.
        num_annotators: How many files of HTML or CSV.
        order: ``same``: that of the questionnaire.
    """
    if file_format == "label-studio":
        return {
            "tasks.json": _json(_tasks(sheet, key)).encode(),
            "labelling-config.xml": _labelling_config(sheet),
        }
    files = {}
    for number in range(1, num_annotators + 1):
        annotator, items = f"annotator-{number}", sheet.items
        if order == "own":
            places = np.random.default_rng([seed, number]).permutation(len(items))
            items = tuple(items[place] for place in places)
        if file_format == "csv":
            content = _table(sheet, items, key=key, annotator=annotator)
        else:
            content = _page(sheet, items, key=key, annotator=annotator)
        files[f"{annotator}.{file_format}"] = content.encode()
    return files


# --- Label Studio -------------------------------------------------------------------------------


def _tasks(sheet: Questionnaire, key: str) -> list[dict[str, Any]]:
    return [
        {"data": {"sample": key, "item_id": item.item_id} | _texts(item)} for item in sheet.items
    ]


def _labelling_config(sheet: Questionnaire) -> bytes:
    """Each card a text, each question a group of choices about the last one."""
    view = ET.Element("View")
    names = [card.name for card in sheet.items[0].cards]
    for name in names:
        ET.SubElement(view, "Header", value=name.replace("_", " ").capitalize(), size="4")
        ET.SubElement(view, "Text", name=name, value=f"${name}")
    keys = iter(_KEYS)
    for question in sheet.questions:
        ET.SubElement(view, "Header", value=question.text, size="4")
        choices = ET.SubElement(
            view, "Choices", name=question.name, toName=names[-1], choice="single", required="true"
        )
        for one in question.choices:
            about = {"value": one.text, "alias": one.value, "hotkey": next(keys)}
            ET.SubElement(choices, "Choice", about)
    ET.indent(view)
    return f"{ET.tostring(view, encoding='unicode')}\n".encode()


def _texts(item: Item) -> dict[str, str]:
    return {card.name: card.text for card in item.cards}


# --- CSV ----------------------------------------------------------------------------------------


def plain_cell(text: str) -> str:
    """The text as a cell that no spreadsheet takes for a formula."""
    return f"'{text}" if text.lstrip(" ").startswith(_FORMULA_SIGNS) else text


def _table(sheet: Questionnaire, items: Sequence[Item], *, key: str, annotator: str) -> str:
    """One row an item, with an empty column for each question."""
    asked = " | ".join(
        f"{question.name}: {question.text} ({', '.join(one.text for one in question.choices)})"
        for question in sheet.questions
    )
    stream = io.StringIO()
    stream.write("\ufeff")  # without it, Excel takes UTF-8 for another encoding
    head = {"sample": key, "annotator": annotator}
    tail = {"question": asked, **dict.fromkeys((one.name for one in sheet.questions), "")}
    rows = [{**head, "item_id": item.item_id, **_texts(item), **tail} for item in items]
    writer = csv.DictWriter(stream, list(rows[0]), lineterminator="\r\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: plain_cell(text) for name, text in row.items()})
    return stream.getvalue()


# --- HTML ---------------------------------------------------------------------------------------


def _page(sheet: Questionnaire, items: Sequence[Item], *, key: str, annotator: str) -> str:
    """One file with its style, script and data, which loads nothing and runs no other script."""
    template, script, style = (
        (_PAGE / name).read_text(encoding="utf-8")
        for name in ("annotate.html", "annotate.js", "annotate.css")
    )
    policy = (
        f"default-src 'none'; script-src {_digest(script)}; style-src {_digest(style)}; "
        "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'"
    )
    data = {
        "format": PAGE_FORMAT,
        "sample": key,
        "annotator": annotator,
        "kind": sheet.kind,
        "keys": _KEYS,
        "questions": [asdict(question) for question in sheet.questions],
        "items": [asdict(item) for item in items],
    }
    parts = {"policy": policy, "style": style, "script": script, "data": _escaped(_json(data))}
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)


def _digest(text: str) -> str:
    """How a page's policy names an inline script or style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _escaped(data: str) -> str:
    """JSON that ends no script element and opens no comment in it."""
    return re.sub("[<>&\u2028\u2029]", lambda match: f"\\u{ord(match[0]):04x}", data)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
