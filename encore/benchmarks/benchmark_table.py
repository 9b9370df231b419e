"""A benchmark's table: our rows beside the paper's, as `table.json` keeps it and readers take it.

Reading one back needs neither a model nor its packages.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, combinations
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from encore.benchmarks.benchmark_config import PaperTables
from encore.benchmarks.benchmark_pairs import BenchmarkPairs
from encore.benchmarks.definition import Ties, Weighting, load_benchmark
from encore.benchmarks.metrics import Headline, SubsetScore, benchmark_score, units_of_pairs
from encore.benchmarks.paired_comparison import Comparison, compare_credits
from encore.benchmarks.paper_tables import BENCHMARK, PaperRow, paper_rows
from encore.benchmarks.table_rows import RowFacts, RowKind, TableRow
from encore.core.errors import InputError

#: In a study: a folder for each model's head scores of a benchmark, and one for each table.
BENCHMARKS_DIR = "benchmarks"
RESULTS_FILE, TABLE_JSON, TABLE_MARKDOWN = "results.parquet", "table.json", "table.md"

_NOT_OF_THE_PAPER = (
    f"the paper reports {BENCHMARK} alone, as it is defined here; no figure of it stands beside "
    "these"
)


class TablePart(BaseModel):
    """A part of the JSON of a table; further keys are passed over."""

    model_config = ConfigDict(frozen=True)


class RowFigures(RowFacts):
    """What we found for one row; scores are shares in [0, 1].

    Attributes:
        method: The paper's row of the same method; None where it has none.
        is_mean: Whether it is a mean over draws, whose pairs are neither right nor wrong.
        comparison: With the table's reference; None for the reference itself.
        weights: By rule; None where there is no one vector.
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
        """The headline, then each subset, by name; each has a score and its interval."""
        subsets = {one.subset: one for one in self.subsets}
        return {self.headline.name: self.headline, **subsets}


class TableLine(TablePart):
    """One method: our row, the paper's, or both.

    Attributes:
        name: Ours, or the paper's title.
        kind: Of our row; ``paper-only`` where there is none.
        difference_to_paper: Our score less the paper's printed one; None for ours on a part of the
            pairs.
    """

    name: str
    kind: RowKind
    ours: RowFigures | None = None
    paper: PaperRow | None = None
    difference_to_paper: float | None = None

    @property
    def our_figures(self) -> RowFigures:
        """Ours, of a line that has them."""
        assert self.ours is not None
        return self.ours


class TableBenchmark(TablePart):
    """What a table is on; ``title`` is for people and not in the file."""

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
    """Every row of one backbone on one benchmark: the JSON of ``encore benchmark --json``.

    Attributes:
        benchmark: The benchmark and its pairs.
        model: The backbone's name; None where no model's heads were weighed.
        reference: The row that all others are compared with; None without rows.
        rows: Ours in their order, then those that the paper alone has.
        notes: What a reader should know, a sentence each.
        synthetic: What of data, models and rows is synthetic, in words.
    """

    benchmark: TableBenchmark
    model: str | None
    reference: str | None
    rows: tuple[TableLine, ...]
    notes: tuple[str, ...]
    synthetic: tuple[str, ...]

    @property
    def rows_with_figures(self) -> tuple[TableLine, ...]:
        """Those with figures of ours; the first is the reference."""
        return tuple(line for line in self.rows if line.ours is not None)


def make_table(
    rows: Sequence[TableRow],
    *,
    pairs: BenchmarkPairs,
    model: str | None = None,
    paper: PaperTables = "main",
    notes: Sequence[str] = (),
    synthetic: Sequence[str] = (),
    seed: int = 0,
) -> BenchmarkTable:
    """Our rows with the paper's beside them, then the rows that the paper alone has.

    Args:
        rows: The first is the reference.
        pairs: Beside another benchmark than the paper's, or other definition of it, stands nothing.
        model: The backbone's name.
        paper: The backbone of the paper's figures.
        notes: Beside those of the rows.
        synthetic: What is synthetic beside the rows.
        seed: Of the bootstrap.

    Raises:
        InputError: Two rows of one name.
    """
    of_pairs = {name: getattr(pairs, name) for name in ("num_pairs", "digest", "is_partial")}
    names = [row.name for row in rows]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InputError(
            f"table: several rows {twice[0]!r}; give every row a name of its own (--reward-model "
            "NAME=…, --results NAME=FILE)"
        )
    is_comparable = pairs.benchmark == load_benchmark(BENCHMARK)
    published = _published(paper) if is_comparable else {}
    lines = [
        _line(row, rows[0], paper=published.pop(row.method or "", None), pairs=pairs, seed=seed)
        for row in rows
    ]
    for one in published.values():
        name = f"{one.label}, {one.base_model}"
        lines.append(TableLine(name=name, kind="paper-only", paper=one))
    learnt = [row.name for row in rows if row.metadata.uses_labels]
    found = [f"{name}: learnt from people's preferences on the training pairs" for name in learnt]
    found += [] if is_comparable else [_NOT_OF_THE_PAPER]
    return BenchmarkTable(
        benchmark=TableBenchmark(**pairs.benchmark.model_dump(), **of_pairs),
        model=model,
        reference=names[0] if names else None,
        rows=tuple(lines),
        notes=_once(pairs.notes, notes, *(row.metadata.notes for row in rows), found),
        synthetic=_once(synthetic, *(row.metadata.synthetic for row in rows)),
    )


def _once(*several: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(chain.from_iterable(several)))


def table_folders(study: Path) -> tuple[Path, ...]:
    """The folders of a study's benchmark tables, by name; none where there is none."""
    return tuple(sorted(path.parent for path in (study / BENCHMARKS_DIR).glob(f"*/{TABLE_JSON}")))


def read_table(folder: Path) -> BenchmarkTable:
    """The table in one of these folders.

    Raises:
        InputError: No table.
    """
    path = folder / TABLE_JSON
    try:
        return BenchmarkTable.model_validate_json(path.read_bytes())
    except (OSError, ValueError) as error:
        problem = f"no table of a benchmark ({type(error).__name__})"
        raise InputError(f"{path}: {problem}; run `encore benchmark` again") from error


def _published(paper: PaperTables) -> dict[str, PaperRow]:
    """The paper's rows by method; what two tables have in common, from the first."""
    found: dict[str, PaperRow] = {}
    wanted = (paper, "selection") if paper == "main" else (paper,)  # rule selection was on main
    for row in paper_rows():
        if row.table in wanted:
            found.setdefault(row.method, row)
    return found


def _line(
    row: TableRow, reference: TableRow, *, paper: PaperRow | None, pairs: BenchmarkPairs, seed: int
) -> TableLine:
    about = row.metadata
    score = benchmark_score(
        row.credit_P, pairs=pairs, ties=row.ties, half_P=row.half_P, credit_U=row.credit_U
    )
    own = RowFigures(
        **about.model_dump(include=set(RowFacts.model_fields)),
        method=row.method,
        is_mean=about.draws is not None,
        ties=row.ties,
        headline=score.headline,
        subsets=score.subsets,
        is_partial=score.is_partial,
        comparison=None if row is reference else _compared(row, reference, pairs, seed=seed),
        weights=row.weights,
    )
    gap = None if paper is None or score.is_partial else score.headline.score - paper.score
    return TableLine(name=row.name, kind=about.kind, ours=own, paper=paper, difference_to_paper=gap)


def _compared(first: TableRow, second: TableRow, pairs: BenchmarkPairs, *, seed: int) -> Comparison:
    units = units_of_pairs(pairs)
    return compare_credits(
        first.credits_by_unit(units),
        second.credits_by_unit(units),
        subset_P=units.subset_U,
        weighting=pairs.benchmark.weighting,
        seed=seed,
    )


def significant_differences(
    rows: Sequence[TableRow], *, pairs: BenchmarkPairs, seed: int = 0
) -> str:
    """Which of some rows the benchmark's pairs tell apart, in a sentence.

    Two rows are told apart where the 95 % interval of their paired difference leaves out 0.

    Args:
        rows: Two or more.
        pairs: Of the benchmark.
        seed: Of the bootstrap.
    """
    both = {pair: _compared(*pair, pairs, seed=seed) for pair in combinations(rows, 2)}
    found = [
        f"{one.name} from {other.name}"
        for (one, other), differ in both.items()
        if not differ.ci_low <= 0 <= differ.ci_high
    ]
    names = f"{', '.join(row.name for row in rows[:-1])} and {rows[-1].name}"
    told = f"{len(found)} of {len(both)} pairs of {names}: {'; '.join(found)}"
    return f"these {pairs.num_pairs} pairs tell apart {told if found else f'no two of {names}'}"
