"""`encore sql`: query a study with read-only SQL."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from encore.buckets.study_mirror import study_path
from encore.cli.output import compact_table, show_result
from encore.cli.query_output import print_result
from encore.core.command_parser import JsonOption, UsageError, command
from encore.core.config import option
from encore.core.number_text import counted
from encore.core.terminal import warn
from encore.data.study_options import RunChoice


class SqlConfig(RunChoice):
    """One query over the tables of a study."""

    study: str | None = option(None, positional=True)
    """The study directory. May be left out inside of it."""
    statement: str | None = option(None, positional=True, name="select")
    """One SELECT (or FROM, VALUES, WITH … SELECT, PIVOT, EXPLAIN)."""
    query: str | None = option(None, metavar="NAME")
    """Run a query of the library, see --list."""
    show_list: bool = option(False, name="list")
    """Describe the tables and the library's queries."""
    format: Literal["table", "csv", "json"] = option("table")
    """table for people, csv or json for programs."""
    rows: int = option(50, ge=1)
    """Largest number of rows that a table shows."""
    timeout: float = option(60.0, gt=0, metavar="SECONDS")
    """Stop a query that takes longer."""
    memory_limit: str = option("4GB", pattern=r"^\d+(\.\d+)?\s?[KMGT]i?B$", metavar="SIZE")
    """Memory limit of the query, e.g. 2GB. DuckDB moves what it can to disk."""


@command
def sql(config: SqlConfig, *, json: JsonOption = False) -> None:
    """Query a study with DuckDB's SQL: pairs, ratings, rules, head scores, benchmarks and more.

    encore sql STUDY "select rule_id, avg(rating) from ratings group by all"

    encore sql STUDY --query entropy_accuracy

    encore sql STUDY "from weights_at(0.5) order by weight desc" --format csv

    Every query of the library is also a view: from entropy_accuracy where source is null. If there
    are several runs, table ratings has the one with most pairs; all_ratings has all runs. Table
    rule_verdicts has the verdicts of `encore analyze`.

    A query changes nothing and reads nothing else: it is one SELECT over these tables, in a
    database in memory that has no access to files, network and settings. The tables have only
    shards whose digest matches.
    """
    from encore.data.study import is_study, open_study

    study, statement = study_path(config.study or ""), config.statement
    if config.query is statement is None and not is_study(study):
        study, statement = Path(), config.study  # a SELECT alone, inside of a study
    if [statement, config.query, config.show_list or None].count(None) != 2:
        raise UsageError("give one of SELECT, --query, --list")
    if statement and is_study(Path(statement)) and not is_study(study):
        raise UsageError(f'the study comes first: encore sql {statement} "{config.study}"')
    format_name = "json" if json else config.format
    if config.show_list:
        _print_list(as_json=format_name == "json")
        return
    from encore.tables.query_files import named_query
    from encore.tables.sql_query import run_query
    from encore.tables.study_tables import study_tables

    text = statement or named_query(config.query or "")
    tables = study_tables(open_study(study), run=config.run, judge=config.judge)
    with run_query(tables, text, seconds=config.timeout, memory=config.memory_limit) as result:
        print_result(result, format_name=format_name, max_rows=config.rows)
    if result.num_missing_shards:
        warn(
            f"{counted(result.num_missing_shards, 'shard')} missing, damaged or failed and not in "
            "this answer; `encore status` lists them"
        )


def _print_list(*, as_json: bool) -> None:
    from encore.tables.query_files import query_files
    from encore.tables.study_tables import table_docs

    files, docs = query_files(), table_docs()
    tables = [
        {
            "name": name,
            "about": doc.description,
            "columns": [{"name": field.name, "type": str(field.type)} for field in doc.schema],
        }
        for name, doc in docs.items()
    ]
    queries = [
        {
            name: getattr(file, name)
            for name in ("name", "kind", "question", "grain", "reads", "call")
        }
        for file in files
    ]
    rows = [(name, doc.description, ", ".join(doc.schema.names)) for name, doc in docs.items()]
    calls = [(file.call or file.name, file.question, file.grain) for file in files]
    title = "Queries: --query NAME, or as a view"
    texts = (
        compact_table(("table", "what it holds", "columns"), rows, title="Tables"),
        compact_table(("query", "question", "grain"), calls, title=title),
    )
    show_result({"tables": tables, "queries": queries}, texts, as_json=as_json)
