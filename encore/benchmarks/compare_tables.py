"""Comparison of benchmark tables of one or several studies, from their files alone.

Only rows on the same pairs and by the same definition of the benchmark are compared. Tables are
grouped by its name and version, its headline, ties and weighting, and the digest of its pairs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from encore.benchmarks import benchmark_table as tables
from encore.benchmarks.definition import Ties, Weighting
from encore.benchmarks.metrics import mean_credit
from encore.benchmarks.pair_results import PairResults, read_pair_results
from encore.benchmarks.paired_comparison import Comparison
from encore.benchmarks.table_rows import RowKind, TableRow
from encore.buckets.study_mirror import study_path
from encore.core.errors import InputError
from encore.core.shown_record import ShownRecord
from encore.data.study import open_study

#: A table's headline may differ from its recomputation by so much.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StoredRow:
    """One row of a stored table.

    Attributes:
        row_id: ``STUDY/KEY/NAME``, unique among all rows that are read together.
        study: Name of the study, or its path if two studies have the same name.
        table: Table that contains the row.
        line: The row's line in the table.
        file: The table's results per pair.
        pairs: The row's results per pair. None for a mean over draws whose score does not follow
            from them (`encore.benchmarks.table_rows.TableRow.follows_from_pairs`).
    """

    row_id: str
    study: str
    table: tables.BenchmarkTable
    line: tables.TableLine
    file: PairResults
    pairs: TableRow | None

    @property
    def definition(self) -> tuple[str, ...]:
        """Return the properties that must be equal for two rows to be compared.

        The fourth is the credit of a tie in the reference row of the table.
        """
        benchmark, ties = self.table.benchmark, self.table.rows_with_figures[0].our_figures.ties
        definition = (benchmark.name, benchmark.version, benchmark.headline, ties)
        return (*definition, benchmark.weighting, benchmark.digest)

    @property
    def identity(self) -> object:
        """Return a key that is equal for a row that two tables of a study share."""
        if self.pairs is None:
            return self.row_id
        credit = self.pairs.credit_P.tobytes()
        return (self.definition, self.study, self.table.model, self.line.name, credit)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """Score of one row, 0 to 1, with its 95 % interval and the number of units counted."""

    score: float
    ci_low: float
    ci_high: float
    num_pairs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRow:
    """One row of a comparison.

    Attributes:
        row_id: ``STUDY/KEY/NAME`` (`StoredRow.row_id`).
        study: Name or path of the study.
        model: Name of the table's backbone. None if it has none.
        name: Name of the row.
        kind: Source of the row: weighting scheme, reward model or judge.
        params: Parameters of the weighting scheme.
        uses_labels: True if weights were learnt from people's preferences.
        synthetic: Labels of the synthetic parts.
        notes: Sentences for the reader.
        figures: Headline and subsets by name.
        comparison: Difference to the reference. None for the reference itself, and for a row
            without results per pair.
    """

    row_id: str
    study: str
    model: str | None
    name: str
    kind: RowKind
    params: Mapping[str, int | float | str]
    uses_labels: bool
    synthetic: tuple[str, ...]
    notes: tuple[str, ...]
    figures: Mapping[str, Figure]
    comparison: Comparison | None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ComparedTable(ShownRecord):
    """Rows on the same pairs, sorted by a score: one of the ``datasets`` of ``encore compare``.

    Attributes:
        benchmark: Name of the benchmark.
        version: Version of its definition.
        weighting: Weighting of its headline.
        digest: Digest of its pairs.
        ties: Credit of a tie in the reference row of the first table.
        is_partial: True if a row is on a part of the benchmark's pairs.
        by: Name of the score by which the rows are sorted.
        reference: Id of the row that all rows are compared with.
        synthetic: Labels of the synthetic parts of all tables.
        rule_ids: Ids of the weighed rules of all tables, each in the order of its heads.
        rows: Rows, the best first.
    """

    benchmark: str
    version: str
    weighting: Weighting
    digest: str
    ties: Ties
    is_partial: bool
    by: str
    reference: str
    synthetic: tuple[str, ...]
    rule_ids: tuple[str, ...]
    rows: tuple[ComparedRow, ...]


def read_studies(studies: Sequence[Path], *, benchmark: str | None = None) -> tuple[StoredRow, ...]:
    """Read the rows of the tables of all studies. A row that two tables share is read once.

    Studies of the same name are called by their paths.

    Args:
        studies: Paths of the studies. A repeated path is read once.
        benchmark: Name of a benchmark. Other tables are ignored. None: all tables.

    Raises:
        InputError: A study is missing or has no table, a table does not match its results, or no
            table is of the benchmark.
    """
    paths = {study.resolve(): study for study in studies}
    names = [path.name for path in paths]
    rows: dict[object, StoredRow] = {}
    for path, study in paths.items():
        folders = tables.table_folders(open_study(study).path)
        if not folders:
            raise InputError(
                f"study {study}: no benchmark table yet; make one with `encore benchmark {study} "
                "--model MODEL`"
            )
        label = path.name if names.count(path.name) == 1 else str(path)
        for folder in folders:
            for row in _rows(folder, study=label):
                rows.setdefault(row.identity, row)
    matching = tuple(row for row in rows.values() if benchmark in (None, row.table.benchmark.name))
    if not matching:
        benchmarks = ", ".join(sorted({row.table.benchmark.name for row in rows.values()}))
        raise InputError(f"benchmark {benchmark!r}: the studies have tables of {benchmarks} only")
    return matching


def compare(
    studies: Sequence[str | Path],
    *,
    benchmark: str | None = None,
    by: str | None = None,
    reference: str | None = None,
    seed: int = 0,
) -> tuple[ComparedTable, ...]:
    """Compare the benchmark tables of studies, as `encore compare` does.

    Args:
        studies: Paths of the studies.
        benchmark: Name of a benchmark. None: all benchmarks.
        by: Name of the headline or of a subset, in upper or lower case. None: the headline.
        reference: Name or id of the row that all others are compared with. None: the reference of
            the first table on the same pairs.
        seed: Seed of the test's draws (`compare_credits`).

    Raises:
        InputError: A study is missing or has no table, a table does not match its results, the
            benchmark, score or reference does not exist, or a reference is given and the tables
            are on different pairs.
    """
    rows = read_studies([study_path(study) for study in studies], benchmark=benchmark)
    return compare_tables(rows, by=by, reference=reference, seed=seed)


def compare_tables(
    rows: Sequence[StoredRow], *, by: str | None = None, reference: str | None = None, seed: int = 0
) -> tuple[ComparedTable, ...]:
    """Sort rows by a score and compare them with a reference, on each set of pairs.

    Args:
        rows: Rows of one or several studies.
        by: Name of the headline or of a subset, in upper or lower case. None: the headline.
        reference: Name or id of a row. None: the reference of the first table on the same pairs.
        seed: Seed of the test's draws (`compare_credits`).

    Returns:
        One table for each set of pairs and definition: the ``datasets`` of `encore compare --json`.

    Raises:
        InputError: The score or the reference does not exist, or the rows are on different pairs
            and a reference is given.
    """
    groups: dict[tuple[str, ...], list[StoredRow]] = {}
    for row in rows:
        groups.setdefault(row.definition, []).append(row)
    if reference is not None and len(groups) > 1:
        definitions = "; ".join(" ".join(definition) for definition in groups)
        raise InputError(
            f"reference {reference!r}: on different pairs or by different definitions of one "
            f"benchmark ({definitions}); only results on the same pairs, counted alike, can be "
            "compared: run all on the same data, or choose with --benchmark"
        )
    return tuple(
        _compared_table(group, by=by, reference=reference, seed=seed) for group in groups.values()
    )


def find_row(rows: Sequence[StoredRow], name: str) -> StoredRow:
    """Return the row with a name or an id.

    Raises:
        InputError: No row or several rows match; the message lists the choices.
    """
    matching = [row for row in rows if name in (row.row_id, row.line.name)]
    if len(matching) == 1:
        return matching[0]
    choices = [row.row_id for row in matching] or list(dict.fromkeys(row.line.name for row in rows))
    problem = "several tables have one" if matching else "there is none of this name"
    raise InputError(f"row {name!r}: {problem}; give one of: {', '.join(map(repr, choices))}")


def _rows(folder: Path, *, study: str) -> Iterator[StoredRow]:
    """Yield the rows of one table, after a check that it matches its file of results.

    They differ if a process stopped after it wrote only one of them.
    """
    table, file = tables.read_table(folder), read_pair_results(folder / tables.RESULTS_FILE)
    results = {row.name: row for row in file.rows}
    units = file.units
    scores = {
        name: mean_credit(
            row.credits_by_unit(units), subset_U=units.subset_U, weighting=file.weighting
        )
        for name, row in results.items()
    }
    headlines = {
        line.name: line.our_figures.headline.score
        for line in table.rows_with_figures
        if line.name in results or not line.our_figures.is_mean
    }
    is_same = table.benchmark.digest == file.data_digest and scores.keys() == headlines.keys()
    if not (is_same and all(abs(headlines[name] - scores[name]) < _ROUNDING for name in scores)):
        raise InputError(
            f"{folder}: {tables.TABLE_JSON} does not match {tables.RESULTS_FILE}; run `encore "
            "benchmark` again"
        )
    for line in table.rows_with_figures:
        row_id, pairs = f"{study}/{folder.name}/{line.name}", results.get(line.name)
        yield StoredRow(row_id=row_id, study=study, table=table, line=line, file=file, pairs=pairs)


def _compared_table(
    rows: Sequence[StoredRow], *, by: str | None, reference: str | None, seed: int
) -> ComparedTable:
    benchmark = rows[0].table.benchmark
    names = {name.casefold(): name for name in rows[0].line.our_figures.figures}
    figure = names.get((by or benchmark.headline).casefold())
    if figure is None:
        raise InputError(f"--by {by!r}: no such figure (there are: {', '.join(names.values())})")
    for row in rows:
        if figure not in row.line.our_figures.figures:
            raise InputError(
                f"--by {figure}: row {row.row_id!r} has no such figure, because all of its pairs "
                f"were set aside; expected one that every row has, such as {benchmark.headline}"
            )
    reference_row = rows[0] if reference is None else find_row(rows, reference)
    compared_rows = [
        _compared_row(row, reference_row, seed=seed)
        for row in sorted(rows, key=lambda row: -row.line.our_figures.figures[figure].score)
    ]
    return ComparedTable(
        benchmark=benchmark.name,
        version=benchmark.version,
        weighting=benchmark.weighting,
        digest=benchmark.digest,
        ties=rows[0].table.rows_with_figures[0].our_figures.ties,
        is_partial=any(row.table.benchmark.is_partial for row in rows),
        by=figure,
        reference=reference_row.row_id,
        synthetic=tuple(dict.fromkeys(label for row in rows for label in row.table.synthetic)),
        rule_ids=tuple(
            dict.fromkeys(rule for row in rows for rule in row.line.our_figures.weights or ())
        ),
        rows=tuple(compared_rows),
    )


def _compared_row(row: StoredRow, reference: StoredRow, *, seed: int) -> ComparedRow:
    ours = row.line.our_figures
    return ComparedRow(
        row_id=row.row_id,
        study=row.study,
        model=row.table.model,
        name=row.line.name,
        kind=row.line.kind,
        params=ours.params,
        uses_labels=ours.uses_labels,
        synthetic=ours.synthetic,
        notes=ours.notes,
        figures={
            name: Figure(
                score=score.score,
                ci_low=score.ci_low,
                ci_high=score.ci_high,
                num_pairs=score.num_pairs,
            )
            for name, score in ours.figures.items()
        },
        comparison=_comparison(row, reference, seed=seed),
    )


def _comparison(first: StoredRow, second: StoredRow, *, seed: int) -> Comparison | None:
    """Compare two rows on the same pairs, whose order in two files may differ."""
    if first is second or first.pairs is None or second.pairs is None:
        return None
    file, reference = first.file, second.pairs
    if second.file is not file:
        order_P = second.file.order_of(file.keys)
        reward_P2 = None if reference.reward_P2 is None else reference.reward_P2[order_P]
        reference = replace(reference, credit_P=reference.credit_P[order_P], reward_P2=reward_P2)
    return first.pairs.compared_with(
        reference, units=file.units, weighting=file.weighting, seed=seed
    )
