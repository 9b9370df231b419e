"""Write tables of docs/contributors.md: durations of suites, the longest tests, the project's size.

python -m tests.perf.history durations build/tests/*.xml [--commit HEAD]
python -m tests.perf.history size [--commit HEAD]

`durations` reads the files that `.ci/run` leaves. It adds a row for each suite, and writes
the longest tests of all these suites anew.
"""

from __future__ import annotations

import ast
import io
import subprocess
import tarfile
import tokenize
from pathlib import Path
from xml.etree import ElementTree

from tests.perf import harness

PAGE = Path("docs/contributors.md")
NUM_LONGEST = 40
PRODUCT = ("encore", "examples", "flows", "infra", "tasks")
#: Tokens that are no code.
_LAYOUT = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)


def main() -> None:
    """Write the tables that the command line asks for."""
    parser = harness.make_parser(__doc__)
    parser.add_argument("table", choices=("durations", "size"))
    parser.add_argument("files", nargs="*", type=Path, help="of durations: JUnit's XML of suites")
    parser.add_argument("--commit", default="HEAD")
    options = parser.parse_args()
    show = ["git", "show", "-s", "--abbrev=8", "--format=%cs %h", options.commit]
    date_and_commit = subprocess.check_output(show, text=True).split()
    sections = PAGE.read_text(encoding="utf-8").split("\n### ")
    index = {section.partition("\n")[0]: number for number, section in enumerate(sections)}
    if options.table == "size":
        archive = subprocess.check_output(["git", "archive", options.commit])
        sections[index["Size"]] += _row(*date_and_commit, *count_lines(archive))
    else:
        suites = [read_suite(file) for file in options.files]
        for file, (seconds, tests) in zip(options.files, suites, strict=True):
            row = _row(*date_and_commit, file.stem, len(tests), round(seconds))
            sections[index["Durations"]] += row
        longest = sorted((test for _, tests in suites for test in tests), reverse=True)
        text, rule, _ = sections[index["Longest tests"]].partition("|---|---|\n")
        rows = (_row(f"{seconds:.1f}", f"`{test}`") for seconds, test in longest[:NUM_LONGEST])
        sections[index["Longest tests"]] = "".join((text, rule, *rows))
    PAGE.write_text("\n### ".join(sections), encoding="utf-8")


def _row(*cells: object) -> str:
    return "| " + " | ".join(map(str, cells)) + " |\n"


def read_suite(file: Path) -> tuple[float, list[tuple[float, str]]]:
    """Return the seconds of a suite by the clock, and the seconds and name of each of its tests."""
    [suite] = ElementTree.parse(file).getroot()  # noqa: S314 - pytest wrote it
    tests = [
        (float(test.attrib["time"]), f"{test.attrib['classname']}::{test.attrib['name']}")
        for test in suite.iter("testcase")
    ]
    return float(suite.attrib["time"]), tests


def count_lines(archive: bytes) -> tuple[int, int]:
    """Return the lines of code of the product and of the tests in a tar archive of a commit."""
    num_lines = dict.fromkeys((*PRODUCT, "tests"), 0)
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        for member in files:
            folder = member.name.partition("/")[0]
            if folder in num_lines and member.name.endswith(".py"):
                content = files.extractfile(member)
                assert content is not None, "a file, not a folder"
                num_lines[folder] += count_code_lines(content.read().decode())
    return sum(num_lines[folder] for folder in PRODUCT), num_lines["tests"]


def count_code_lines(text: str) -> int:
    """Return the number of lines without blank lines, comments and docstrings."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    spans = [(token.start[0], token.end[0]) for token in tokens if token.type not in _LAYOUT]
    del spans[-1]  # the end of the file
    lines = {line for first, last in spans for line in range(first, last + 1)}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(getattr(node.value, "value", None), str):
            lines -= {*range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    return len(lines)


if __name__ == "__main__":
    main()
