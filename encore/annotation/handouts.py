"""The files for annotators: Label Studio's tasks and config, CSV, or a page that works offline."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np

from encore.annotation.annotate_config import AnnotateExportConfig
from encore.annotation.questionnaire import Item, Questionnaire
from encore.spreadsheets import to_cell

#: What a saved page says of itself.
PAGE_FORMAT = 1
_PAGE = Path(__file__).parent / "page"
#: Keys of choices on the page, in the order of all choices of an item.
_KEYS = "1234567890qwert"


def handouts(sheet: Questionnaire, config: AnnotateExportConfig, *, key: str) -> dict[str, bytes]:
    """The content of each file for annotators, by name.

    Label Studio gives one set of tasks to all of its annotators, so order and number are its own.

    Args:
        sheet: What they see.
        config: Which format, for how many people, in which order.
        key: Of the sample.
    """
    if config.format == "label-studio":
        return {
            "tasks.json": _json(_tasks(sheet, key)).encode(),
            "labelling-config.xml": _labelling_config(sheet),
        }
    files = {}
    for number in range(1, config.annotators + 1):
        annotator, own = f"annotator-{number}", sheet
        if config.order == "own":
            places = np.random.default_rng([config.seed, number]).permutation(len(sheet.items))
            own = replace(sheet, items=tuple(sheet.items[place] for place in places))
        write = _table if config.format == "csv" else _page
        files[f"{annotator}.{config.format}"] = write(own, key=key, annotator=annotator).encode()
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


def _table(sheet: Questionnaire, *, key: str, annotator: str) -> str:
    """One row an item, with an empty column for each question."""
    asked = " | ".join(
        f"{question.name}: {question.text} ({', '.join(one.text for one in question.choices)})"
        for question in sheet.questions
    )
    stream = io.StringIO()
    stream.write("\ufeff")  # without it, Excel takes UTF-8 for another encoding
    head = {"sample": key, "annotator": annotator}
    tail = {"question": asked, **dict.fromkeys((one.name for one in sheet.questions), "")}
    rows = [{**head, "item_id": item.item_id, **_texts(item), **tail} for item in sheet.items]
    writer = csv.DictWriter(stream, list(rows[0]), lineterminator="\r\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: to_cell(text) for name, text in row.items()})
    return stream.getvalue()


# --- HTML ---------------------------------------------------------------------------------------


def _page(sheet: Questionnaire, *, key: str, annotator: str) -> str:
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
        "keys": _KEYS,
        **asdict(sheet),
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
