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


def test_a_suite_gives_a_row_and_the_longest_tests_are_written_anew(tmp_path, monkeypatch):
    page, suite = tmp_path / "contributors.md", tmp_path / "default.xml"
    page.write_text(
        "# H\n\n### Durations\n\n|---|\n| old |\n\n### Longest tests\n\n|---|---|\n| 9.0 | old |\n"
        "\n### Size\n\n| old |\n"
    )
    tests = "".join(
        f'<testcase classname="tests.a" name="{name}" time="{seconds}"/>'
        for name, seconds in {"b": 0.25, "c": 4}.items()
    )
    suite.write_text(f'<testsuites><testsuite time="8.6">{tests}</testsuite></testsuites>')
    monkeypatch.setattr(history, "PAGE", page)
    monkeypatch.setattr(history.subprocess, "check_output", lambda *_, **__: "2026-11-28 abc\n")
    monkeypatch.setattr(sys, "argv", ["history", "durations", str(suite)])
    history.main()
    assert page.read_text() == (
        "# H\n\n### Durations\n\n|---|\n| old |\n| 2026-11-28 | abc | default | 2 | 9 |\n"
        "\n### Longest tests\n\n|---|---|\n| 4.0 | `tests.a::c` |\n| 0.2 | `tests.a::b` |\n"
        "\n### Size\n\n| old |\n"
    )


def test_the_page_of_a_machine_has_its_facts_and_the_output_as_it_is():
    facts = {"date": "2026-11-28", "processor": "CPU", "cores": "2"}
    text = page(facts, {"tests.perf.a": "x  y\n1  2"})
    assert text.startswith("# Measured: CPU, 2 cores\n\nWritten by `make perf` on 2026-11-28.")
    assert text.endswith("| cores | 2 |\n\n## tests.perf.a\n\n```\nx  y\n1  2\n```\n")
