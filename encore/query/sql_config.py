"""The options of `encore sql`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from encore.config import StageConfig, option

Format = Literal["table", "csv", "json"]


class SqlConfig(StageConfig):
    """One query over the tables of a study."""

    statement: str | None = option(
        None,
        positional=True,
        name="select",
        help="One SELECT (or FROM, VALUES, WITH … SELECT, PIVOT, EXPLAIN).",
    )
    study: Path = option(Path(), help="The study directory.")
    file: Path | None = option(None, help="Read the SELECT from this file; - is standard input.")
    query: str | None = option(None, metavar="NAME", help="Run a query of the library, see --list.")
    show_list: bool = option(
        False, name="list", help="Describe the tables and the library's queries."
    )
    format: Format = option("table", help="table for people, csv or json for programs.")
    run: str | None = option(
        None,
        metavar="RUN_KEY",
        help="Which run, when there are several (a unique prefix of its key is enough).",
    )
    judge: str | None = option(None, metavar="NAME", help="Which judge, when there are several.")
    rows: int = option(50, ge=1, help="How many rows a table shows.")
    timeout: float = option(60.0, gt=0, metavar="SECONDS", help="Stop a query that takes longer.")
    memory_limit: str = option(
        "4GB",
        pattern=r"^\d+(\.\d+)?\s?[KMGT]i?B$",
        metavar="SIZE",
        help="Memory of the query, e.g. 2GB; what DuckDB can put aside goes to disk.",
    )
