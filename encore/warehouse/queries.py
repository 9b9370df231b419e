"""Load the queries of `sql/`, and find those that a query reads as views."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from encore.core.errors import InputError

#: An installed wheel carries `sql/` inside the package; a checkout has it beside the package.
_PACKAGE = Path(__file__).parent.parent
_FOLDERS = (_PACKAGE / "sql", _PACKAGE.parent / "sql")
_COMMENT = re.compile("--.*")
_MACRO = "create or replace macro "


@cache
def load_query(name: str) -> str:
    """Return the text of ``sql/<name>.sql``.

    Raises:
        InputError: There is no such query; the message lists the queries.
    """
    paths = query_paths()
    if name not in paths:
        raise InputError(f"query {name!r}: unknown; expected one of {', '.join(paths)}")
    return paths[name].read_text(encoding="utf-8")


def query_paths() -> dict[str, Path]:
    """Return all files of `sql/`, by name and sorted."""
    folder = next(folder for folder in _FOLDERS if folder.is_dir())
    return {path.stem: path for path in sorted(folder.glob("*.sql"))}


@cache
def queries_read(name: str) -> tuple[str, ...]:
    """Return the files of `sql/` that a query reads, each after those that it reads itself."""
    identifiers = {*re.findall(r"\w+", _COMMENT.sub("", load_query(name)))}
    queries = [query for query in query_paths() if query in identifiers and query != name]
    return tuple(dict.fromkeys(read for query in queries for read in (*queries_read(query), query)))


def definition(name: str) -> str:
    """Return the statement that creates the view of a query, or the macro of a file with one."""
    text = load_query(name)
    return text if _MACRO in text else f'create view "{name}" as {text}'
