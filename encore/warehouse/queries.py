"""Read a query of `sql/` by its name."""

from __future__ import annotations

from functools import cache
from pathlib import Path

# An installed wheel carries the folder inside the package; a checkout has it beside the package.
_PACKAGE = Path(__file__).parent.parent
_FOLDERS = (_PACKAGE / "sql", _PACKAGE.parent / "sql")


@cache
def load_query(name: str) -> str:
    """The text of ``sql/<name>.sql``: one query over a view ``ratings``.

    Raises:
        FileNotFoundError: There is no such query.
    """
    for folder in _FOLDERS:
        path = folder / f"{name}.sql"
        if path.is_file():
            return path.read_text(encoding="utf-8")
    raise FileNotFoundError(f"query {name!r}: no {name}.sql in {' or '.join(map(str, _FOLDERS))}")


def query_names() -> tuple[str, ...]:
    """The names of all files of `sql/`, sorted."""
    return tuple(sorted({path.stem for folder in _FOLDERS for path in folder.glob("*.sql")}))
