"""Rows of the benchmark tables of one or several studies side by side, from their files alone.

Only rows on the same pairs are compared, by one definition of the benchmark: tables are put
together by its name and version, its headline, ties and weighting, and the digest of its pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
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

    def as_dict(self) -> dict[str, Any]:
        """One row of the JSON of ``encore compare --json``."""
        row = self.row
        same = ("row_id", "study", "model", "name", "kind", "params", "uses_labels")
        return {
            **{name: getattr(row, name) for name in same},
            "synthetic": list(row.synthetic),
            "notes": list(row.notes),
            "figures": {
                name: {
                    "score": score,
                    "ci_low": figure.ci_low,
                    "ci_high": figure.ci_high,
                    "num_pairs": figure.num_pairs,
                }
                for name, (score, figure) in row.figures.items()
            },
            "comparison": None if self.comparison is None else asdict(self.comparison),
        }


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DataSet:
    """All rows on the same pairs, by one definition of the benchmark.

    Attributes:
        table: The first table, whose definition it is.
        is_partial: Whether pairs of the benchmark were missing.
        by: What the rows are sorted by: the headline or a subset.
        reference: The row id of what others are compared with.
        rows: The best first.
        synthetic: What is synthetic, in words.
    """

    table: StoredTable
    is_partial: bool
    by: str
    reference: str
    rows: tuple[ComparedRow, ...]
    synthetic: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """The JSON of ``encore compare --json``; scores are shares in [0, 1]."""
        names = ("benchmark", "version", "ties", "weighting", "digest")
        return {
            **{name: getattr(self.table, name) for name in names},
            "is_partial": self.is_partial,
            "by": self.by,
            "reference": self.reference,
            "synthetic": list(self.synthetic),
            "rows": [one.as_dict() for one in self.rows],
        }


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TwoRows:
    """The first row against the second.

    Attributes:
        first: A row.
        second: Another.
        comparison: On the headline, on the same pairs.
        is_partial: Whether a table of theirs is on a part of the benchmark.
        synthetic: What of the two rows and of the pairs they are on is synthetic, each said once.
    """

    first: StoredRow
    second: StoredRow
    comparison: Comparison
    is_partial: bool
    synthetic: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """The JSON of ``encore compare --row A --row B --json``."""
        return {
            "first": self.first.row_id,
            "second": self.second.row_id,
            "comparison": asdict(self.comparison),
            "is_partial": self.is_partial,
            "synthetic": list(self.synthetic),
            "notes": {row.row_id: list(row.notes) for row in (self.first, self.second)},
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
) -> TwoRows:
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
    rows = _distinct(tables)
    one, other = find_row(rows, first), find_row(rows, second)
    if one is other:
        raise InputError(f"rows {first!r} and {second!r} are one and the same; give two")
    comparison = _comparison(one, other, seed=seed)
    own = [next(table for table in tables if row in table.rows) for row in (one, other)]
    if own[0].definition != own[1].definition:
        raise InputError(
            f"rows {first!r} and {second!r} are of two definitions of one benchmark "
            f"({_definition(own[0])}; {_definition(own[1])}): run both with the same one"
        )
    if comparison is None:
        raise InputError(
            f"rows {first!r} and {second!r}: a mean over draws has no results of its pairs here, "
            "because several of them are one choice; compare it in its own table"
        )
    marks: list[str] = []
    for row, table in zip((one, other), own, strict=True):
        of_any = {part for each in table.rows for part in each.synthetic}  # not of another row
        marks += [part for part in table.synthetic if part not in of_any]
        marks += row.synthetic
    return TwoRows(
        first=one,
        second=other,
        comparison=comparison,
        is_partial=any(table.is_partial for table in own),
        synthetic=tuple(dict.fromkeys(marks)),
    )


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


def _distinct(tables: Sequence[StoredTable]) -> list[StoredRow]:
    """The rows of all tables; what two tables of one study have in common, once."""
    found: dict[tuple[object, ...], StoredRow] = {}
    for table in tables:
        for row in table.rows:
            credit = None if row.results is None else row.results.results.credit_P.tobytes()
            key = (table.definition, row.study, row.model, row.name, credit)
            found.setdefault(key if credit else (row.row_id,), row)
    return list(found.values())


def _definition(table: StoredTable) -> str:
    return (
        f"{table.benchmark} {table.version} {table.digest[:12]}, {table.headline}, "
        f"ties: {table.ties}, all {table.weighting} alike"
    )


def _data_set(
    tables: Sequence[StoredTable], *, by: str | None, reference: str | None, seed: int
) -> DataSet:
    first, rows = tables[0], _distinct(tables)
    figure = _figure_name(rows, by or first.headline)
    chosen = first.rows[0] if reference is None else find_row(rows, reference)
    compared = [
        ComparedRow(
            row=row, comparison=None if row is chosen else _comparison(row, chosen, seed=seed)
        )
        for row in rows
    ]
    return DataSet(
        table=first,
        is_partial=any(table.is_partial for table in tables),
        by=figure,
        reference=chosen.row_id,
        rows=tuple(sorted(compared, key=lambda one: -one.row.figures[figure][0])),
        synthetic=tuple(dict.fromkeys(part for table in tables for part in table.synthetic)),
    )


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
