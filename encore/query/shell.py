"""`encore sql` as a function: one query over the tables of a study, which changes nothing.

The tables of a study and a view for each query of `sql/` stand in an in-memory database that is
locked before the user's text is even parsed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from encore.data.study import open_study
from encore.errors import InputError
from encore.query.guard import check_single_select, names_read
from encore.query.query_files import QueryFile, query_file, query_files
from encore.query.study_database import Limits, StudyDatabase, quoted
from encore.query.study_tables import TABLE_DOCS, StudyTables, study_tables
from encore.shards import RunStatus

DEFAULT_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryResult:
    """The answer to one query, read as it is iterated over.

    Attributes:
        columns: Their names, as the query gives them; they may repeat.
        batches: The rows.
        num_missing_shards: Shards whose rows the query would have read, had they been done.
    """

    columns: tuple[str, ...]
    batches: Iterator[pa.RecordBatch]
    num_missing_shards: int = 0

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """The rows as Python values."""
        for batch in self.batches:
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


class StudyShell:
    """Queries over one study. Use it as a context manager.

    Args:
        study: The study's directory.
        run: The run of table ``ratings``, by a unique prefix of its key, where there are several.
        judge: The same by its judge.
        limits: Of each query.

    Raises:
        EncoreError: Not a study, a changed pairs file, a damaged `run.json`, no such run.
    """

    def __init__(
        self,
        study: Path,
        *,
        run: str | None = None,
        judge: str | None = None,
        limits: Limits | None = None,
    ) -> None:
        self._found = study_tables(open_study(study), run=run, judge=judge)
        self._files = {file.name: file for file in query_files()}
        self._database = StudyDatabase(
            self._found.tables, limits=limits or Limits(seconds=DEFAULT_SECONDS)
        )

    def __enter__(self) -> Self:
        self._database.__enter__()
        try:
            for file in self._files.values():
                if all(name in self._found.tables for name in file.reads):
                    self._database.execute(definition_of(file))
            self._database.lock()
        except BaseException:
            self._database.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._database.__exit__(kind, error, trace)

    @property
    def database(self) -> StudyDatabase:
        """The locked database behind it."""
        return self._database

    def query(self, sql: str) -> QueryResult:
        """The answer to one SELECT.

        Raises:
            InputError: Not one SELECT, or one that reads anything but the study's tables; a
                mistake in it; table ``ratings`` where a run must be chosen first.
            EncoreError: Out of time or memory.
        """
        check_single_select(self._database.statement_kinds(sql))
        names = names_read(
            self._database.syntax_tree(sql),
            tables={*TABLE_DOCS, *_names(self._files, is_macro=False)},
            macros=_names(self._files, is_macro=True),
        )
        reads = self._tables_behind(names)
        if "ratings" in reads and "ratings" not in self._found.tables:
            self._found.the_run()
        schema, batches = self._database.stream(sql)
        return QueryResult(
            columns=tuple(schema.names),
            batches=batches,
            num_missing_shards=_num_missing(self._found, reads),
        )

    def _tables_behind(self, names: frozenset[str]) -> frozenset[str]:
        own = {name for name in names if name not in self._files}
        return frozenset(own).union(*(self._files[name].reads for name in names - own))


def definition_of(file: QueryFile) -> str:
    """The statement that makes a view or macro of a file of `sql/`."""
    if file.is_macro:
        return file.text
    return f"create view {quoted(file.name)} as {file.text}"


def named_query(name: str) -> str:
    """The text of a query of `sql/`, to be run as it stands.

    Raises:
        InputError: There is none of this name, or it is a macro: how to call it.
    """
    file = query_file(name)
    if file.is_macro:
        raise InputError(
            f"query {name!r}: a macro with parameters; call it in a query: "
            f'encore sql "from {file.call}"'
        )
    return file.text


def _names(files: Mapping[str, QueryFile], *, is_macro: bool) -> frozenset[str]:
    return frozenset(name for name, file in files.items() if file.is_macro == is_macro)


def _num_missing(found: StudyTables, reads: frozenset[str]) -> int:
    statuses: tuple[RunStatus, ...] = ()
    if "all_ratings" in reads:
        statuses = found.statuses
    elif "ratings" in reads and found.chosen is not None:
        statuses = (found.chosen,)
    num_missing = sum(len(one.shards) - one.count("done") for one in statuses)
    if "head_scores" in reads:
        num_missing += sum(len(one.problems) for one in found.scores)
    return num_missing
