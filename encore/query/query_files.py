"""What each file of `sql/` is, as its first comment says: a query or a macro, its grain, its views.

The first comment is made of sentences. The first is the question that the file answers. One begins
with ``Grain:``. One beginning with ``Macro:`` says that the file creates a table macro, to be
called as it shows; any other file is one query. One beginning with ``Reads:`` names the views
that it reads; without it that is ``ratings``, of which the five columns of the ratings contract
are enough.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from encore.errors import InputError
from encore.warehouse.connection import load_query, query_names

_COMMENT = re.compile(r"(?:--.*\n)+")
_SENTENCE_END = re.compile(r"(?<=[.?]) ")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryFile:
    """A file of `sql/`.

    Attributes:
        name: The file's name without ``.sql``; also that of the view or macro made of it.
        question: What it answers.
        grain: What a row of the result stands for.
        reads: The views it needs.
        call: How a macro is called, with its parameters; None for a query.
        text: The file.
    """

    name: str
    question: str
    grain: str
    reads: tuple[str, ...]
    call: str | None
    text: str

    @property
    def is_macro(self) -> bool:
        """Whether the file creates a table macro rather than being a query."""
        return self.call is not None


def query_files() -> tuple[QueryFile, ...]:
    """Every file of `sql/`, sorted by name."""
    return tuple(query_file(name) for name in query_names())


def query_file(name: str) -> QueryFile:
    """The file of a name.

    Raises:
        InputError: There is none; the names that there are.
    """
    if name not in query_names():
        raise InputError(
            f"query {name!r}: there is none of this name; expected one of "
            f"{', '.join(query_names())}"
        )
    text = load_query(name)
    sentences = _first_comment(text)
    reads = _sentence("Reads", sentences)
    return QueryFile(
        name=name,
        question=sentences[0],
        grain=_sentence("Grain", sentences) or "",
        reads=tuple(reads.split(", ")) if reads else ("ratings",),
        call=_sentence("Macro", sentences),
        text=text,
    )


def _first_comment(text: str) -> list[str]:
    comment = _COMMENT.match(text)
    lines = comment[0].splitlines() if comment else [""]
    joined = " ".join(line.removeprefix("--").strip() for line in lines)
    return _SENTENCE_END.split(joined)


def _sentence(word: str, sentences: Sequence[str]) -> str | None:
    """What stands after ``Word:``, without the full stop."""
    found = (one for one in sentences if one.startswith(f"{word}: "))
    sentence = next(found, None)
    return None if sentence is None else sentence.removeprefix(f"{word}: ").removesuffix(".")
