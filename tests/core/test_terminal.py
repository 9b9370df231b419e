"""Nothing from outside reaches a terminal as control or direction characters."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table

from encore.core import terminal
from encore.core.terminal import VisibleFormatter, print_json, quoted, say_next, visible_json

#: Colour, title and 8-bit control sequences; embedding, overriding and isolating marks; the marks
#: of Arabic and of lines; half a surrogate pair, as in a path that is not UTF-8.
HOSTILE = "a\x1b[31mb\x1b]0;title\x07c\x9b2Jd\u202ee\u2066f\u061cg\u2028h\x7fi\udcffj"
#: What each becomes: the character's escape in Python.
HARMLESS = r"a\x1b[31mb\x1b]0;title\x07c\x9b2Jd\u202ee\u2066f\u061cg\u2028h\x7fi\udcffj"


@pytest.fixture
def printed(monkeypatch):
    """Return a function that prints something on a console of a terminal and returns the bytes."""

    def bytes_of(value) -> str:
        console = terminal._SafeConsole(
            file=(file := io.StringIO()), force_terminal=True, width=200, **terminal._PLAIN
        )
        console.print(value, soft_wrap=True)
        return file.getvalue()

    return bytes_of


def test_a_console_prints_text_tables_and_titles_without_control_characters(printed):
    hostile = HOSTILE.replace("\x07", "")  # rich itself leaves the bell out
    table = Table("heading " + hostile, title="title " + hostile)
    table.add_row("cell " + hostile)
    assert HARMLESS.replace(r"\x07", "") in printed(hostile)
    text = printed(table)
    assert not set(hostile) & set(text) & {*"\x9b\x7f\u202e\u2066\u061c\u2028\udcff"}
    assert "\x1b[31m" not in text
    assert "\x1b]0;" not in text


def test_markup_in_a_title_of_progress_is_text(monkeypatch):
    file = io.StringIO()
    console = terminal._SafeConsole(file=file, force_terminal=True, width=200, **terminal._PLAIN)
    monkeypatch.setattr(terminal, "console", console)
    with terminal.terminal_reporter() as reporter:
        reporter.started("judge [bold]x[/bold] \x1b[2J\u202e", total=2)
        reporter.advanced(note="[red]1/s\x9b")
    text = file.getvalue()
    assert "judge [bold]x[/bold] \\x1b[2J\\u202e" in text
    assert "[red]1/s\\x9b" in text


def test_json_on_stdout_holds_escapes_of_json(capsys):
    hostile = HOSTILE.replace("\udcff", "")  # pydantic refuses half a surrogate pair
    print_json({hostile: hostile})
    text = capsys.readouterr().out
    assert json.loads(text) == {hostile: hostile}
    assert text.isascii()
    assert visible_json('"\u202e"') == r'"\u202e"'


def test_a_line_of_the_log_is_visible():
    record = logging.LogRecord("x", logging.WARNING, "f", 1, "judge %s", (HOSTILE,), None)
    assert VisibleFormatter("%(message)s").format(record) == f"judge {HARMLESS}"


@pytest.mark.parametrize(
    "name", ["plain", "two words", "it's", "\x1b[31mred", "\u202etxt.exe", "a'b\\c\x9b", "a\nb\tc"]
)
def test_the_next_command_can_be_pasted_and_names_a_path_that_exists(
    name, tmp_path, capsys, monkeypatch
):
    file = io.StringIO()
    console = terminal._SafeConsole(file=file, **terminal._PLAIN)
    monkeypatch.setattr(terminal, "console", console)
    path = tmp_path / name
    path.mkdir()
    say_next(path, "--run", 1, program="ls -d --")
    line = file.getvalue().removeprefix("next: ").rstrip("\n")
    assert "\n" not in line
    assert terminal.visible(line) == line
    command = line.replace("'ls -d --' ", "ls -d --zero -- ").removesuffix(" --run 1")
    listed = subprocess.run(["bash", "-c", command], capture_output=True, check=True).stdout
    assert listed == os.fsencode(path) + b"\0"


@given(st.text(st.characters(exclude_characters="\0", codec="utf-8")))
def test_a_quoted_argument_is_one_line_that_bash_reads_back(argument):
    line = quoted(argument)
    assert "\n" not in line
    assert terminal.visible(line) == line
    if len(argument) < 200:
        command = ["bash", "-c", f"printf %s {line}"]
        environment = {"LC_ALL": "C.UTF-8"}
        read = subprocess.run(command, capture_output=True, check=True, env=environment).stdout
        assert read == argument.encode()
