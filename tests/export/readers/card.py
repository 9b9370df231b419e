"""What a stranger does: copy the model card's lines and run them."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

from tests.export.readers.processes import offline_environ

_CODE = re.compile(r"^```python\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
_PRINTS = re.compile(r"this prints `(\{.*?\})`")
_VLLM = re.compile(r"`vllm serve \S+ (--[^`]+)`")


def vllm_flags(export: Path) -> list[str]:
    """What the card tells vLLM beside the model's name."""
    [flags] = _VLLM.findall((export / "README.md").read_text(encoding="utf-8"))
    return str(flags).split()


def code_of_card(export: Path) -> str:
    """The card's lines of Python, as they are."""
    [code] = _CODE.findall((export / "README.md").read_text(encoding="utf-8"))
    return str(code)


def scores_promised(export: Path) -> dict[str, float]:
    """What the card says its lines print; long answers are cut there."""
    [printed] = _PRINTS.findall((export / "README.md").read_text(encoding="utf-8"))
    promised: dict[str, float] = ast.literal_eval(printed.replace(", …", ""))
    return promised


def run_card(export: Path, *, python: Path, folder: Path) -> dict[str, float]:
    """What the card's lines print, run beside the export with an interpreter.

    Raises:
        AssertionError: they end with an error; the end of what they said.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "card.py"
    file.write_text(code_of_card(export), encoding="utf-8")
    done = subprocess.run(
        [str(python), "-I", str(file)],
        check=False,
        capture_output=True,
        text=True,
        cwd=export.parent,
        env=offline_environ(HF_HOME=str(folder / "hf")),
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    printed: dict[str, float] = ast.literal_eval(done.stdout)
    return printed
