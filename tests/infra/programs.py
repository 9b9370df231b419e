"""Write shell scripts that stand for programs on PATH."""

from __future__ import annotations

import shutil
from pathlib import Path

BASH = shutil.which("bash") or "bash"


def write_program(path: Path, script: str) -> Path:
    """Write a shell script as an executable program and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!{BASH}\n{script}\n")
    path.chmod(0o755)
    return path
