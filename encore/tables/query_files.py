"""The files of `sql/`: queries and macros, with the metadata of their first comment.

The first sentence of the comment is the question that the file answers. Further sentences begin
with a keyword:

* ``Grain:`` what one row of the result stands for.
* ``Macro:`` the file creates a table macro; the sentence shows how to call it.
* ``Function:`` the file creates a scalar macro, likewise. Any other file is one query.
* ``Reads:`` the tables that the file reads, itself or through other queries; ``nothing`` for none.
  Without it the file reads ``ratings``, of which the five columns of the ratings contract are
  enough.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import takewhile
from typing import Literal

from encore.core.errors import InputError
from encore.warehouse.queries import definition, load_query, queries_read, query_paths

_SENTENCE_END = re.compile(r"(?<=[.?]) ")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryFile:
    """File of `sql/` with the metadata of its comment.

    Attributes:
        name: Name of the file without ``.sql``, and of its view or macro.
        kind: ``query``, or what the file creates: a table ``macro`` or a scalar ``function``.
        question: Question that the file answers.
        grain: What one row of the result stands for.
        reads: Tables that it reads.
        call: Example call of a macro or a function, with its parameters. None for a query.
        text: Text of the file.
    """

    name: str
    kind: Literal["query", "macro", "function"]
    question: str
    grain: str
    reads: tuple[str, ...]
    call: str | None
    text: str

    @property
    def definition(self) -> str:
        """Return the statement that creates the view or the macro."""
        return definition(self.name)


def query_files() -> tuple[QueryFile, ...]:
    """Return every file of `sql/`, sorted by name."""
    return tuple(map(query_file, query_paths()))


def files_to_create() -> tuple[QueryFile, ...]:
    """Return every file of `sql/` in an order in which each follows those that it reads."""
    return tuple(sorted(query_files(), key=lambda file: len(queries_read(file.name))))


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
    reads = fields.get("Reads", "ratings")
    return QueryFile(
        name=name,
        kind="macro" if "Macro" in fields else "function" if "Function" in fields else "query",
        question=question,
        grain=fields.get("Grain", ""),
        reads=() if reads == "nothing" else tuple(reads.split(", ")),
        call=fields.get("Macro", fields.get("Function")),
        text=text,
    )


def named_query(name: str) -> str:
    """Return the text of a query of `sql/`, ready to run.

    Raises:
        InputError: There is no such file, or it is a macro. The message shows how to call it.
    """
    file = query_file(name)
    if file.call:
        verb = "from" if file.kind == "macro" else "select"
        raise InputError(
            f"query {name!r}: a {file.kind} with parameters; call it in a query: "
            f'encore sql "{verb} {file.call}"'
        )
    return file.text
