"""Rows of the benchmark tables of one or several studies side by side, from their files alone.

Only rows on the same pairs are compared, by one definition of the benchmark: tables are put
together by its name and version, its headline, ties and weighting, and the digest of its pairs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from encore.benchmarks.comparison import Comparison
from encore.benchmarks.results import compare_stored
from encore.benchmarks.stored_tables import StoredRow, StoredTable, read_tables
from encore.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ComparedRow:
    """A row, and how it differs from the reference on the same pairs.

    Attributes:
        row: The row.
        comparison: With the reference; None for the reference itself, and for a row without
            results of its pairs.
    """

    row: StoredRow
    comparison: Comparison | None

    @property
    def p_value(self) -> float | None:
        """McNemar's with the reference, where there is one (`Comparison.mcnemar_p`)."""
        return None if self.comparison is None else self.comparison.mcnemar_p


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DataSet:
    """All rows on the same pairs, by one definition of the benchmark.

    Attributes:
        benchmark: Name of the benchmark.
        version: Of its definition.
        ties: What a tie was worth to the first table's reference.
        weighting: How subsets add up to the headline.
        digest: Of the pairs.
        is_partial: Whether pairs of the benchmark were missing.
        by: What the rows are sorted by: the headline or a subset.
        reference: The row id of what others are compared with.
        rows: The best first.
        synthetic: What is synthetic, in words.
    """

    benchmark: str
    version: str
    ties: str
    weighting: str
    digest: str
    is_partial: bool
    by: str
    reference: str
    rows: tuple[ComparedRow, ...]
    synthetic: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """The JSON of ``encore compare --json``; scores are shares in [0, 1]."""
        return {
            "benchmark": self.benchmark,
            "version": self.version,
            "ties": self.ties,
            "weighting": self.weighting,
            "digest": self.digest,
            "is_partial": self.is_partial,
            "by": self.by,
            "reference": self.reference,
            "synthetic": list(self.synthetic),
            "rows": [_row_dict(one) for one in self.rows],
        }


def read_studies(studies: Sequence[Path]) -> tuple[StoredTable, ...]:
    """The tables of all studies; two directories of one name are called by their paths.

    Raises:
        InputError: As `encore.benchmarks.stored_tables.read_tables`; a study given twice.
    """
    paths = [study.resolve() for study in studies]
    if len(set(paths)) < len(paths):
        raise InputError("the same study is given twice; give each once")
    names = [path.name for path in paths]
    return tuple(
        table
        for study, name in zip(studies, names, strict=True)
        for table in read_tables(study, label=name if names.count(name) == 1 else str(study))
    )


def compare_tables(
    tables: Sequence[StoredTable],
    *,
    by: str | None = None,
    reference: str | None = None,
    benchmark: str | None = None,
    seed: int = 0,
) -> tuple[DataSet, ...]:
    """Rows sorted, each compared with one reference for each definition on a set of pairs.

    Args:
        tables: Of one or several studies.
        by: The headline's or a subset's name, in any case; None: the headline.
        reference: A row's name or id; None: that of the first table on the same pairs.
        benchmark: Only tables of this one.
        seed: Of the bootstrap.

    Raises:
        InputError: Nothing left, a figure or a row that is not there, a reference that is not one.
    """
    chosen = [table for table in tables if benchmark in (None, table.benchmark)]
    if not chosen:
        found = ", ".join(sorted({table.benchmark for table in tables})) or "none"
        raise InputError(f"benchmark {benchmark!r}: no table of it here (there are: {found})")
    groups: dict[tuple[str, ...], list[StoredTable]] = {}
    for table in chosen:
        groups.setdefault(table.definition, []).append(table)
    if reference is not None and len(groups) > 1:
        shown = "; ".join(_definition(group[0]) for group in groups.values())
        raise InputError(
            f"reference {reference!r}: these tables are on different pairs or by different "
            f"definitions ({shown}), and only results on the same pairs, counted alike, can be "
            "compared; choose with --benchmark, or run all studies on the same data"
        )
    return tuple(
        _data_set(group, by=by, reference=reference, seed=seed) for group in groups.values()
    )


def compare_two(
    tables: Sequence[StoredTable], first: str, second: str, *, seed: int = 0
) -> tuple[StoredRow, StoredRow, Comparison]:
    """The first row against the second, whichever tables they are in.

    Args:
        tables: Of one or several studies.
        first: A row's name or id.
        second: Another's.
        seed: Of the bootstrap.

    Raises:
        InputError: No such row, several of this name, rows on different pairs or by different
            definitions, or one without results of its pairs.
    """
    rows = [row for table in tables for row in table.rows]
    one, other = find_row(rows, first), find_row(rows, second)
    if one is other:
        raise InputError(f"rows {first!r} and {second!r} are one and the same; give two")
    comparison = _comparison(one, other, seed=seed)
    first_table, second_table = _table_of(one, tables), _table_of(other, tables)
    if first_table.definition != second_table.definition:
        raise InputError(
            f"rows {first!r} and {second!r} are of two definitions of one benchmark "
            f"({_definition(first_table)}; {_definition(second_table)}): run both with the same one"
        )
    if comparison is None:
        raise InputError(
            f"rows {first!r} and {second!r}: a mean over draws has no results of its pairs here, "
            "because several of them are one choice; compare it in its own table"
        )
    return one, other, comparison


def find_row(rows: Sequence[StoredRow], name: str) -> StoredRow:
    """The row of a name, or of an id where several have it.

    Raises:
        InputError: None or several; the message lists what there is.
    """
    found = [row for row in rows if row.row_id == name] or [row for row in rows if row.name == name]
    if len(found) == 1:
        return found[0]
    if not found:
        names = ", ".join(dict.fromkeys(repr(row.name) for row in rows))
        raise InputError(f"row {name!r}: there is none of this name (there are: {names})")
    ids = ", ".join(repr(row.row_id) for row in found)
    raise InputError(f"row {name!r}: several tables have one; give one of: {ids}")


def marks_of(rows: Sequence[StoredRow], tables: Sequence[StoredTable]) -> tuple[str, ...]:
    """What is synthetic of these rows and of the pairs they are on, in words, each said once.

    What a table says of another of its rows alone is not said.
    """
    found: list[str] = []
    for row in rows:
        table = _table_of(row, tables)
        of_any = {part for one in table.rows for part in one.synthetic}
        found += [part for part in table.synthetic if part not in of_any]
        found += row.synthetic
    return tuple(dict.fromkeys(found))


def is_partial(row: StoredRow, tables: Sequence[StoredTable]) -> bool:
    """Whether a row's table is on a part of the benchmark."""
    return _table_of(row, tables).is_partial


def _table_of(row: StoredRow, tables: Sequence[StoredTable]) -> StoredTable:
    return next(table for table in tables if any(one is row for one in table.rows))


def _definition(table: StoredTable) -> str:
    return (
        f"{table.benchmark} {table.version} {table.digest[:12]}, {table.headline}, "
        f"ties: {table.ties}, all {table.weighting} alike"
    )


def _data_set(
    tables: Sequence[StoredTable], *, by: str | None, reference: str | None, seed: int
) -> DataSet:
    first = tables[0]
    rows = [row for table in tables for row in table.rows]
    figure = _figure_name(rows, by or first.headline)
    chosen = first.rows[0] if reference is None else find_row(rows, reference)
    compared = [_compared(row, chosen, seed=seed) for row in rows]
    return DataSet(
        benchmark=first.benchmark,
        version=first.version,
        ties=first.ties,
        weighting=first.weighting,
        digest=first.digest,
        is_partial=any(table.is_partial for table in tables),
        by=figure,
        reference=chosen.row_id,
        rows=tuple(sorted(compared, key=lambda one: -one.row.figures[figure][0])),
        synthetic=tuple(dict.fromkeys(part for table in tables for part in table.synthetic)),
    )


def _compared(row: StoredRow, reference: StoredRow, *, seed: int) -> ComparedRow:
    comparison = None if row is reference else _comparison(row, reference, seed=seed)
    return ComparedRow(row=row, comparison=comparison)


def _comparison(first: StoredRow, second: StoredRow, *, seed: int) -> Comparison | None:
    if first.results is None or second.results is None:
        return None
    return compare_stored(first.results, second.results, seed=seed)


def _figure_name(rows: Sequence[StoredRow], by: str) -> str:
    """The figure of this name, whatever its case."""
    names = list(dict.fromkeys(name for row in rows for name in row.figures))
    matches = [name for name in names if name.casefold() == by.casefold()]
    if not matches:
        raise InputError(f"--by {by!r}: no such figure (there are: {', '.join(names)})")
    return by if by in matches else matches[0]


def _row_dict(one: ComparedRow) -> dict[str, Any]:
    row = one.row
    return {
        "row_id": row.row_id,
        "study": row.study,
        "model": row.model,
        "name": row.name,
        "kind": row.kind,
        "params": dict(row.params),
        "uses_labels": row.uses_labels,
        "synthetic": list(row.synthetic),
        "notes": list(row.notes),
        "figures": dict(_figure_dicts(row)),
        "comparison": None if one.comparison is None else asdict(one.comparison),
    }


def _figure_dicts(row: StoredRow) -> Iterator[tuple[str, Mapping[str, float]]]:
    for name, (score, figure) in row.figures.items():
        yield (
            name,
            {
                "score": score,
                "ci_low": figure.ci_low,
                "ci_high": figure.ci_high,
                "num_pairs": figure.num_pairs,
            },
        )
