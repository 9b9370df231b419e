"""Table of a benchmark: our rows beside the paper's. Stored as `table.json`.

Reading a table needs neither a model nor its packages.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, combinations
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from encore.benchmarks.benchmark_options import PaperTables
from encore.benchmarks.benchmark_pairs import BenchmarkPairs
from encore.benchmarks.definition import Ties, Weighting, load_benchmark
from encore.benchmarks.metrics import Headline, SubsetScore, benchmark_score, units_of_pairs
from encore.benchmarks.paired_comparison import Comparison
from encore.benchmarks.paper_tables import BENCHMARK, PaperRow, paper_rows
from encore.benchmarks.table_rows import RowFacts, RowKind, TableRow
from encore.core.errors import InputError

#: Folder of a study with one folder per model (head scores) and one per table.
BENCHMARKS_DIR = "benchmarks"
RESULTS_FILE, TABLE_JSON, TABLE_MARKDOWN = "results.parquet", "table.json", "table.md"

_LEARNT = "learnt from people's preferences on the training pairs"
_NOT_OF_THE_PAPER = (
    f"the paper has figures for {BENCHMARK} alone, as it is defined here; none stands beside these "
    "rows"
)


class TablePart(BaseModel):
    """Base of the parts of a table's JSON. Unknown keys are ignored."""

    model_config = ConfigDict(frozen=True)


class RowFigures(RowFacts):
    """Our figures of one row; scores are shares in [0, 1].

    Attributes:
        method: Key of the paper's row of the same method. None if the paper has none.
        is_mean: True for a mean over draws: its pairs are neither right nor wrong.
        ties: Credit of a tie in this row.
        headline: Overall score with its interval.
        subsets: Scores of the subsets.
        is_partial: True if pairs of the benchmark are missing.
        comparison: Difference to the table's reference. None for the reference itself.
        weights: Weight of each rule. None if there is no single weight vector.
    """

    method: str | None
    is_mean: bool
    ties: Ties
    headline: Headline
    subsets: tuple[SubsetScore, ...]
    is_partial: bool
    comparison: Comparison | None
    weights: Mapping[str, float] | None

    @property
    def figures(self) -> Mapping[str, Headline | SubsetScore]:
        """Return the headline and the subsets by name; each has a score and an interval."""
        subsets = {subset.subset: subset for subset in self.subsets}
        return {self.headline.name: self.headline, **subsets}


class PublishedRow(TablePart):
    """Scores of a model that others published, 0 to 1.

    Attributes:
        name: Name of the model.
        source: Organisation that published them. None if the record does not say it.
        scores: Score by name of the headline or subset; those that the record has.
    """

    name: str
    source: str | None
    scores: Mapping[str, float]


class TableLine(TablePart):
    """Line of a table for one method: our row, the paper's, or both.

    Attributes:
        name: Name of our row, or the paper's label of the method.
        kind: Source of our row; ``paper-only`` if there is none.
        ours: Our figures. None if the paper alone has the method.
        paper: The paper's row. None if the paper lacks the method.
        difference_to_paper: Our score minus the paper's printed score. None if a score is missing
            or ours is on a part of the pairs.
        published: Scores that others published, in a line of kind ``published``.
    """

    name: str
    kind: RowKind
    ours: RowFigures | None = None
    paper: PaperRow | None = None
    difference_to_paper: float | None = None
    published: PublishedRow | None = Field(default=None, exclude_if=lambda row: row is None)

    @property
    def our_figures(self) -> RowFigures:
        """Return our figures of a line that has them."""
        assert self.ours is not None
        return self.ours


class TableBenchmark(TablePart):
    """Benchmark and pairs of a table. ``title`` is for people and not in the file."""

    name: str
    version: str
    dataset: str | None
    revision: str | None
    headline: str
    weighting: Weighting
    num_pairs: int
    digest: str
    is_partial: bool
    title: str = Field(default="", exclude=True)


class BenchmarkTable(TablePart):
    """All rows of one backbone on one benchmark: the JSON of ``encore benchmark --json``.

    Attributes:
        benchmark: The benchmark and its pairs.
        model: Name of the backbone. None if no model's heads were weighed.
        reference: Name of the row that all rows are compared with. None without rows.
        rows: Our rows in their order, then those that the paper alone has.
        notes: Sentences for the reader.
        synthetic: Labels of the synthetic parts of data, models and rows.
    """

    benchmark: TableBenchmark
    model: str | None
    reference: str | None
    rows: tuple[TableLine, ...]
    notes: tuple[str, ...]
    synthetic: tuple[str, ...]

    @property
    def rows_with_figures(self) -> tuple[TableLine, ...]:
        """Return the lines with figures of ours; the first is the reference."""
        return tuple(line for line in self.rows if line.ours is not None)


def make_table(
    rows: Sequence[TableRow],
    *,
    pairs: BenchmarkPairs,
    model: str | None = None,
    paper: PaperTables = "main",
    notes: Sequence[str] = (),
    synthetic: Sequence[str] = (),
    published: Sequence[PublishedRow] = (),
    seed: int = 0,
) -> BenchmarkTable:
    """Make a table: our rows with the paper's beside them, then the paper's further rows.

    Args:
        rows: Our rows. The first is the reference.
        pairs: Pairs of the benchmark. The paper's figures are shown for its own benchmark only.
        model: Name of the backbone.
        paper: Backbone of the paper's figures.
        notes: Further notes, beside those of the rows.
        synthetic: Further synthetic labels, beside those of the rows.
        published: Rows that others published, shown last.
        seed: Seed of the test's draws (`compare_credits`).

    Raises:
        InputError: Two rows have the same name.
    """
    names = [row.name for row in rows]
    _refuse_repeated(names)
    is_comparable = pairs.benchmark == load_benchmark(BENCHMARK)
    paper_rows = _published(paper) if is_comparable else {}
    lines = _table_lines(rows, paper_rows, published, pairs=pairs, seed=seed)
    return BenchmarkTable(
        benchmark=TableBenchmark(
            **pairs.benchmark.model_dump(),
            num_pairs=pairs.num_pairs,
            digest=pairs.digest,
            is_partial=pairs.is_partial,
        ),
        model=model,
        reference=names[0] if names else None,
        rows=tuple(lines),
        notes=_unique(
            pairs.notes,
            notes,
            *(row.metadata.notes for row in rows),
            (f"{row.name}: {_LEARNT}" for row in rows if row.metadata.uses_labels),
            () if is_comparable else (_NOT_OF_THE_PAPER,),
        ),
        synthetic=_unique(synthetic, *(row.metadata.synthetic for row in rows)),
    )


def _unique(*groups: Iterable[str]) -> tuple[str, ...]:
    """Return all texts in order, each once."""
    return tuple(dict.fromkeys(chain.from_iterable(groups)))


def table_folders(study: Path) -> tuple[Path, ...]:
    """Return the folders of a study's benchmark tables, sorted by name."""
    return tuple(sorted(path.parent for path in (study / BENCHMARKS_DIR).glob(f"*/{TABLE_JSON}")))


def read_table(folder: Path) -> BenchmarkTable:
    """Read the table in a folder of `table_folders`.

    Raises:
        InputError: The folder has no readable table.
    """
    path = folder / TABLE_JSON
    try:
        return BenchmarkTable.model_validate_json(path.read_bytes())
    except (OSError, ValueError) as error:
        problem = f"no table of a benchmark ({type(error).__name__})"
        raise InputError(f"{path}: {problem}; run `encore benchmark` again") from error


def _published(paper: PaperTables) -> dict[str, PaperRow]:
    """Return the paper's rows by method. A method of two tables has the row of the first."""
    published: dict[str, PaperRow] = {}
    # The paper's rule selection uses the backbone of the main table.
    tables = (paper, "selection") if paper == "main" else (paper,)
    for row in paper_rows():
        if row.table in tables:
            published.setdefault(row.method, row)
    return published


def _refuse_repeated(names: Sequence[str]) -> None:
    """Raise InputError if two rows have the same name."""
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise InputError(
            f"table: several rows {repeated[0]!r}; give every row a unique name (--reward-model "
            "NAME=…, --results NAME=FILE)"
        )


def _table_lines(
    rows: Sequence[TableRow],
    paper_rows: Mapping[str, PaperRow],
    published: Sequence[PublishedRow],
    *,
    pairs: BenchmarkPairs,
    seed: int,
) -> list[TableLine]:
    """Return our rows, each beside the paper's row of its method, then all other rows."""
    remaining = dict(paper_rows)  # a method's row stands beside our first row of the method
    lines = [
        _line(row, rows[0], paper=remaining.pop(row.method or "", None), pairs=pairs, seed=seed)
        for row in rows
    ]
    lines += [
        TableLine(name=f"{row.label}, {row.base_model}", kind="paper-only", paper=row)
        for row in remaining.values()
    ]
    lines += [
        TableLine(name=f"{row.name} (as published)", kind="published", published=row)
        for row in published
    ]
    return lines


def _line(
    row: TableRow, reference: TableRow, *, paper: PaperRow | None, pairs: BenchmarkPairs, seed: int
) -> TableLine:
    metadata, comparison = row.metadata, None
    if row is not reference:
        comparison = row.compared_with(
            reference, units=units_of_pairs(pairs), weighting=pairs.benchmark.weighting, seed=seed
        )
    score = benchmark_score(
        row.credit_P,
        pairs=pairs,
        ties=row.ties,
        half_P=row.half_P,
        credit_U=row.credit_U,
        reward_P2=row.reward_P2,
    )
    figures = RowFigures(
        **metadata.model_dump(include=set(RowFacts.model_fields)),
        method=row.method,
        is_mean=metadata.draws is not None,
        ties=row.ties,
        headline=score.headline,
        subsets=score.subsets,
        is_partial=score.is_partial,
        comparison=comparison,
        weights=row.weights,
    )
    gap = None if paper is None or score.is_partial else score.headline.score - paper.score
    return TableLine(
        name=row.name, kind=metadata.kind, ours=figures, paper=paper, difference_to_paper=gap
    )


def significant_differences(rows: Sequence[TableRow], *, pairs: BenchmarkPairs) -> str:
    """Return a sentence on which rows differ significantly on the benchmark's pairs.

    Two rows differ significantly if the 95 % interval of their paired difference excludes 0.

    Args:
        rows: Rows to compare, two or more.
        pairs: Pairs of the benchmark.
    """
    units, weighting = units_of_pairs(pairs), pairs.benchmark.weighting
    combined = list(combinations(rows, 2))
    significant = []
    for first, second in combined:
        difference = first.compared_with(second, units=units, weighting=weighting, seed=0)
        if not difference.ci_low <= 0 <= difference.ci_high:
            significant.append(f"{first.name} and {second.name}")
    names = f"{', '.join(row.name for row in rows[:-1])} and {rows[-1].name}"
    if not significant:
        return f"on these {pairs.num_pairs:,} pairs no two of {names} differ significantly"
    return (
        f"on these {pairs.num_pairs:,} pairs {len(significant)} of {len(combined)} comparisons of "
        f"{names} differ significantly: {'; '.join(significant)}"
    )
