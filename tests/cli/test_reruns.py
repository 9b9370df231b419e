"""A second run of a command gives the same numbers, whatever Python's hashes of texts are.

``python -m tests.cli.test_reruns FOLDER`` runs the commands in FOLDER, which has a study and the
answers of two people, and writes what each of them prints.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.golden.command_line import encore, run_process
from tests.people.answering import page_data, save_pages
from tests.test_packaging import ROOT
from tests.worlds.studies import write_lines

pytestmark = pytest.mark.services

COMMANDS = (
    "analyze study",
    "weights study --compare",
    "weights study --scheme shrunk --labels 20",
    "weights study --label-curve",
    "check study --floor 0.5",
    "annotate import study annotator-1.json annotator-2.json",
    "annotate export study --seed 3",
    "labels labels.jsonl",
    "report study --out page.html",
    "plan train study --backbone minilm",
)


def printed_by(commands: Sequence[str]) -> dict[str, list[Any]]:
    """Return the exit code and the output of each command, run in this folder."""
    finished = {command: encore(*command.split(), "--json") for command in commands}
    return {command: [ended.code, ended.out] for command, ended in finished.items()}


def label_of(item_id: str, question: str, *, annotator: int) -> str:
    """Return an answer that mostly is the same for all annotators."""
    draw = random.Random(f"{item_id} {annotator}").random()
    first = random.Random(item_id).choice(["0", "1"])
    return "" if question != "label" else first if draw < 0.9 else "0.5"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the demo's study, some of whose pairs share a prompt, and answers."""
    folder = tmp_path_factory.mktemp("reruns")
    assert encore("demo", folder / "study").code == 0
    assert encore("annotate", "export", folder / "study", "--annotators", 2).code == 0
    pages = sorted((folder / "study").glob("annotations/*/handouts/*.html"))
    assert len(page_data(pages[0])["items"]) == 200
    rows = [
        {
            "prompt": f"Question {number % 9}",
            "response": f"Answer {number}",
            "rule": "kind",
            "rating": number % 5 / 4,
            "label": number % 3 % 2 if number < 40 else None,
        }
        for number in range(80)
    ]
    write_lines(folder / "labels.jsonl", rows)
    answers = save_pages(
        pages,
        folder,
        lambda item, question: label_of(item, question, annotator=1),
        lambda item, question: label_of(item, question, annotator=2),
    )
    assert encore("annotate", "import", folder / "study", *answers).code == 0
    return folder


def test_a_command_prints_the_same_numbers_in_another_process(folder, monkeypatch):
    seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"  # of this process: any other
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
    call = (sys.executable, "-m", "tests.cli.test_reruns", folder)
    printed_elsewhere = run_process(*call, env=environment, cwd=ROOT).json
    monkeypatch.chdir(folder)
    for command, (code, output) in printed_by(COMMANDS).items():
        assert code == (4 if command.startswith("check") else 0), (command, output)
        assert [code, output] == printed_elsewhere[command], command


if __name__ == "__main__":
    os.chdir(sys.argv[1])
    json.dump(printed_by(COMMANDS), sys.stdout)
