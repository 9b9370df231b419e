"""The paper's table from our rows: ours beside the paper's figure, the difference, the interval."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from encore.benchmarks.benchmark_config import PaperTables
from encore.benchmarks.definition import load_benchmark
from encore.benchmarks.pairs import BenchmarkPairs
from encore.benchmarks.paper_tables import BENCHMARK, PaperRow, TableName, paper_tables
from encore.benchmarks.results import RowKind
from encore.benchmarks.rows import TableRow
from encore.errors import InputError

#: Which of the paper's tables stand beside a backbone: rule selection was on the main one.
_TABLES: Mapping[PaperTables, tuple[TableName, ...]] = {
    "main": ("main", "selection"),
    "fsfairx": ("fsfairx",),
    "none": (),
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TableLine:
    """One method: our row, the paper's, or both.

    Attributes:
        name: Ours, or the paper's title.
        kind: Of our row; ``paper-only`` where there is none.
        row: Ours.
        paper: The paper's row of the same method; None where the paper has none.
    """

    name: str
    kind: RowKind
    row: TableRow | None
    paper: PaperRow | None

    @property
    def paper_score(self) -> float | None:
        """The paper's Safety as printed, a share in [0, 1]."""
        return None if self.paper is None else self.paper.printed_safety / 100

    @property
    def paper_recomputed(self) -> float | None:
        """The same from the paper's own sub-scores, where it does not follow from them."""
        if self.paper is None or self.paper.follows:
            return None
        return self.paper.recomputed_safety / 100

    @property
    def difference_to_paper(self) -> float | None:
        """Our score less the paper's printed one; None for ours on a part of the pairs."""
        if self.row is None or self.paper_score is None or self.row.score.is_partial:
            return None
        return self.row.score.headline.score - self.paper_score


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BenchmarkTable:
    """Every row of one backbone on one benchmark.

    Attributes:
        pairs: The benchmark's pairs.
        model: The backbone's name; None where no model's heads were weighed.
        reference: The row that all others are compared with; None without rows.
        lines: Ours in their order, then those that the paper alone has.
        notes: What a reader should know, a sentence each.
        synthetic: What of data and models is synthetic, in words.
    """

    pairs: BenchmarkPairs
    model: str | None
    reference: str | None
    lines: tuple[TableLine, ...]
    notes: tuple[str, ...] = ()
    synthetic: tuple[str, ...] = ()

    @property
    def subsets(self) -> tuple[str, ...]:
        """The subsets that have pairs, in the benchmark's order."""
        found = dict.fromkeys(self.pairs.subset_P)
        ordered = [one.name for one in self.pairs.benchmark.subsets if one.name in found]
        return (*ordered, *(name for name in found if name not in ordered))

    @property
    def has_paper(self) -> bool:
        """Whether any figure of the paper stands in it."""
        return any(line.paper is not None for line in self.lines)

    def as_dict(self) -> dict[str, Any]:
        """The JSON of ``encore benchmark --json``; scores are shares in [0, 1]."""
        names = ("name", "version", "dataset", "revision", "headline", "weighting")
        return {
            "benchmark": {
                **{name: getattr(self.pairs.benchmark, name) for name in names},
                "num_pairs": len(self.pairs.pairs),
                "digest": self.pairs.digest,
                "is_partial": self.pairs.is_partial,
            },
            "model": self.model,
            "reference": self.reference,
            "rows": [_line_dict(line) for line in self.lines],
            "notes": list(self.notes),
            "synthetic": list(self.synthetic),
        }


def make_table(
    rows: Sequence[TableRow],
    *,
    pairs: BenchmarkPairs,
    model: str | None = None,
    paper: PaperTables = "main",
    notes: Sequence[str] = (),
    synthetic: Sequence[str] = (),
) -> BenchmarkTable:
    """Our rows with the paper's beside them, then the rows that the paper alone has.

    Args:
        rows: The first is the reference.
        pairs: Beside another benchmark than the paper's, or other definition of it, stands nothing.
        model: The backbone's name.
        paper: The backbone of the paper's figures.
        notes: Beside those of the rows.
        synthetic: What is synthetic beside the rows.

    Raises:
        InputError: Two rows of one name.
    """
    names = [row.name for row in rows]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(
            f"table: {len(twice)} names are there more than once (the first: {twice[0]!r}); give "
            "every row a name of its own"
        )
    is_comparable = pairs.benchmark == load_benchmark(BENCHMARK)
    published = _published(paper) if is_comparable else {}
    lines = [
        TableLine(name=row.name, kind=row.kind, row=row, paper=published.get(row.method or ""))
        for row in rows
    ]
    shown = {line.paper.method for line in lines if line.paper is not None}
    only = (one for method, one in published.items() if method not in shown)
    lines += [TableLine(name=one.title, kind="paper-only", row=None, paper=one) for one in only]
    found = _notes(pairs, lines, is_comparable=is_comparable)
    own = [note for row in rows for note in row.notes]
    marks = [part for row in rows for part in row.synthetic]
    return BenchmarkTable(
        pairs=pairs,
        model=model,
        reference=rows[0].name if rows else None,
        lines=tuple(lines),
        notes=tuple(dict.fromkeys((*pairs.notes, *notes, *own, *found))),
        synthetic=tuple(dict.fromkeys((*synthetic, *marks))),
    )


def _published(paper: PaperTables) -> dict[str, PaperRow]:
    """The paper's rows by method; what two tables have in common, from the first."""
    found: dict[str, PaperRow] = {}
    for table in paper_tables():
        for row in table.rows if table.name in _TABLES[paper] else ():
            found.setdefault(row.method, row)
    return found


def _notes(
    pairs: BenchmarkPairs, lines: Sequence[TableLine], *, is_comparable: bool
) -> Iterator[str]:
    if pairs.is_partial:
        yield (
            f"partial: these are {len(pairs.pairs)} pairs, not all that {pairs.benchmark.name} "
            "defines; no figure here compares with a published one"
        )
    for line in lines:
        if line.row is not None and line.row.uses_labels:
            yield f"{line.name}: learnt from people's preferences on the training pairs"
    off = [line.paper for line in lines if line.paper is not None and not line.paper.follows]
    for paper in off:
        yield (
            f"the paper prints {paper.printed_safety:g} for {paper.title}; its own sub-scores give "
            f"{paper.recomputed_safety:.2f}"
        )
    if not is_comparable:
        yield (
            f"the paper reports {BENCHMARK} alone, as it is defined here; no figure of it stands "
            "beside these"
        )


def _line_dict(line: TableLine) -> dict[str, Any]:
    paper = line.paper
    of_paper = paper and {
        "table": paper.table,
        "method": paper.method,
        "label": paper.label,
        "base_model": paper.base_model,
        "score": line.paper_score,
        "recomputed": paper.recomputed_safety / 100,
        "follows": paper.follows,
        "subsets": {name: score / 100 for name, score in paper.scores.items()},
    }
    return {
        "name": line.name,
        "kind": line.kind,
        "ours": line.row and _row_dict(line.row),
        "paper": of_paper,
        "difference_to_paper": line.difference_to_paper,
    }


def _row_dict(row: TableRow) -> dict[str, Any]:
    score, vector = asdict(row.score), row.vector
    return {
        "method": row.method,
        "params": dict(row.params),
        "uses_labels": row.uses_labels,
        "is_mean": row.is_mean,
        "synthetic": list(row.synthetic),
        "notes": list(row.notes),
        **({"num_cut_pairs": row.num_cut_pairs} if row.num_cut_pairs else {}),
        **{name: score[name] for name in ("ties", "headline", "subsets", "is_partial")},
        "comparison": row.comparison and asdict(row.comparison),
        "draws": row.draws and asdict(row.draws),
        "weights": vector and dict(zip(vector.rule_ids, vector.weights, strict=True)),
    }
