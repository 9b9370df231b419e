"""The files of `sql/`: queries and macros, with the metadata of their first comment.

The first sentence of the comment is the question that the file answers. Further sentences begin
with a keyword:

* ``Grain:`` what one row of the result stands for.
* ``Macro:`` the file creates a table macro; the sentence shows how to call it. A file without it is
  one query.
* ``Reads:`` the views that the file reads. Without it the file reads ``ratings``, of which the five
  columns of the ratings contract are enough.
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
    """File of `sql/` with the metadata of its comment.

    Attributes:
        name: Name of the file without ``.sql``, and of its view or macro.
        question: Question that the file answers.
        grain: What one row of the result stands for.
        reads: Views that it reads.
        call: Example call of a macro, with its parameters. None for a query.
        text: Text of the file.
    """

    name: str
    question: str
    grain: str
    reads: tuple[str, ...]
    call: str | None
    text: str

    @property
    def definition(self) -> str:
        """Return the statement that creates the view or the macro."""
        return self.text if self.call else f'create view "{self.name}" as {self.text}'


def query_files() -> tuple[QueryFile, ...]:
    """Return every file of `sql/`, sorted by name."""
    return tuple(query_file(name) for name in query_paths())


def query_file(name: str) -> QueryFile:
    """Return the file of this name.

    Raises:
        InputError: There is no such file. The message lists the names.
    """
    text = load_query(name)
    comment = takewhile(lambda line: line.startswith("--"), text.splitlines())
    lines = (line.removeprefix("--").strip() for line in comment)
    question, *sentences = _SENTENCE_END.split(" ".join(lines))
    fields = dict(
        sentence.removesuffix(".").split(": ", 1) for sentence in sentences if ": " in sentence
    )
    return QueryFile(
        name=name,
        question=question,
        grain=fields.get("Grain", ""),
        reads=tuple(fields.get("Reads", "ratings").split(", ")),
        call=fields.get("Macro"),
        text=text,
    )


def named_query(name: str) -> str:
    """Return the text of a query of `sql/`, ready to run.

    Raises:
        InputError: There is no such file, or it is a macro. The message shows how to call it.
    """
    file = query_file(name)
    if file.call:
        raise InputError(
            f"query {name!r}: a macro with parameters; call it in a query: "
            f'encore sql "from {file.call}"'
        )
    return file.text
