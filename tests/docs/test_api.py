"""The entries of the page on Python: every public name has one, every argument a description."""

from __future__ import annotations

import inspect
import re
import runpy
from pathlib import Path

import encore

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "python.md").read_text(encoding="utf-8")
MAKER = runpy.run_path(str(DOCS / "api_entries.py"))
ENTRIES = {name: path or name for name, path in MAKER["ENTRY"].findall(PAGE)}


def test_every_public_name_has_an_entry():
    names = [name.removeprefix("encore.") for name in ENTRIES if name.count(".") == 1]
    assert sorted(names) == sorted(encore.__all__)


def test_every_argument_of_a_public_function_is_described():
    functions = [MAKER["object_at"](path) for path in ENTRIES.values()]
    for function in filter(inspect.isfunction, functions):
        arguments = set(inspect.signature(function).parameters)
        text = MAKER["docstring_as_markdown"](function)
        assert arguments == set(re.findall(r"^- `\**([a-z]\w*)`: ", text, re.MULTILINE)), function


def scale(values: list[float], *, by: float = 2.0, **options: object) -> list[float]:
    """Return values times a factor.

    >>> scale([1.0])
    [2.0]

    Args:
        values: Numbers that are scaled, each
            by the same factor.
        by: Factor of every number in ``values``.
        **options: Further options, which are ignored.
    """
    return [value * by for value in values]


def test_an_entry_has_signature_example_and_arguments(monkeypatch):
    monkeypatch.setattr(encore, "scale", scale, raising=False)
    assert MAKER["entry"]("encore.scale", "encore.scale").splitlines() == [
        "### encore.scale",
        "",
        "```python",
        "encore.scale(values: list[float], *, by: float = 2.0, **options: object) -> list[float]",
        "```",
        "",
        "Return values times a factor.",
        "",
        "```python",
        ">>> scale([1.0])",
        "[2.0]",
        "```",
        "",
        "**Arguments**",
        "",
        "- `values`: Numbers that are scaled, each by the same factor.",
        "- `by`: Factor of every number in ``values``.",
        "- `**options`: Further options, which are ignored.",
    ]
