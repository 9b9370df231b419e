"""`encore sql`: ask a study anything in SQL, without being able to change it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from encore.cli.output import plain_table
from encore.cli.query_output import print_result
from encore.errors import InputError
from encore.options import STDIN, JsonOption, UsageError, command
from encore.query.sql_config import Format, SqlConfig
from encore.terminal import out, print_json, warn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from encore.query.query_files import QueryFile


@command
def sql(config: SqlConfig, *, json: JsonOption = False) -> None:
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
    given = {
        "SELECT": config.statement is not None,
        "--file": config.file is not None,
        "--query": config.query is not None,
        "--list": config.show_list,
    }
    if sum(given.values()) != 1:
        names = ", ".join(name for name, is_given in given.items() if is_given) or "none"
        raise UsageError(f"give one of SELECT, --file, --query, --list ({names} given)")
    format_name: Format = "json" if json else config.format
    if config.show_list:
        _print_list(format_name)
    else:
        _answer(config, format_name)


def _answer(config: SqlConfig, format_name: Format) -> None:
    from encore.query.sql_query import named_query, run_query

    text = named_query(config.query) if config.query else _text(config.statement, config.file)
    with run_query(
        config.study,
        text,
        run=config.run,
        judge=config.judge,
        seconds=config.timeout,
        memory=config.memory_limit,
    ) as result:
        try:
            print_result(result, format_name=format_name, max_rows=config.rows)
        except BrokenPipeError:  # `| head` has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if result.num_missing_shards:
        warn(
            f"{result.num_missing_shards} shards are missing, damaged or failed and not in this "
            "answer; `encore status` lists them"
        )


def _text(statement: str | None, file: Path | None) -> str:
    if file is None:
        return statement or ""
    try:
        return sys.stdin.read() if str(file) == STDIN else file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--file {file}: cannot be read as text ({error})") from error


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
