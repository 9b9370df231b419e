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
from xml.etree import ElementTree as ET

import numpy as np

from encore.core.spreadsheets import to_cell
from encore.people.annotate_config import AnnotateExportConfig
from encore.people.questionnaire import Questionnaire

_PAGE = Path(__file__).parent / "page"


def handouts(sheet: Questionnaire, config: AnnotateExportConfig, *, key: str) -> dict[str, bytes]:
    """The content of each file for annotators, by name.

    Label Studio gives one set of tasks to all of its annotators, so order and number are its own.

    Args:
        sheet: What they see.
        config: Which format, and for how many people.
        key: Of the sample.
    """
    if config.format == "label-studio":
        tasks = [
            {"data": {"sample": key, "item_id": item.item_id, **item.texts}} for item in sheet.items
        ]
        return {
            "tasks.json": json.dumps(tasks, ensure_ascii=False).encode(),
            "labelling-config.xml": _labelling_config(sheet),
        }
    write, files = _table if config.format == "csv" else _page, {}
    for number in range(1, config.annotators + 1):
        # No item is always met when people are tired.
        places = np.random.default_rng([config.seed, number]).permutation(len(sheet.items))
        own = replace(sheet, items=tuple(sheet.items[place] for place in places))
        name = f"annotator-{number}"
        files[f"{name}.{config.format}"] = write(own, key=key, annotator=name).encode()
    return files


def _labelling_config(sheet: Questionnaire) -> bytes:
    """Each card a text, each question a group of choices about the last one."""
    view = ET.Element("View")
    names = [card.name for card in sheet.items[0].cards]
    for name in names:
        ET.SubElement(view, "Header", value=name.replace("_", " ").capitalize(), size="4")
        ET.SubElement(view, "Text", name=name, value=f"${name}")
    for question in sheet.questions:
        ET.SubElement(view, "Header", value=question.text, size="4")
        choices = ET.SubElement(
            view, "Choices", name=question.name, toName=names[-1], choice="single", required="true"
        )
        for value, text in question.choices:
            ET.SubElement(choices, "Choice", value=text, alias=value)
    ET.indent(view)
    return f"{ET.tostring(view, encoding='unicode')}\n".encode()


def _table(sheet: Questionnaire, *, key: str, annotator: str) -> str:
    """One row an item, with an empty column for each question."""
    asked = " | ".join(
        f"{question.name}: {question.text} ({', '.join(text for _, text in question.choices)})"
        for question in sheet.questions
    )
    head = {"sample": key, "annotator": annotator}
    tail = {"question": asked, **dict.fromkeys((one.name for one in sheet.questions), "")}
    rows = [{**head, "item_id": item.item_id, **item.texts, **tail} for item in sheet.items]
    stream = io.StringIO()
    stream.write("\ufeff")  # without it, Excel takes UTF-8 for another encoding
    writer = csv.DictWriter(stream, list(rows[0]), lineterminator="\r\n")
    writer.writeheader()
    writer.writerows({name: to_cell(text) for name, text in row.items()} for row in rows)
    return stream.getvalue()


def _page(sheet: Questionnaire, *, key: str, annotator: str) -> str:
    """One file with its style, script and data, which loads nothing and runs no other script."""
    template, script, style = (
        (_PAGE / name).read_text(encoding="utf-8")
        for name in ("annotate.html", "annotate.js", "annotate.css")
    )
    digests = [hashlib.sha256(text.encode()).digest() for text in (script, style)]
    hashes = [f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests]
    policy = (
        f"default-src 'none'; script-src {hashes[0]}; style-src {hashes[1]}; "
        "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'"
    )
    data = json.dumps({"sample": key, "annotator": annotator, **asdict(sheet)}, ensure_ascii=False)
    # Escaped, it ends no script element and opens no comment in it.
    data = re.sub("[<>&\u2028\u2029]", lambda match: f"\\u{ord(match[0]):04x}", data)
    parts = {"policy": policy, "style": style, "script": script, "data": data}
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)
