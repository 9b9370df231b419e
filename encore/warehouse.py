"""Run the queries of `sql/` over ratings in DuckDB, checked first and within bounded memory."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import duckdb
import pyarrow as pa

from encore.data.records import RESPONSES
from encore.errors import EncoreError, InputError
from encore.queries import load_query
from encore.ratings_input import RatingsInput
from encore.ratings_schema import PROVENANCE_COLUMNS, check_schema, read_file_schema
from encore.schemas import RATINGS, RATINGS_CONTRACT
from encore.settings import load_settings

#: Queries that group by pair look at this many rows at a time, few enough that their groups fit
#: processor caches: grouping 28M rows at once took 14 s and 2 GB on 2 cores, in such parts 3 s and
#: 0.5 GB.
PART_ROWS = 3_000_000
#: Rows that are looked at in their order come so many at a time.
STREAM_ROWS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """Some of the rows; every pair is whole in one part. ``modulus`` 1: all rows of the files."""

    files: tuple[Path, ...]
    modulus: int = 1
    remainder: int = 0


class Warehouse:
    """An in-memory DuckDB connection with a view ``ratings`` over one input.

    The view has the five columns of the ratings contract, ids as text and rating as double. Use it
    as a context manager. Opening checks the input; one thread may use it at a time.

    Raises:
        InputError: The input is not a ratings table: which file, column, value, what was expected.
    """

    def __init__(self, ratings: RatingsInput, *, part_rows: int = PART_ROWS) -> None:
        self._input = ratings
        self._part_rows = part_rows
        self._is_mixed = False
        self._file_rows: dict[Path, int] = {}
        self._num_rows = 0
        self._row_filter = "true"
        self._current: _Part | None = None
        self._whole = _Part(files=ratings.files)

    def __enter__(self) -> Self:
        self._spill = tempfile.TemporaryDirectory(prefix="encore-duckdb-")
        self._connection = _connect(spill_dir=self._spill.name)
        try:
            columns = self._open_input()
            self._row_filter = self._provenance_filter(columns)
            if not self._input.is_validated:
                self._refuse_invalid_rows()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close()

    def query(self, name: str) -> pa.Table:
        """The result of ``sql/<name>.sql`` over all rows."""
        self._use(self._whole)
        return self._fetch(load_query(name))

    def stream(
        self, name: str, *, order_by: str | None = None
    ) -> Generator[pa.RecordBatch, None, None]:
        """The result of ``sql/<name>.sql`` over all rows, batch by batch.

        Read it to its end or close it before the next query.

        Args:
            name: The query.
            order_by: A column of its result to sort by; without one, rows come in their order.
        """
        self._use(self._whole)
        query = load_query(name)
        if order_by is None:
            self._execute("set preserve_insertion_order = true")
        else:
            query = f"from ({query}) order by {order_by}"
            self._execute("set preserve_insertion_order = false")
        batch_rows = min(self._part_rows, STREAM_ROWS)
        with self._named_errors():
            reader = self._connection.sql(query).to_arrow_reader(batch_rows)
            try:
                yield from reader
            finally:
                reader.close()

    def query_parts(self, *names: str) -> Iterator[tuple[pa.Table, ...]]:
        """The results of queries over one part of the rows after another.

        Every (source, pair_id) is whole in one part, so results of queries that group by pair can
        be added up.
        """
        for part in self._parts():
            self._use(part)
            yield tuple(self._fetch(load_query(name)) for name in names)

    # --- opening --------------------------------------------------------------------------------

    def _open_input(self) -> frozenset[str]:
        """Check schemas; returns the provenance columns that are there."""
        if self._input.table is not None:
            check_schema(self._input.table.schema, label=self._input.label)
            self._connection.register("_table", _readable(self._input.table))
            self._num_rows, schemas = self._input.table.num_rows, [self._input.table.schema]
        elif self._input.num_rows:
            self._file_rows = dict(zip(self._input.files, self._input.num_rows, strict=True))
            self._num_rows, schemas = sum(self._input.num_rows), [RATINGS]
        else:
            found = {path: read_file_schema(path) for path in self._input.files}
            self._file_rows = {path: file.num_rows for path, file in found.items()}
            self._num_rows = sum(self._file_rows.values())
            schemas = [file.schema for file in found.values()]
        if self._num_rows == 0:
            raise InputError(f"{self._input.label}: no ratings in it (0 rows)")
        self._is_mixed = len({_columns_and_types(schema) for schema in schemas}) > 1
        return frozenset(
            name for name in PROVENANCE_COLUMNS if any(name in s.names for s in schemas)
        )

    def _provenance_filter(self, columns: frozenset[str]) -> str:
        """A condition that leaves one run and one judge.

        Raises:
            InputError: Several and none chosen, or none that matches.
        """
        if self._input.is_validated:
            return "true"
        conditions = [
            self._one_of("run_key", option="--run", chosen=self._input.run, columns=columns),
        ]
        self._row_filter = conditions[0]
        conditions.append(
            self._one_of("judge", option="--judge", chosen=self._input.judge, columns=columns)
        )
        return " and ".join(conditions)

    def _one_of(
        self, column: str, *, option: str, chosen: str | None, columns: frozenset[str]
    ) -> str:
        if column not in columns:
            if chosen is not None:
                raise InputError(
                    f"{self._input.label}: {option} {chosen!r} was given, but there is no column "
                    f"{column}"
                )
            return "true"
        values: list[str | None] = self._fetch(
            f"select distinct {column}::varchar as value from {self._relation(self._whole)} "  # noqa: S608 - our own text
            f"where {self._row_filter} order by all nulls last"
        )["value"].to_pylist()
        matches = [value for value in values if _matches(value, chosen, column=column)]
        if chosen is not None and chosen in values:
            matches = [chosen]  # a whole key, though it may also begin another one
        if len(matches) != 1:
            raise InputError(
                f"{self._input.label}: {len(matches) or 'no'} values of {column} match; choose one "
                f"with {option}: {', '.join(map(str, values))}"
            )
        if len(values) == 1:
            return "true"
        return f"{column}::varchar is not distinct from {_literal(matches[0])}"

    def _refuse_invalid_rows(self) -> None:
        self._use(self._whole)
        query = load_query("invalid_ratings")
        # Whether there is such a row is told without reading the columns that would show it.
        if self._fetch(f"select 1 as found from ({query}) limit 1").num_rows:  # noqa: S608 - our own text
            (row,) = self._fetch(f"from ({query}) limit 1").to_pylist()
            shown = ", ".join(f"{name} {row[name]!r}" for name in RATINGS_CONTRACT.names)
            raise InputError(
                f"{self._file_of(row)}: {row['problem']} in the row with {shown}; {_advice(row)}"
            )

    def refuse_repeats(self) -> None:
        """Name a rating that is there more than once.

        Raises:
            InputError: There is one: its keys.
        """
        for (repeats,) in self.query_parts("repeated_ratings"):
            for row in repeats.slice(length=1).to_pylist():
                keys = ", ".join(f"{key} {row[key]!r}" for key in row if key != "num_rows")
                raise InputError(
                    f"{self._input.label}: {row['num_rows']} ratings for {keys}; expected one: "
                    "leave out the repeated rows"
                )

    # --- rows -----------------------------------------------------------------------------------

    def _parts(self) -> Sequence[_Part]:
        if self._num_rows <= self._part_rows:
            return [self._whole]
        if self._input.table is not None or self._has_straddling_pair():
            return self._hashed(self._whole.files, self._num_rows)
        return [
            part
            for files in _batches(self._file_rows, limit=self._part_rows)
            for part in self._hashed(files, sum(self._file_rows[path] for path in files))
        ]

    def _hashed(self, files: tuple[Path, ...], num_rows: int) -> list[_Part]:
        modulus = -(-num_rows // self._part_rows)
        return [_Part(files=files, modulus=modulus, remainder=i) for i in range(modulus)]

    def _has_straddling_pair(self) -> bool:
        """Whether any pair has rows in more than one file; the plan of a run puts it in one."""
        if self._input.is_validated:
            return False
        found = self._fetch(
            f"select 1 as found from {self._relation(self._whole)} where {self._row_filter} "  # noqa: S608 - our own text
            "group by source, pair_id having min(file_index) <> max(file_index) limit 1"
        )
        return bool(found.num_rows)

    def _use(self, part: _Part) -> None:
        """Make the view ``ratings`` show one part."""
        if part == self._current:
            return
        condition = self._row_filter
        if part.modulus > 1:
            condition += f" and hash(pair_id::varchar) % {part.modulus} = {part.remainder}"
        columns = ", ".join(
            f"{name}::{_type_of(name)} as {name}" for name in RATINGS_CONTRACT.names
        )
        self._execute(
            f"create or replace view ratings as select {columns} "  # noqa: S608 - our own text
            f"from {self._relation(part)} where {condition}"
        )
        self._current = part

    def _relation(self, part: _Part) -> str:
        if self._input.table is not None:
            return "_table"
        files = ", ".join(_literal(_glob_escaped(path)) for path in part.files)
        # hive_partitioning off: columns come from files, never from the names of folders.
        return (
            f"read_parquet([{files}], hive_partitioning = false, "
            f"union_by_name = {str(self._is_mixed).lower()})"
        )

    def _file_of(self, row: dict[str, Any]) -> str:
        """The file that a row stands in."""
        if self._input.table is not None or len(self._input.files) == 1:
            return str(self._input.files[0]) if self._input.files else self._input.label
        condition = " and ".join(
            f"{name}::{_type_of(name)} is not distinct from ${name}"
            for name in RATINGS_CONTRACT.names
        )
        found = self._fetch(
            f"select filename from {self._relation(self._whole)} where {condition} limit 1",  # noqa: S608 - our own text
            **{name: row[name] for name in RATINGS_CONTRACT.names},
        )
        return str(found["filename"][0])

    # --- talking to DuckDB ----------------------------------------------------------------------

    def _fetch(self, sql: str, **parameters: Any) -> pa.Table:
        with self._named_errors():
            return self._connection.sql(sql, params=parameters).to_arrow_table()

    def _execute(self, sql: str) -> None:
        with self._named_errors():
            self._connection.execute(sql)

    @contextlib.contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            if not _is_out_of_memory(error):
                raise InputError(
                    f"{self._input.label}: cannot be read ({_first_line(error)})"
                ) from error
            raise EncoreError(
                f"{self._input.label}: not enough memory or temporary disk space for the analysis "
                f"({_first_line(error)}); raise ENCORE_DUCKDB_MEMORY_LIMIT or set TMPDIR to a "
                "larger disk"
            ) from error

    def _close(self) -> None:
        self._connection.close()
        self._spill.cleanup()


def _connect(*, spill_dir: str) -> duckdb.DuckDBPyConnection:
    settings = load_settings()
    config: dict[str, str | bool | int | float | list[str]] = {
        "temp_directory": spill_dir,
        "preserve_insertion_order": False,
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        "python_enable_replacements": False,  # a table is what was registered, not a local variable
    }
    if settings.duckdb_threads is not None:
        config["threads"] = settings.duckdb_threads
    if settings.duckdb_memory_limit is not None:
        config["memory_limit"] = settings.duckdb_memory_limit
    return duckdb.connect(config=config)


def _advice(row: Mapping[str, Any]) -> str:
    """What to do about a row that breaks the contract."""
    if row["response"] in RESPONSES:
        return "correct or leave out such rows (null means: no valid rating)"
    return (
        'correct such rows; without preference labels call every response "chosen", each under a '
        "pair_id of its own: entropy needs no labels"
    )


def _is_out_of_memory(error: Exception) -> bool:
    """Whether memory or temporary disk space ran out; a stream says so in words only."""
    return isinstance(error, duckdb.OutOfMemoryException) or "Out of Memory" in str(error)


def _type_of(column: str) -> str:
    return "double" if column == "rating" else "varchar"


def _readable(table: pa.Table) -> pa.Table:
    """The columns that matter, with a rating that DuckDB can cast to double."""
    names = [*RATINGS_CONTRACT.names, *(n for n in PROVENANCE_COLUMNS if n in table.column_names)]
    table = table.select(names)
    place = table.schema.get_field_index("rating")
    rating = table["rating"]
    if pa.types.is_dictionary(rating.type) or pa.types.is_float16(rating.type):
        return table.set_column(place, "rating", rating.cast(pa.float64()))
    return table


def _columns_and_types(schema: pa.Schema) -> tuple[tuple[str, str], ...]:
    return tuple((field.name, str(field.type)) for field in schema)


def _batches(num_rows: Mapping[Path, int], *, limit: int) -> Iterator[tuple[Path, ...]]:
    """Files in their order, as many together as stay within the limit; at least one."""
    batch: list[Path] = []
    total = 0
    for path, rows in num_rows.items():
        if batch and total + rows > limit:
            yield tuple(batch)
            batch, total = [], 0
        batch.append(path)
        total += rows
    yield tuple(batch)


def _matches(value: str | None, chosen: str | None, *, column: str) -> bool:
    if chosen is None or value == chosen:
        return True
    return column == "run_key" and value is not None and value.startswith(chosen)


def _glob_escaped(path: Path) -> str:
    """The path as a pattern that matches this file only."""
    return "".join(f"[{char}]" if char in "*?[" else char for char in str(path))


def _literal(text: str | None) -> str:
    return "null" if text is None else "'" + text.replace("'", "''") + "'"


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]
