"""Draw the pictures of the terminal in this folder: what commands print at 80 columns, as SVG.

Run it in a folder with a finished `encore demo --full`: `python draw.py FOLDER [NAME…]`; FOLDER is
where the pictures go, NAME one of `COMMANDS`.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

WIDTH = 80
COMMANDS = {
    "demo": "demo",
    "analyze": "analyze demo-study",
    "show": "show demo-study 1cf7aec0e5c6",
    "compare": "compare demo-study",
}


def picture(arguments: str) -> str:
    """Return what a command prints on a terminal of `WIDTH` columns as an SVG document."""
    finished = subprocess.run(  # noqa: S603 - our own module
        [sys.executable, "-m", "encore.cli", *arguments.split()],
        env={**os.environ, "COLUMNS": str(WIDTH), "FORCE_COLOR": "1", "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=True,
    )
    text = Text.from_ansi(f"$ encore {arguments}\n{finished.stdout.decode()}")
    wide = [line for line in text.plain.splitlines() if len(line) > WIDTH]
    assert not wide, wide
    console = Console(width=WIDTH, record=True, file=io.StringIO(), force_terminal=True)
    console.print(text)
    svg = console.export_svg(title="encore", unique_id=arguments.partition(" ")[0])
    # A picture loads nothing: the reader's own monospaced font has the same widths.
    return re.sub(r"@font-face \{.*?\}\n?", "", svg, flags=re.DOTALL)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    for name in sys.argv[2:] or COMMANDS:
        (folder / f"{name}.svg").write_text(picture(COMMANDS[name]), encoding="utf-8")
