"""`encore sql`: ask a study anything in SQL, without being able to change it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from encore.cli.output import JsonOption, RunOption, out, plain_table, print_json, warn
from encore.cli.query_output import Format, print_result
from encore.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from encore.query.query_files import QueryFile
    from encore.query.shell import StudyShell

_DEFAULT_SECONDS = 60.0
_DEFAULT_ROWS = 50


def sql(
    statement: Annotated[
        str | None,
        typer.Argument(metavar="SELECT", help="One SELECT (or FROM, VALUES, WITH … SELECT)."),
    ] = None,
    study: Annotated[Path, typer.Option(help="The study directory.")] = Path(),
    file: Annotated[
        Path | None, typer.Option(help="Read the SELECT from this file; - is standard input.")
    ] = None,
    query: Annotated[
        str | None, typer.Option(metavar="NAME", help="Run a query of the library, see --list.")
    ] = None,
    show_list: Annotated[
        bool, typer.Option("--list", help="Describe the tables and the library's queries.")
    ] = False,
    format_name: Annotated[
        Format, typer.Option("--format", help="table for people, csv or json for programs.")
    ] = "table",
    run: RunOption = None,
    judge: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Which judge, when there are several."),
    ] = None,
    rows: Annotated[int, typer.Option(min=1, help="How many rows a table shows.")] = _DEFAULT_ROWS,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="Stop a query that takes longer.")
    ] = _DEFAULT_SECONDS,
    memory_limit: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Memory of the query, e.g. 2GB; more goes to disk."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Query a study with SQL (DuckDB's): pairs, ratings, rules, head scores, benchmarks and more.

    encore sql "select rule_id, avg(rating) from ratings group by all" --study DIR

    encore sql --query entropy_accuracy --study DIR

    encore sql "from weights_at(0.5) order by weight desc" --study DIR --format csv

    Every query of the library is a view too: from entropy_accuracy where source is null. With
    several runs, table ratings is that of --run or --judge; all_ratings has them all.

    Nothing can be changed and nothing else read: one SELECT over these tables, in a database in
    memory whose access to files, network and settings is locked. Only shards whose digest matches
    are in the tables.
    """
    given = [name for name, value in _ways(statement, file, query, show_list) if value]
    if len(given) != 1:
        raise typer.BadParameter(
            f"give one of SELECT, --file, --query, --list ({', '.join(given) or 'none'} given)"
        )
    wanted: Format = "json" if as_json else format_name
    if show_list:
        _print_list(wanted)
    else:
        from encore.query.shell import StudyShell
        from encore.query.study_database import Limits

        text = _text(statement, file, query)
        limits = Limits(seconds=timeout, memory=memory_limit)
        with StudyShell(study, run=run, judge=judge, limits=limits) as shell:
            _answer(shell, text, format_name=wanted, max_rows=rows)


def _ways(
    statement: str | None, file: Path | None, query: str | None, show_list: bool
) -> tuple[tuple[str, Any], ...]:
    return (
        ("SELECT", statement is not None),
        ("--file", file),
        ("--query", query is not None),
        ("--list", show_list),
    )


def _text(statement: str | None, file: Path | None, query: str | None) -> str:
    if query is not None:
        from encore.query.shell import named_query

        return named_query(query)
    if file is None:
        return statement or ""
    try:
        return sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--file {file}: cannot be read as text ({error})") from error


def _answer(shell: StudyShell, text: str, *, format_name: Format, max_rows: int) -> None:
    result = shell.query(text)
    try:
        print_result(result, format_name=format_name, max_rows=max_rows)
    except BrokenPipeError:  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if result.num_missing_shards:
        warn(
            f"{result.num_missing_shards} shards are missing, damaged or failed and not in this "
            "answer; `encore status` lists them"
        )


def _print_list(format_name: Format) -> None:
    from encore.query.query_files import query_files
    from encore.query.study_tables import TABLE_DOCS

    if format_name == "json":
        tables = [
            {
                "name": name,
                "about": doc.about,
                "columns": [{"name": one.name, "type": str(one.type)} for one in doc.schema],
            }
            for name, doc in TABLE_DOCS.items()
        ]
        print_json({"tables": tables, "queries": [_query_dict(one) for one in query_files()]})
        return
    rows = [(name, doc.about, ", ".join(doc.schema.names)) for name, doc in TABLE_DOCS.items()]
    out.print(_left(("table", "what it holds", "columns"), rows, title="Tables"))
    queries = [(one.call or one.name, one.question, one.grain) for one in query_files()]
    title = "Queries: --query NAME, or as a view"
    out.print(_left(("query", "question", "grain"), queries, title=title))


def _left(columns: tuple[str, ...], rows: Sequence[tuple[str, ...]], *, title: str) -> Any:
    table = plain_table(columns, rows, title=title)
    for column in table.columns:
        column.justify = "left"
    return table


def _query_dict(file: QueryFile) -> dict[str, object]:
    return {
        "name": file.name,
        "kind": "macro" if file.is_macro else "query",
        "question": file.question,
        "grain": file.grain,
        "reads": list(file.reads),
        "call": file.call,
    }
