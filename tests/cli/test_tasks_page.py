"""The page of tasks (`docs/tasks.md`): its commands print its lines on the demo's study."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from encore.core import terminal
from encore.demo import JUDGE_PATH
from encore.recipes.shipped_demo import make_demo_study
from tests.golden.command_line import ENVIRONMENT

pytestmark = pytest.mark.services

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_every_command_prints_the_lines_of_the_page_in_their_order(encore, tmp_path, monkeypatch):
    """A line of the page that is only "…" stands for any lines.

    Figures agree: rule 3 is right on 69.1 % of 349 untied pairs, so wrong on 108; 70,000 pairs have
    2 x 10 x 70,000 calls, and 412,846,000 x 0.15 + 5,600,000 x 0.6 tokens cost 65.3 a million.
    """
    monkeypatch.setitem(ENVIRONMENT, "COLUMNS", "80")
    for stream in (terminal.console, terminal.out):
        monkeypatch.setattr(stream, "_width", 80)
    monkeypatch.chdir(tmp_path)
    make_demo_study(Path("demo-study"))
    blocks = re.findall(r"```console\n(.+?)```", (DOCS / "tasks.md").read_text("utf-8"), re.DOTALL)
    calls = [call for block in blocks for call in block.split("$ encore ")[1:]]
    for call in calls:
        command, *lines = call.replace("encore/demo/judge", str(JUDGE_PATH)).splitlines()
        arguments, _, file = command.partition(" > ")
        finished = encore(*shlex.split(arguments))
        assert finished.code == 0, (command, finished.err)
        if file:
            Path(file).write_text(finished.out, encoding="utf-8")
        printed = (line.rstrip() for line in (finished.out + finished.err).splitlines())
        for line in lines:
            assert line == "…" or line in printed, (command, line)
    assert len(calls) >= 10


def test_the_drawn_pictures_are_small_and_name_no_folder_of_a_machine():
    pictures = [*DOCS.glob("pictures/*.svg")]
    assert {path.stem for path in pictures} == {"demo", "analyze", "show", "compare", "judge-alone"}
    for path in pictures:
        text = path.read_text(encoding="utf-8")
        assert len(text) < 60_000
        assert not re.search(r"url\((?!#)|/(home|root|tmp|work)/", text), path
