"""Rows of the benchmark tables of one or several studies side by side, from their files alone.

Only rows on the same pairs are compared, by one definition of the benchmark: tables are put
together by its name and version, its headline, ties and weighting, and the digest of its pairs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from encore.benchmarks import benchmark_table as tables
from encore.benchmarks.metrics import unit_credits, unit_weights, units_of_keys
from encore.benchmarks.pair_results import PairResults, read_pair_results
from encore.benchmarks.paired_comparison import compare_credits
from encore.benchmarks.table_rows import TableRow
from encore.core.errors import InputError
from encore.data.study import open_study

_ROUNDING = 1e-9
_FIGURE = ("score", "ci_low", "ci_high", "num_pairs")
_KEPT = {"params", "uses_labels", "synthetic", "notes"}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StoredRow:
    """One row of a table that a study keeps.

    Attributes:
        row_id: ``STUDY/KEY/NAME``: its own among all rows that were read together.
        study: The study, as it is called here.
        table: The table it stands in.
        line: The row, as it stands there.
        file: The table's results of every pair.
        pairs: Its own among them; None for a mean over draws whose score does not follow from them
            (`encore.benchmarks.table_rows.TableRow.follows_from_pairs`).
    """

    row_id: str
    study: str
    table: tables.BenchmarkTable
    line: tables.TableLine
    file: PairResults
    pairs: TableRow | None

    @property
    def definition(self) -> tuple[str, ...]:
        """What has to be the same for two rows to be compared.

        The fourth: what a tie is worth to the row that others of its table are compared with.
        """
        about, ties = self.table.benchmark, self.table.rows_with_figures[0].our_figures.ties
        return (about.name, about.version, about.headline, ties, about.weighting, about.digest)

    @property
    def identity(self) -> object:
        """The same for a row that two tables of a study have in common."""
        if self.pairs is None:
            return self.row_id
        credit = self.pairs.credit_P.tobytes()
        return (self.definition, self.study, self.table.model, self.line.name, credit)


def read_studies(studies: Sequence[Path], *, benchmark: str | None = None) -> tuple[StoredRow, ...]:
    """The rows of the tables of all studies; what two tables of one study have in common, once.

    Two directories of one name are called by their paths.

    Args:
        studies: One that is given twice is read once.
        benchmark: Only tables of this one.

    Raises:
        InputError: No study, a study without a table, a table that is not that of its results; no
            table of the benchmark.
    """
    paths = list(dict.fromkeys(study.resolve() for study in studies))
    names = [path.name for path in paths]
    rows: dict[object, StoredRow] = {}
    for path in paths:
        folders = tables.table_folders(open_study(path).path)
        if not folders:
            raise InputError(
                f"study {path}: no benchmark table in it; make one with `encore benchmark {path}`"
            )
        label = path.name if names.count(path.name) == 1 else str(path)
        for folder in folders:
            for row in _rows(folder, study=label):
                rows.setdefault(row.identity, row)
    found = tuple(row for row in rows.values() if benchmark in (None, row.table.benchmark.name))
    if not found:
        known = ", ".join(sorted({row.table.benchmark.name for row in rows.values()}))
        raise InputError(f"benchmark {benchmark!r}: no table of it here (there are: {known})")
    return found


def compare_tables(
    rows: Sequence[StoredRow], *, by: str | None = None, reference: str | None = None, seed: int = 0
) -> list[dict[str, Any]]:
    """Rows sorted, each compared with one reference for each definition on a set of pairs.

    The comparison is None for the reference itself, and for a row without results of its pairs.

    Returns:
        The ``datasets`` of ``encore compare --json``; scores are shares in [0, 1].

    Args:
        rows: Of one or several studies.
        by: The headline's or a subset's name, in any case; None: the headline.
        reference: A row's name or id; None: that of the first table on the same pairs.
        seed: Of the bootstrap.

    Raises:
        InputError: A figure or a row that is not there, a reference that is not one.
    """
    groups: dict[tuple[str, ...], list[StoredRow]] = {}
    for row in rows:
        groups.setdefault(row.definition, []).append(row)
    if reference is not None and len(groups) > 1:
        shown = "; ".join(" ".join(definition) for definition in groups)
        raise InputError(
            f"reference {reference!r}: on different pairs or by different definitions of one "
            f"benchmark ({shown}); only results on the same pairs, counted alike, can be compared: "
            "run all on the same data, or choose with --benchmark"
        )
    return [_compared(group, by=by, reference=reference, seed=seed) for group in groups.values()]


def find_row(rows: Sequence[StoredRow], name: str) -> StoredRow:
    """The row of a name, or of an id where several have it.

    Raises:
        InputError: None or several; the message lists what there is.
    """
    found = [row for row in rows if name in (row.row_id, row.line.name)]
    if len(found) == 1:
        return found[0]
    known = [row.row_id for row in found] or list(dict.fromkeys(row.line.name for row in rows))
    problem = "several tables have one" if found else "there is none of this name"
    raise InputError(f"row {name!r}: {problem}; give one of: {', '.join(map(repr, known))}")


def _rows(folder: Path, *, study: str) -> Iterator[StoredRow]:
    """The rows of one table, if it is that of its results: a process may have died between them."""
    table, file = tables.read_table(folder), read_pair_results(folder / tables.RESULTS_FILE)
    results = {row.name: row for row in file.rows}
    units = units_of_keys(file.keys)
    weight_U = unit_weights(units.subset_U, weighting=file.weighting)
    scores = {name: float(weight_U @ row.credits_by_unit(units)) for name, row in results.items()}
    told = {
        line.name: line.our_figures.headline.score
        for line in table.rows_with_figures
        if line.name in results or not line.our_figures.is_mean
    }
    is_same = table.benchmark.digest == file.data_digest and scores.keys() == told.keys()
    if not (is_same and all(abs(told[name] - scores[name]) < _ROUNDING for name in scores)):
        raise InputError(
            f"{folder}: {tables.TABLE_JSON} is not that of {tables.RESULTS_FILE}; run `encore "
            "benchmark` again"
        )
    for line in table.rows_with_figures:
        row_id, pairs = f"{study}/{folder.name}/{line.name}", results.get(line.name)
        yield StoredRow(row_id=row_id, study=study, table=table, line=line, file=file, pairs=pairs)


def _compared(
    rows: Sequence[StoredRow], *, by: str | None, reference: str | None, seed: int
) -> dict[str, Any]:
    about = rows[0].table.benchmark
    names = {name.casefold(): name for name in rows[0].line.our_figures.figures}
    figure = names.get((by or about.headline).casefold())
    if figure is None:
        raise InputError(f"--by {by!r}: no such figure (there are: {', '.join(names.values())})")
    chosen = rows[0] if reference is None else find_row(rows, reference)
    compared = [
        {
            "row_id": row.row_id,
            "study": row.study,
            "model": row.table.model,
            "name": row.line.name,
            "kind": row.line.kind,
            **row.line.our_figures.model_dump(mode="json", include=_KEPT),
            "figures": {
                name: {key: getattr(one, key) for key in _FIGURE}
                for name, one in row.line.our_figures.figures.items()
            },
            "comparison": None if row is chosen else _comparison(row, chosen, seed=seed),
        }
        for row in sorted(rows, key=lambda row: -row.line.our_figures.figures[figure].score)
    ]
    return {
        **{name: getattr(about, name) for name in ("version", "weighting", "digest")},
        "benchmark": about.name,
        "ties": rows[0].definition[3],
        "is_partial": any(row.table.benchmark.is_partial for row in rows),
        "by": figure,
        "reference": chosen.row_id,
        "synthetic": list(dict.fromkeys(part for row in rows for part in row.table.synthetic)),
        "rows": compared,
    }


def _comparison(first: StoredRow, second: StoredRow, *, seed: int) -> dict[str, Any] | None:
    """Two rows on the same pairs, whose order in two files may differ."""
    if first.pairs is None or second.pairs is None:
        return None
    file, second_P = first.file, second.pairs.credit_P
    if second.file is not file:
        second_P = second_P[second.file.order_of(file.keys)]
    units = units_of_keys(file.keys)
    found = compare_credits(
        unit_credits(first.pairs.credit_P, units=units),
        unit_credits(second_P, units=units),
        subset_P=units.subset_U,
        weighting=file.weighting,
        seed=seed,
    )
    return asdict(found)
