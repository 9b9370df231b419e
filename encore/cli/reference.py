"""Write the page with every option of every command, as the parser itself describes them.

``python -m encore.cli.reference`` writes it to ``docs/reference.md``.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from encore.cli.app import build_app

PAGE = Path("docs/reference.md")
_HEAD = """# Reference

Which options has a command, and what do they do? All of them are here, generated from the configs
(`python -m encore.cli.reference`). Flows, recipes (TOML) and Prefect's forms take the same fields,
except for those that say how a result is printed.

"""


def reference_page() -> str:
    """Return the page as Markdown."""
    sys.argv[0] = "encore"  # usage lines begin with it
    page: str = build_app().generate_docs(heading_level=2)
    # The groups of commands below it say more than this list of names.
    page = re.sub(r"(?s)## Table of Contents\n.*?(?=\*\*Make a study\*\*)", "", page)
    # The generator puts the command in front of a usage line that names it already.
    return _HEAD + re.sub(r"(?m)^encore ([a-z -]+) \1 ", r"encore \1 ", page)


if __name__ == "__main__":
    PAGE.write_text(reference_page(), encoding="utf-8")
