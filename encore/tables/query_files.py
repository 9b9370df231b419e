"""What each file of `sql/` is, as its first comment says: a query or a macro, its grain, its views.

The first comment is made of sentences. The first is the question that the file answers. One begins
with ``Grain:``. One beginning with ``Macro:`` says that the file creates a table macro, to be
called as it shows; any other file is one query. One beginning with ``Reads:`` names the views
that it reads; without it that is ``ratings``, of which the five columns of the ratings contract
are enough.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import takewhile

from encore.core.errors import InputError
from encore.warehouse.connection import load_query, query_paths

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
    def definition(self) -> str:
        """The statement that makes a view or macro of it."""
        return self.text if self.call else f'create view "{self.name}" as {self.text}'


def query_files() -> tuple[QueryFile, ...]:
    """Every file of `sql/`, sorted by name."""
    return tuple(query_file(name) for name in query_paths())


def query_file(name: str) -> QueryFile:
    """The file of a name.

    Raises:
        InputError: There is none; the names that there are.
    """
    text = load_query(name)
    comment = takewhile(lambda line: line.startswith("--"), text.splitlines())
    lines = (line.removeprefix("--").strip() for line in comment)
    question, *rest = _SENTENCE_END.split(" ".join(lines))
    said = dict(one.removesuffix(".").split(": ", 1) for one in rest if ": " in one)
    return QueryFile(
        name=name,
        question=question,
        grain=said.get("Grain", ""),
        reads=tuple(said.get("Reads", "ratings").split(", ")),
        call=said.get("Macro"),
        text=text,
    )


def named_query(name: str) -> str:
    """The text of a query of `sql/`, to be run as it stands.

    Raises:
        InputError: There is none of this name, or it is a macro: how to call it.
    """
    file = query_file(name)
    if file.call:
        raise InputError(
            f"query {name!r}: a macro with parameters; call it in a query: "
            f'encore sql "from {file.call}"'
        )
    return file.text
