"""Counts of names and docstrings that make a reader guess may not rise above the ceilings.

The ceilings are in pyproject.toml, `[tool.encore.words]`. Lower one when its count has fallen.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.test_architecture import ROOT, tracked_files

#: Names that do not say what they hold.
VAGUE_NAMES = {
    *("about", "did", "found", "given", "here", "known", "left", "made", "noted", "one"),
    *("other", "others", "own", "place", "rest", "said", "shown", "taken", "there", "told"),
    *("took", "wanted", "what", "whose", "why", "word", "words"),
}
#: First words of docstrings that say neither what a function does nor what a class is.
RIDDLING_FIRST_WORDS = {
    *("also", "as", "beside", "beyond", "by", "for", "hears", "how", "in", "never", "of", "so"),
    *("those", "what", "where", "whether", "who", "whose"),
}
PRODUCT = ("encore", "examples", "flows", "infra", "tasks")


def count_words(tree: ast.AST) -> Counter[str]:
    """Count assignments, vague names, public docstrings, riddling ones, and argument texts."""
    counts: Counter[str] = Counter()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            counts["names"] += 1
            counts["vague_names"] += node.id in VAGUE_NAMES
        elif isinstance(node, ast.arg) and node.arg in VAGUE_NAMES:
            counts["names"] += 1
            counts["vague_names"] += 1
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            docstring = ast.get_docstring(node) or ""
            if docstring and not node.name.startswith("_"):
                first_word = re.split(r"[^A-Za-z]", docstring, maxsplit=1)[0].lower()
                counts["docstrings"] += 1
                counts["riddling_docstrings"] += first_word in RIDDLING_FIRST_WORDS
            for text in argument_texts(docstring):
                counts["arguments"] += 1
                counts["thin_arguments"] += text.startswith("Of ") or len(text.split()) <= 3
    return counts


def argument_texts(docstring: str) -> Iterator[str]:
    """Yield the first line of each entry under ``Args:`` and ``Attributes:``."""
    yield from re.findall(r"^ {4}\w+: (.+)$", docstring, flags=re.MULTILINE)


def count_files(folders: tuple[str, ...]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for file in tracked_files():
        path = file.relative_to(ROOT)
        if path.suffix == ".py" and path.parts[0] in folders:
            counts += count_words(ast.parse(Path(file).read_text(encoding="utf-8")))
    return counts


def test_vague_names_riddling_docstrings_and_thin_texts_are_counted():
    """The source has three names, one of them vague, and three texts, two of them thin."""
    source = '''
def rate(found, study):
    """Whether a study is rated.

    Args:
        found: Of the study.
        study: The study.
        limit: The largest number of pairs.
    """
    row = column = 1
'''
    assert count_words(ast.parse(source)) == {
        "names": 3,
        "vague_names": 1,
        "docstrings": 1,
        "riddling_docstrings": 1,
        "arguments": 3,
        "thin_arguments": 2,
    }


@pytest.mark.parametrize("side", ["product", "tests"])
def test_vague_names_and_riddling_docstrings_do_not_increase(side):
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    ceilings = settings["tool"]["encore"]["words"][side]
    counts = count_files(PRODUCT if side == "product" else ("tests",))
    shares = {
        "vague_names_per_1000": 1000 * counts["vague_names"] / counts["names"],
        "riddling_docstrings_percent": 100 * counts["riddling_docstrings"] / counts["docstrings"],
        "thin_arguments_percent": 100 * counts["thin_arguments"] / counts["arguments"],
    }
    assert ceilings.keys() == shares.keys()
    exceeded = {name: share for name, share in shares.items() if share > ceilings[name]}
    assert not exceeded, f"above the ceilings {ceilings}: name what the values hold"
