"""Write the files for annotators: an offline page, CSV, or Label Studio's tasks and config."""

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
from encore.people.people_options import AnnotateExportConfig
from encore.people.questionnaire import CANNOT_SAY, COMMENT, Questionnaire

_PAGE = Path(__file__).parent / "page"


def handouts(sheet: Questionnaire, config: AnnotateExportConfig, *, key: str) -> dict[str, bytes]:
    """Return the content of each file for annotators, by file name.

    The format html or csv gives each annotator a file in another random order. Label Studio
    assigns one set of tasks to its annotators and orders them itself.

    Args:
        sheet: The items and questions that annotators see.
        config: The format of the files and the number of annotators.
        key: Key of the sample, which each file states.
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
        # People tire towards the end of a file: no item should be last for everybody.
        item_order = np.random.default_rng([config.seed, number]).permutation(len(sheet.items))
        shuffled = replace(sheet, items=tuple(sheet.items[index] for index in item_order))
        name = f"annotator-{number}"
        files[f"{name}.{config.format}"] = write(shuffled, key=key, annotator=name).encode()
    return files


def _labelling_config(sheet: Questionnaire) -> bytes:
    """Return XML with a text for each card and a group of choices for each question.

    Label Studio attaches choices to a text: here to the last card.
    """
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
        ET.SubElement(choices, "Choice", value=CANNOT_SAY)
    ET.SubElement(view, "TextArea", name=COMMENT, toName=names[-1], placeholder="Comment")
    ET.indent(view)
    return f"{ET.tostring(view, encoding='unicode')}\n".encode()


def _table(sheet: Questionnaire, *, key: str, annotator: str) -> str:
    """Return CSV with a row for each item and an empty column for each question."""
    question_text = " | ".join(
        f"{question.name}: {question.text} "
        f"({', '.join([*(text for _, text in question.choices), CANNOT_SAY])})"
        for question in sheet.questions
    )
    first_cells = {"sample": key, "annotator": annotator}
    columns = [*(question.name for question in sheet.questions), COMMENT]
    last_cells = {"question": question_text, **dict.fromkeys(columns, "")}
    rows = [
        {**first_cells, "item_id": item.item_id, **item.texts, **last_cells} for item in sheet.items
    ]
    stream = io.StringIO()
    stream.write("\ufeff")  # without this mark, Excel does not recognise UTF-8
    writer = csv.DictWriter(stream, list(rows[0]), lineterminator="\r\n")
    writer.writeheader()
    writer.writerows({name: to_cell(text) for name, text in row.items()} for row in rows)
    return stream.getvalue()


def _page(sheet: Questionnaire, *, key: str, annotator: str) -> str:
    """Return one HTML file with its style, script and data.

    Its content security policy forbids other scripts, and loading anything.
    """
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
    names = {"sample": key, "annotator": annotator, "cannot_say": CANNOT_SAY, "comment": COMMENT}
    data = json.dumps({**names, **asdict(sheet)}, ensure_ascii=False)
    # Texts must not end the script element or open a comment in it.
    data = re.sub("[<>&\u2028\u2029]", lambda match: f"\\u{ord(match[0]):04x}", data)
    parts = {"policy": policy, "style": style, "script": script, "data": data}
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)
