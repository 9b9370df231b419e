"""Run the queries of `sql/` over checked ratings in DuckDB, within bounded memory."""

from __future__ import annotations

import contextlib
import glob
from collections.abc import Collection, Generator, Iterator, Mapping
from functools import cached_property
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from encore.core.duckdb_progress import hide_progress_bar
from encore.core.errors import EncoreError, InputError
from encore.core.leftovers import scratch_folder
from encore.core.settings import duckdb_config
from encore.core.stop_signals import stop_on_signal
from encore.data.pairs import pairs_paths
from encore.data.schemas import RATINGS, RATINGS_CONTRACT
from encore.warehouse.queries import definition, load_query, queries_read
from encore.warehouse.rating_columns import check_schema, read_schema
from encore.warehouse.rating_layouts import (
    DEFAULT_SOURCE,
    NOT_APPLICABLE_COLUMNS,
    PROMPT_COLUMNS,
    REASON_COLUMN,
    STRUCT_COLUMNS,
    long_relation,
    names_rules_not_applying,
    rule_columns,
)
from encore.warehouse.rating_problems import invalid_row_error
from encore.warehouse.ratings import RATING_COLUMNS, Ratings

#: Rows per part for queries that group by pair, few enough for the groups to fit the processor's
#: caches: grouping 28M rows at once took 14 s and 2 GB on 2 cores, in such parts 3 s and 0.5 GB.
PART_ROWS = 3_000_000
#: A source and a rule; the source is None for all sources together, as in the queries.
RuleKey = tuple[str | None, str]
#: Rows per batch of a streamed result.
STREAM_ROWS = 1_000_000
#: Optional columns that name the run and the judge of a rating, with the options that select one.
_SELECTION_OPTIONS = {"run_key": "--run", "judge": "--judge-name"}


@contextlib.contextmanager
def open_warehouse(ratings: Ratings, *, part_rows: int = PART_ROWS) -> Iterator[Warehouse]:
    """Open a warehouse over ratings and check them.

    Args:
        ratings: Opened ratings, see `encore.warehouse.ratings.open_ratings`.
        part_rows: Rows per part of `Warehouse.query_parts`.

    Raises:
        InputError: The ratings break the contract; the message names file, column and value.
    """
    with scratch_folder("encore-duckdb-") as spill_folder:
        settings = {"temp_directory": str(spill_folder), "preserve_insertion_order": False}
        with (
            duckdb.connect(config=duckdb_config() | settings) as connection,
            stop_on_signal(connection.interrupt),
        ):
            hide_progress_bar(connection)
            yield Warehouse(connection, ratings, part_rows=part_rows)


def entropies_by_rule(ratings: pa.Table) -> dict[str, float | None]:
    """Return the entropy in nats of each rule's ratings, for a table that need not have pairs.

    Args:
        ratings: Columns ``source``, ``rule_id`` and ``rating``; all sources are pooled.
    """
    with duckdb.connect(config=duckdb_config()) as connection:
        hide_progress_bar(connection)
        connection.register("ratings", ratings)
        for name in (*queries_read("rule_statistics"), "rule_statistics"):
            connection.execute(definition(name))
        query = "select rule_id, entropy_nats from rule_statistics where source is null"
        return dict(connection.execute(query).fetchall())


class Warehouse:
    """DuckDB database in memory with a view ``ratings``. Get one from `open_warehouse`.

    The view has the five columns of the ratings contract, ids as text and rating as double, and the
    reasons of nulls if some may say that a rule does not apply. Only one thread may use a warehouse
    at a time.
    """

    def __init__(
        self, connection: duckdb.DuckDBPyConnection, ratings: Ratings, *, part_rows: int
    ) -> None:
        self._connection = connection
        self._ratings = ratings
        self._part_rows = part_rows
        self._relation = "_table"
        self._source_relation = "_table"
        self._has_source = True
        self._has_reasons = False
        self._prompt_column: str | None = None
        #: SQL condition that keeps the rows of one run and one judge.
        self._row_filter = "true"
        self._view_condition: str | None = None
        #: Views, macros and tables of the queries of `sql/` that exist.
        self._created: set[str] = set()
        columns = self._open_input()
        if ratings.run_dir is None:  # a run's shards are of that run, and their values were checked
            self._select_rows("run_key", ratings.run, columns)
            self._select_rows("judge", ratings.judge, columns)
            self._refuse_invalid_rows()
            if self._rule_columns and not ratings.rule_columns:
                self._refuse_columns_without_preference()

    @property
    def ratings(self) -> Ratings:
        """Return the ratings that are read."""
        return self._ratings

    def query(self, name: str) -> pa.Table:
        """Return the result of ``sql/<name>.sql`` over all rows."""
        self._set_view()
        return self._fetch(self._prepare(name))

    def rows_by_rule(self, name: str) -> dict[RuleKey, Mapping[str, Any]]:
        """Return the rows of ``sql/<name>.sql`` by source and rule; source None is all together."""
        return {(row["source"], row["rule_id"]): row for row in self.query(name).to_pylist()}

    def names(self, column: str) -> pa.Array:
        """Return the sources or rules in the order in which ``coded_ratings.sql`` numbers them.

        Args:
            column: ``source`` or ``rule_id``.
        """
        self._set_view()
        self._prepare("coded_ratings")
        rows = self._fetch(
            f"select distinct {column} from rating_levels where {column} is not null order by all"  # noqa: S608 - our own text
        )
        return rows[column].combine_chunks()

    def keep(self, name: str) -> None:
        """Run ``sql/<name>.sql`` now; queries that read it then read these rows, not its view."""
        self._set_view()
        query = self._prepare(name)
        with self._named_errors():
            self._connection.execute(f'create or replace temp table "{name}" as {query}')
        self._created.add(name)

    def keep_rows(self, name: str, rows: pa.Table) -> None:
        """Let queries that read ``sql/<name>.sql`` read these rows, not its view."""
        self._connection.register(name, rows)
        self._created.add(name)

    def outcome_counts(self, pair_ratings: pa.RecordBatch) -> pa.Table:
        """Return the result of ``sql/outcome_counts.sql`` over ratings that stand side by side.

        It may be called while a `stream` is read.
        """
        with self._named_errors(), self._connection.cursor() as cursor:
            cursor.register("pair_ratings", pair_ratings)
            return cursor.sql(load_query("outcome_counts")).to_arrow_table()

    def stream(
        self, name: str, *, order_by: str | None = None
    ) -> Generator[pa.RecordBatch, None, None]:
        """Yield the result of ``sql/<name>.sql`` over all rows in batches.

        Read it to its end or close it before the next query.

        Args:
            name: Name of the query.
            order_by: Column of the result to sort by; None keeps the order of the ratings.
        """
        self._set_view()
        query = self._prepare(name)
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

    def prompt_keys(self, pairs: pa.Table) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
        """Return a hash of the prompt of each pair, and True where the prompt is known.

        A study has its pairs' prompts. A table may have a column ``prompt_id`` or ``prompt``. A
        pair whose prompt is not known has the hash of the pair.

        Args:
            pairs: Columns ``source`` and ``pair_id``.

        Raises:
            InputError: A pair has more than one prompt.
        """
        key_P = self.pair_keys(pairs)
        pair_key_N, prompt_key_N = self.known_prompts
        if not len(pair_key_N):
            return key_P, np.zeros(len(key_P), dtype=bool)
        index_P = np.minimum(np.searchsorted(pair_key_N, key_P), len(pair_key_N) - 1)
        is_known_P = np.asarray(pair_key_N[index_P] == key_P)
        return np.where(is_known_P, prompt_key_N[index_P], key_P), is_known_P

    @cached_property
    def known_prompts(self) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """Return the hashes of all pairs with a known prompt, ascending, and of their prompts."""
        study, column = self._ratings.study, self._prompt_column
        relation = self._source_relation if column else ""
        if study is not None:
            files = ", ".join(_literal(glob.escape(str(path))) for path in pairs_paths(study))
            relation, column = f"read_parquet([{files}])" if files else "", "prompt"
        if not relation:
            return np.zeros(0, dtype=np.uint64), np.zeros(0, dtype=np.uint64)
        source = "source" if study is not None or self._has_source else f"'{DEFAULT_SOURCE}'"
        # Like a pair_id, a prompt_id is that of its source.
        prompt = f"{source}::varchar, prompt_id" if column == "prompt_id" else column
        rows = self._fetch(
            f"select hash({source}::varchar, pair_id::varchar) as pair_key, "  # noqa: S608 - our own text
            f"min(hash({prompt})) as prompt_key, max(hash({prompt})) as last_key, "
            "first(pair_id::varchar) as pair_id "
            f"from {relation} where {column} is not null group by 1 order by 1"
        )
        pair_key_N, prompt_key_N, last_key_N = (
            np.asarray(np.from_dlpack(rows[name].combine_chunks()))
            for name in ("pair_key", "prompt_key", "last_key")
        )
        if (is_other_N := prompt_key_N != last_key_N).any():
            pair_id = rows["pair_id"][int(is_other_N.argmax())].as_py()
            raise InputError(
                f"{self._ratings.label}: pair {pair_id!r} has more than one {column}; expected one "
                "for all rows of a pair"
            )
        return pair_key_N, prompt_key_N

    def pair_keys(self, pairs: pa.Table) -> NDArray[np.uint64]:
        """Return the hash of each row's source and pair_id, as ``coded_ratings.sql`` has it."""
        self._connection.register("_pairs", pairs)
        self._connection.execute("set preserve_insertion_order = true")
        keys = self._fetch("select hash(source::varchar, pair_id::varchar) as pair_key from _pairs")
        key_P: Any = np.from_dlpack(keys["pair_key"].combine_chunks())  # `to_numpy` needs pandas
        return np.asarray(key_P, dtype=np.uint64)

    def query_parts(self, name: str, *, order_by: str = "all") -> Iterator[pa.Table]:
        """Yield the results of ``sql/<name>.sql`` over one part of the rows after another.

        All rows of a pair are in the same part, so the results of a query that groups by pair can
        be added up.

        Args:
            name: Name of the query.
            order_by: Columns of the result to sort by.
        """
        num_parts = -(-self._num_rows // self._part_rows)
        for part in range(num_parts):
            condition = f"hash(pair_id::varchar) % {num_parts} = {part}"
            self._set_view(condition if num_parts > 1 else "true")
            yield self._fetch(f"from ({self._prepare(name)}) order by {order_by}")

    def rule_ids(self) -> tuple[str, ...]:
        """Return the ids of the rated rules, `in_order`."""
        return self.in_order(self.query("rule_ids")["rule_id"].to_pylist())

    def in_order(self, rule_ids: Collection[str]) -> tuple[str, ...]:
        """Return rules in the order of the rule set or the columns, then the others, sorted."""
        manifest = self._ratings.manifest
        order = manifest.rule_ids if manifest else self._rule_columns
        ordered = [rule_id for rule_id in order if rule_id in rule_ids]
        return (*ordered, *sorted(set(rule_ids).difference(ordered)))

    def refuse_repeats(self) -> None:
        """Refuse ratings that occur more than once.

        Raises:
            InputError: A rating is repeated; the message has its keys.
        """
        for repeats in self.query_parts("repeated_ratings"):
            for row in repeats.slice(length=1).to_pylist():
                keys = ", ".join(f"{key} {row[key]!r}" for key in row if key != "num_rows")
                raise InputError(
                    f"{self._ratings.label}: {row['num_rows']} ratings for {keys}; expected one: "
                    "leave out the repeated rows"
                )

    # --- opening --------------------------------------------------------------------------------

    def _open_input(self) -> set[str]:
        """Check schemas, set the relation to read from, and return the columns of all files."""
        if self._ratings.table is not None:
            table = self._ratings.table
            schemas = [table.schema]
            named = self._ratings.rule_columns
            check_schema(table.schema, label=self._ratings.label, named=named)
            rules = rule_columns(table.schema, named=named)
            kept = {
                *(*RATINGS_CONTRACT.names, REASON_COLUMN, *PROMPT_COLUMNS),
                *(
                    *_SELECTION_OPTIONS,
                    *STRUCT_COLUMNS,
                    *NOT_APPLICABLE_COLUMNS,
                    *(rules or RATING_COLUMNS.values()),
                ),
            }
            table = table.select([name for name in table.column_names if name in kept])
            # DuckDB can cast to double neither float16 nor a dictionary.
            for name in rules or RATING_COLUMNS.values():
                if (index := table.schema.get_field_index(name)) >= 0:  # else a field of a struct
                    numbers = table[name].cast(pa.float64(), safe=False)
                    table = table.set_column(index, name, numbers)
            self._connection.register("_table", table)
        else:
            is_own = self._ratings.run_dir is not None
            named = self._ratings.rule_columns
            schemas = (
                [RATINGS]
                if is_own
                else [read_schema(path, named=named) for path in self._ratings.files]
            )
            files = ", ".join(_literal(glob.escape(str(path))) for path in self._ratings.files)
            # hive_partitioning off: columns come from files, never from the names of folders.
            self._relation = (
                f"read_parquet([{files}], hive_partitioning = false, union_by_name = {not is_own})"
            )
        columns = {name for schema in schemas for name in schema.names}
        self._prompt_column = next((name for name in PROMPT_COLUMNS if name in columns), None)
        self._has_source, self._source_relation = "source" in columns, self._relation
        self._relation, self._rule_columns = long_relation(
            schemas, self._relation, named=self._ratings.rule_columns
        )
        has_reasons = REASON_COLUMN in columns and not self._rule_columns
        self._has_reasons = self._ratings.may_have_rules_not_applying and (
            has_reasons or names_rules_not_applying(schemas)
        )
        if self._ratings.run_dir is None and self._num_rows == 0:
            raise InputError(f"{self._ratings.label}: no ratings in it (0 rows)")
        column = RATING_COLUMNS["expected"]
        is_read = self._ratings.kind == "expected" and self._ratings.run_dir is None
        if is_read and column not in columns:
            raise InputError(
                f"{self._ratings.label}: no column {column}, which --rating expected reads; leave "
                "that out, or give ratings by `encore rate --decode expected`"
            )
        return columns

    @cached_property
    def has_rules_not_applying(self) -> bool:
        """Return True if a rule does not apply to a response, as its null rating says."""
        if not self._has_reasons:
            return False
        self._set_view()
        query = f"from ({self._prepare('applicable_ratings')}) where not applies limit 1"
        return bool(self._fetch(query).num_rows)

    @cached_property
    def _num_rows(self) -> int:
        counted = self._fetch(f"select count(*) as num_rows from {self._relation}")  # noqa: S608 - our own text
        return int(counted["num_rows"][0].as_py())

    def _select_rows(self, column: str, chosen: str | None, columns: Collection[str]) -> None:
        """Keep the rows of one run or judge.

        Args:
            column: Column that names the run or the judge.
            chosen: The value to keep, or a prefix of the run key; None if nothing was chosen.
            columns: Columns of the ratings.

        Raises:
            InputError: No value or several values match.
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
            listing = ", ".join(map(str, values)) or "there is none"
            raise InputError(
                f"{self._ratings.label}: {len(matches) or 'no'} values of {column} match; choose "
                f"one with {_SELECTION_OPTIONS[column]}: {listing}"
            )
        if len(values) > 1:
            value = "null" if matches[0] is None else _literal(matches[0])
            self._row_filter += f" and {column}::varchar is not distinct from {value}"

    def _refuse_invalid_rows(self) -> None:
        """Refuse rows that break the contract."""
        self._set_view()
        query = load_query("invalid_ratings")
        # This query finds out if there is such a row without reading the columns for the message.
        if not self._fetch(f"select 1 as is_invalid from ({query}) limit 1").num_rows:  # noqa: S608 - our own text
            return
        (row,) = self._fetch(f"from ({query}) limit 1").to_pylist()
        raise invalid_row_error(
            row,
            fetch=self._fetch,
            label=self._file_of(row),
            scale=self._ratings.scale,
            is_wide=bool(self._rule_columns),
        )

    def _refuse_columns_without_preference(self) -> None:
        """Refuse a column of a wide table that has one value for both responses of every pair.

        Raises:
            InputError: There is such a column, which does not rate responses.
        """
        self._set_view()
        rows = self._fetch(load_query("rules_constant_in_pairs")).to_pylist()
        if names := [row["rule_id"] for row in rows]:
            rules = ",".join(name for name in self._rule_columns if name not in names)
            raise InputError(
                f"{self._ratings.label}: column {', '.join(names)} has the same value for both "
                "responses of every pair, so it rates no response; drop it, or name the columns "
                f"that are rules with --rule-columns {rules or 'NAME,NAME'}"
            )

    def _file_of(self, row: dict[str, Any]) -> str:
        """Return the path of the file that has a row."""
        if not self._ratings.files or self._rule_columns:
            return self._ratings.label
        # Not by the rating: file statistics leave NaN out, so a search for NaN finds nothing.
        names = [name for name in RATINGS_CONTRACT.names if name != "rating"]
        condition = " and ".join(f"{name}::varchar is not distinct from ${name}" for name in names)
        files = self._fetch(
            f"select filename from {self._relation} where {condition} limit 1",  # noqa: S608 - our own text
            **{name: row[name] for name in names},
        )
        return str(files["filename"][0])

    # --- DuckDB ---------------------------------------------------------------------------------

    def _set_view(self, condition: str = "true") -> None:
        """Restrict the view ``ratings`` to the rows that meet an SQL condition."""
        if condition == self._view_condition:
            return
        names = [name for name in RATINGS_CONTRACT.names if name != "rating"]
        names += [REASON_COLUMN] * self._has_reasons
        columns = ", ".join(f"{name}::varchar as {name}" for name in names)
        rating = f"{RATING_COLUMNS[self._ratings.kind]}::double"
        if self._ratings.scale is not None:
            low, high = self._ratings.scale
            rating = f"({rating} - {low!r}) / {high - low!r}"
        with self._named_errors():
            self._connection.execute(
                f"create or replace view ratings as select {columns}, {rating} as rating "  # noqa: S608 - our own text
                f"from {self._relation} where {self._row_filter} and {condition}"
            )
        self._view_condition = condition

    def _prepare(self, name: str) -> str:
        """Create the views and macros that a query of `sql/` reads, and return its text."""
        with self._named_errors():
            for file in queries_read(name):
                if file not in self._created:
                    self._connection.execute(definition(file))
                    self._created.add(file)
        return load_query(name)

    def _fetch(self, sql: str, **parameters: Any) -> pa.Table:
        """Return the result of a query with named parameters."""
        with self._named_errors():
            return self._connection.sql(sql, params=parameters).to_arrow_table()

    @contextlib.contextmanager
    def _named_errors(self) -> Iterator[None]:
        """Name the ratings in errors of DuckDB and Arrow."""
        try:
            yield
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            first_line = str(error).strip().splitlines()[0]
            # A stream reports a lack of memory or temporary disk space in the message only.
            if isinstance(error, duckdb.OutOfMemoryException) or "Out of Memory" in str(error):
                raise EncoreError(
                    f"{self._ratings.label}: not enough memory or temporary disk space for the "
                    f"analysis ({first_line}); raise ENCORE_DUCKDB_MEMORY_LIMIT or set TMPDIR to a "
                    "larger disk"
                ) from error
            raise InputError(f"{self._ratings.label}: cannot be read ({first_line})") from error


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
