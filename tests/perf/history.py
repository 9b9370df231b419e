"""Add a row to a table of docs/history.md: how long a test suite took, or how large the project is.

python -m tests.perf.history durations default 2658 621 --commit 88d6980c
python -m tests.perf.history size [--commit HEAD]
"""

from __future__ import annotations

import ast
import io
import subprocess
import tarfile
import tokenize
from pathlib import Path

from tests.perf import harness

PAGE = Path("docs/history.md")
PRODUCT = ("encore", "examples", "flows", "infra", "tasks")
#: Tokens that are no code.
_LAYOUT = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)


def main() -> None:
    """Add the row that the command line asks for."""
    parser = harness.make_parser(__doc__)
    parser.add_argument("table", choices=("durations", "size"))
    parser.add_argument("cells", nargs="*", help="of durations: suite, tests, seconds")
    parser.add_argument("--commit", default="HEAD")
    options = parser.parse_args()
    show = ["git", "show", "-s", "--abbrev=8", "--format=%cs %h", options.commit]
    cells = [*subprocess.check_output(show, text=True).split(), *options.cells]
    if options.table == "size":
        archive = subprocess.check_output(["git", "archive", options.commit])
        cells += [str(lines) for lines in count_lines(archive)]
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    start = lines.index(f"## {options.table.capitalize()}") + 1
    next_heading = (n for n in range(start, len(lines)) if lines[n].startswith("## "))
    lines.insert(next(next_heading, len(lines) + 1) - 1, "| " + " | ".join(cells) + " |")
    PAGE.write_text("\n".join(lines) + "\n", encoding="utf-8")


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
