"""Run the queries of `sql/` over ratings in DuckDB, checked first and within bounded memory."""

from __future__ import annotations

import contextlib
import glob
import tempfile
from collections.abc import Collection, Generator, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from encore.core.errors import EncoreError, InputError
from encore.core.settings import duckdb_config
from encore.core.stopping import stop_on_signal
from encore.data.records import RESPONSES
from encore.data.schemas import RATINGS, RATINGS_CONTRACT
from encore.warehouse.ratings import Ratings, check_schema, read_schema

#: Queries that group by pair look at this many rows at a time, few enough that their groups fit
#: processor caches: grouping 28M rows at once took 14 s and 2 GB on 2 cores, in such parts 3 s and
#: 0.5 GB.
PART_ROWS = 3_000_000
#: Rows that are looked at in their order come so many at a time.
STREAM_ROWS = 1_000_000
#: Columns that say where a rating comes from, if they are there, and the options that choose.
_CHOSEN_BY = {"run_key": "--run", "judge": "--judge"}
#: An installed wheel carries `sql/` inside the package; a checkout has it beside the package.
_PACKAGE = Path(__file__).parent.parent
_FOLDERS = (_PACKAGE / "sql", _PACKAGE.parent / "sql")


@cache
def load_query(name: str) -> str:
    """The text of ``sql/<name>.sql``: one query over a view ``ratings``.

    Raises:
        InputError: There is no such query; the names that there are.
    """
    paths = query_paths()
    if name not in paths:
        raise InputError(f"query {name!r}: unknown; expected one of {', '.join(paths)}")
    return paths[name].read_text(encoding="utf-8")


def query_paths() -> dict[str, Path]:
    """All files of `sql/`, sorted by name."""
    folder = next(folder for folder in _FOLDERS if folder.is_dir())
    return {path.stem: path for path in sorted(folder.glob("*.sql"))}


@contextlib.contextmanager
def open_warehouse(ratings: Ratings, *, part_rows: int = PART_ROWS) -> Iterator[Warehouse]:
    """The warehouse of some ratings, whose input is checked.

    Raises:
        InputError: The input is not a ratings table: which file, column, value, what was expected.
    """
    with tempfile.TemporaryDirectory(prefix="encore-duckdb-") as spill_dir:
        settings = {"temp_directory": spill_dir, "preserve_insertion_order": False}
        with (
            duckdb.connect(config=duckdb_config() | settings) as connection,
            stop_on_signal(connection.interrupt),
        ):
            yield Warehouse(connection, ratings, part_rows=part_rows)


class Warehouse:
    """An in-memory DuckDB connection with a view ``ratings`` over one input.

    The view has the five columns of the ratings contract, ids as text and rating as double. Get one
    from `open_warehouse`; one thread may use it at a time.
    """

    def __init__(
        self, connection: duckdb.DuckDBPyConnection, ratings: Ratings, *, part_rows: int
    ) -> None:
        self._connection = connection
        self._input = ratings
        self._part_rows = part_rows
        self._relation = "_table"
        #: What leaves one run and one judge.
        self._row_filter = "true"
        self._shown: str | None = None
        columns = self._open_input()
        if ratings.run_dir is None:  # a run's own shards hold no other
            self._keep_one("run_key", ratings.run, columns)
            self._keep_one("judge", ratings.judge, columns)
        self._refuse_invalid_rows()

    def query(self, name: str) -> pa.Table:
        """The result of ``sql/<name>.sql`` over all rows."""
        self._show()
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
        self._show()
        query = load_query(name)
        if order_by is not None:
            query = f"from ({query}) order by {order_by}"
        with self._named_errors():
            self._connection.execute(f"set preserve_insertion_order = {order_by is None}")
            batch_rows = min(self._part_rows, STREAM_ROWS)
            reader = self._connection.sql(query).to_arrow_reader(batch_rows)
            try:
                yield from reader
            finally:
                reader.close()

    def query_parts(self, name: str) -> Iterator[pa.Table]:
        """The results of a query that groups by pair over one part of the rows after another.

        Every pair is whole in one part, so results can be added up.
        """
        num_parts = -(-self._num_rows // self._part_rows)
        for part in range(num_parts):
            is_part = f"hash(pair_id::varchar) % {num_parts} = {part}"
            self._show(is_part if num_parts > 1 else "true")
            yield self._fetch(load_query(name))

    def rule_ids(self) -> tuple[str, ...]:
        """The rated rules, `in_order`."""
        return self.in_order(self.query("rule_ids")["rule_id"].to_pylist())

    def in_order(self, rule_ids: Collection[str]) -> tuple[str, ...]:
        """Rules in the order of the run's rule set; rules that it does not name follow, sorted."""
        order = self._input.manifest.rule_ids if self._input.manifest else ()
        known = [rule_id for rule_id in order if rule_id in rule_ids]
        return (*known, *sorted(set(rule_ids).difference(known)))

    def refuse_repeats(self) -> None:
        """Name a rating that is there more than once.

        Raises:
            InputError: There is one: its keys.
        """
        for repeats in self.query_parts("repeated_ratings"):
            for row in repeats.slice(length=1).to_pylist():
                keys = ", ".join(f"{key} {row[key]!r}" for key in row if key != "num_rows")
                raise InputError(
                    f"{self._input.label}: {row['num_rows']} ratings for {keys}; expected one: "
                    "leave out the repeated rows"
                )

    # --- opening --------------------------------------------------------------------------------

    def _open_input(self) -> set[str]:
        """Check schemas and name what to read from; returns the columns of all files."""
        if self._input.table is not None:
            table = self._input.table
            schemas = [table.schema]
            check_schema(table.schema, label=self._input.label)
            names = [*RATINGS_CONTRACT.names, *(n for n in _CHOSEN_BY if n in table.column_names)]
            # DuckDB can cast to double neither float16 nor a dictionary.
            rating = table["rating"].cast(pa.float64(), safe=False)
            table = table.select(names).set_column(names.index("rating"), "rating", rating)
            self._connection.register("_table", table)
        else:
            is_own = self._input.run_dir is not None
            schemas = [RATINGS] if is_own else [read_schema(path) for path in self._input.files]
            files = ", ".join(_literal(glob.escape(str(path))) for path in self._input.files)
            # hive_partitioning off: columns come from files, never from the names of folders.
            self._relation = (
                f"read_parquet([{files}], hive_partitioning = false, union_by_name = {not is_own})"
            )
        counted = self._fetch(f"select count(*) as num_rows from {self._relation}")  # noqa: S608 - our own text
        self._num_rows = counted["num_rows"][0].as_py()
        if self._num_rows == 0:
            raise InputError(f"{self._input.label}: no ratings in it (0 rows)")
        return {name for schema in schemas for name in schema.names}

    def _keep_one(self, column: str, chosen: str | None, columns: Collection[str]) -> None:
        """Keep the rows of one run or judge.

        Raises:
            InputError: Several and none chosen, or none that matches.
        """
        values: list[str | None] = []
        if column in columns:
            values = self._fetch(
                f"select distinct {column}::varchar as value from {self._relation} "  # noqa: S608 - our own text
                f"where {self._row_filter} order by all nulls last"
            )["value"].to_pylist()
        elif chosen is None:
            return
        matches = [value for value in values if chosen in (None, value)]
        if not matches and column == "run_key":
            matches = [value for value in values if value and value.startswith(chosen or "")]
        if len(matches) != 1:
            raise InputError(
                f"{self._input.label}: {len(matches) or 'no'} values of {column} match; choose one "
                f"with {_CHOSEN_BY[column]}: {', '.join(map(str, values)) or 'there is none'}"
            )
        if len(values) > 1:
            value = "null" if matches[0] is None else _literal(matches[0])
            self._row_filter += f" and {column}::varchar is not distinct from {value}"

    def _refuse_invalid_rows(self) -> None:
        """Refuse rows that break the contract, also in shards whose digests hold."""
        self._show()
        query = load_query("invalid_ratings")
        # Whether there is such a row is told without reading the columns that would show it.
        if not self._fetch(f"select 1 as found from ({query}) limit 1").num_rows:  # noqa: S608 - our own text
            return
        (row,) = self._fetch(f"from ({query}) limit 1").to_pylist()
        shown = ", ".join(f"{name} {row[name]!r}" for name in RATINGS_CONTRACT.names)
        advice = (
            "correct or leave out such rows (null means: no valid rating)"
            if row["response"] in RESPONSES
            else 'correct such rows; without preference labels call every response "chosen", '
            "each under a pair_id of its own: entropy needs no labels"
        )
        raise InputError(
            f"{self._file_of(row)}: {row['problem']} in the row with {shown}; {advice}"
        )

    def _file_of(self, row: dict[str, Any]) -> str:
        """The file that a row stands in."""
        if not self._input.files:
            return self._input.label
        # Without the rating: files' statistics do not count NaN, so a search for it finds nothing.
        names = [name for name in RATINGS_CONTRACT.names if name != "rating"]
        condition = " and ".join(f"{name}::varchar is not distinct from ${name}" for name in names)
        found = self._fetch(
            f"select filename from {self._relation} where {condition} limit 1",  # noqa: S608 - our own text
            **{name: row[name] for name in names},
        )
        return str(found["filename"][0])

    # --- talking to DuckDB ----------------------------------------------------------------------

    def _show(self, condition: str = "true") -> None:
        """Make the view ``ratings`` show the rows that a condition leaves."""
        if condition == self._shown:
            return
        names = [name for name in RATINGS_CONTRACT.names if name != "rating"]
        columns = ", ".join(f"{name}::varchar as {name}" for name in names)
        with self._named_errors():
            self._connection.execute(
                f"create or replace view ratings as select {columns}, rating::double as rating "  # noqa: S608 - our own text
                f"from {self._relation} where {self._row_filter} and {condition}"
            )
        self._shown = condition

    def _fetch(self, sql: str, **parameters: Any) -> pa.Table:
        with self._named_errors():
            return self._connection.sql(sql, params=parameters).to_arrow_table()

    @contextlib.contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            first_line = str(error).strip().splitlines()[0]
            # A stream tells only in words that memory or temporary disk space ran out.
            if isinstance(error, duckdb.OutOfMemoryException) or "Out of Memory" in str(error):
                raise EncoreError(
                    f"{self._input.label}: not enough memory or temporary disk space for the "
                    f"analysis ({first_line}); raise ENCORE_DUCKDB_MEMORY_LIMIT or set TMPDIR to a "
                    "larger disk"
                ) from error
            raise InputError(f"{self._input.label}: cannot be read ({first_line})") from error


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
