"""Whether a query only looks at a study's tables, by the tree that DuckDB's parser made of it.

This is the first of two walls, and the one that speaks plainly. The second is the connection
itself (`encore.query.study_database.StudyDatabase.lock`), which could not open a file if it were
asked.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from encore.errors import InputError

#: Functions in a FROM clause that make rows of their arguments alone.
ROW_FUNCTIONS = frozenset({"generate_series", "json_each", "json_tree", "range", "unnest"})
#: Functions in an expression that tell about the machine, or do more than compute a value.
_TELLTALE_FUNCTIONS = frozenset(
    {
        *("current_setting", "currval", "getenv", "getvariable", "nextval", "setseed", "sleep_ms"),
        *("pg_sleep", "setval", "sql_auto_complete", "which_secret", "write_log"),
    }
)
_TELLTALE_PREFIXES = ("arrow_scan", "duckdb_", "pragma_", "python_", "query", "read_", "sniff_")
#: A query may be a SELECT, several joined by UNION and the like, or WITH in front of these. There
#: are nodes that insert, copy and execute too: WITH takes them.
_QUERY_NODES = frozenset({"CTE_NODE", "RECURSIVE_CTE_NODE", "SELECT_NODE", "SET_OPERATION_NODE"})


def check_single_select(kinds: Sequence[str]) -> None:
    """Refuse what is not exactly one SELECT.

    Args:
        kinds: Of each statement of the text, as DuckDB names them.

    Raises:
        InputError: None, several, or one of another kind.
    """
    if len(kinds) != 1:
        raise InputError(
            f"query: {len(kinds) or 'no'} statements; expected one SELECT (a PIVOT needs its "
            "values spelled out with IN)"
        )
    if kinds[0] != "SELECT":
        raise InputError(
            f"query: a statement of kind {kinds[0]}; only one SELECT is run here, and it changes "
            "nothing"
        )


def names_read(
    tree: Mapping[str, Any], *, tables: Collection[str], macros: Collection[str]
) -> frozenset[str]:
    """The tables and table macros that a query reads.

    Args:
        tree: Of one SELECT (`encore.query.study_database.StudyDatabase.syntax_tree`).
        tables: The tables and views that there are.
        macros: The table macros that there are.

    Raises:
        InputError: It reads or does anything else: what, and what there is.
    """
    nodes = list(_nodes(tree))
    own = {name.casefold() for node in nodes for name in _names_of_with(node)}
    found: set[str] = set()
    for node in nodes:
        kind = node.get("type")
        if isinstance(kind, str) and kind.endswith("_NODE") and kind not in _QUERY_NODES:
            raise InputError(f"query: {kind.removesuffix('_NODE')} within WITH; only SELECT may be")
        if kind == "BASE_TABLE":
            found |= _table(node, tables=tables, own=own)
        elif kind == "TABLE_FUNCTION":
            found |= _table_function(node, macros=macros)
        if "function_name" in node and kind != "TABLE_FUNCTION":
            _check_function(str(node["function_name"]))
    return frozenset(found)


def _nodes(tree: Any) -> Iterator[Mapping[str, Any]]:
    """Every mapping within a tree, without the recursion that a deep query would exhaust."""
    pending = [tree]
    while pending:
        value = pending.pop()
        if isinstance(value, Mapping):
            yield value
            pending.extend(value.values())
        elif isinstance(value, list):
            pending.extend(value)


def _names_of_with(node: Mapping[str, Any]) -> Iterator[str]:
    """What a WITH clause calls its parts."""
    with_clause = node.get("cte_map")
    if isinstance(with_clause, Mapping):
        yield from (str(entry["key"]) for entry in with_clause.get("map", ()))


def _table(node: Mapping[str, Any], *, tables: Collection[str], own: set[str]) -> set[str]:
    path = [str(part) for part in node["qualified_name"]["path"]]
    name = path[-1].casefold()
    if path[:-1] in ([], ["main"]) and name in tables:
        return {name}
    if len(path) == 1 and name in own:
        return set()
    shown = ".".join(path)
    raise InputError(
        f"query: {shown!r} is no table of the study; there are {', '.join(sorted(tables))} "
        "(`encore sql --list` describes them)"
    )


def _table_function(node: Mapping[str, Any], *, macros: Collection[str]) -> set[str]:
    name = str(node["function"].get("function_name", "")).casefold()
    if name in macros:
        return {name}
    if name in ROW_FUNCTIONS:
        return set()
    raise InputError(
        f"query: {name}() reads or does something beyond the study's tables; in FROM there may be "
        f"{', '.join(sorted({*ROW_FUNCTIONS, *macros}))}"
    )


def _check_function(name: str) -> None:
    folded = name.casefold()
    if folded in _TELLTALE_FUNCTIONS or folded.startswith(_TELLTALE_PREFIXES):
        raise InputError(f"query: {name}() looks beyond the study's tables and is not run here")
