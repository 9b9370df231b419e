"""Pages that scripts write: a machine's benchmarks, the history of suites and size."""

from __future__ import annotations

import sys

from tests.perf import history
from tests.perf.__main__ import page


def test_code_lines_are_those_without_blanks_comments_and_docstrings():
    text = (
        '"""Module."""\n\nVALUE = (  # three lines of code\n    1,\n)\n"""Documents VALUE.\n"""\n'
    )
    assert history.count_code_lines(text) == 3


def test_a_row_is_added_to_the_end_of_its_table(tmp_path, monkeypatch):
    path = tmp_path / "history.md"
    path.write_text("# H\n\n## Durations\n\n| suite |\n|---|\n| old |\n\n## Size\n\n| old |\n")
    monkeypatch.setattr(history, "PAGE", path)
    monkeypatch.setattr(history.subprocess, "check_output", lambda *_, **__: "2026-11-28 abc\n")
    monkeypatch.setattr(sys, "argv", ["history", "durations", "default", "7", "9"])
    history.main()
    before, _, after = path.read_text().partition("| 2026-11-28 | abc | default | 7 | 9 |\n")
    assert (before[-8:], after) == ("| old |\n", "\n## Size\n\n| old |\n")


def test_the_page_of_a_machine_has_its_facts_and_the_output_as_it_is():
    facts = {"date": "2026-11-28", "processor": "CPU", "cores": "2"}
    text = page(facts, {"tests.perf.a": "x  y\n1  2"})
    assert text.startswith("# Measured: CPU, 2 cores\n\nWritten by `make perf` on 2026-11-28.")
    assert text.endswith("| cores | 2 |\n\n## tests.perf.a\n\n```\nx  y\n1  2\n```\n")
