"""A benchmark table as Markdown, LaTeX or JSON: figures in percent, intervals at 95 %."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from encore.benchmarks.rows import TableRow
from encore.benchmarks.table import BenchmarkTable, TableLine
from encore.benchmarks.units import units_of_pairs

Format = Literal["markdown", "latex", "json"]
FORMATS: tuple[Format, ...] = ("markdown", "latex", "json")

_NONE = "–"
_MINUS = "−"
#: What LaTeX would act on; names come from data sets, paths and models.
_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "–": "--",
    "−": "$-$",
    "Δ": r"$\Delta$",
    "τ": r"$\tau$",
    "<": "$<$",
    ">": "$>$",
    "|": r"\textbar{}",
    **{one: f"\\{one}" for one in "&%$#_{}"},
}
_LATEX_WORDS = re.compile("|".join(map(re.escape, _LATEX)))
#: Would end a cell or a line of a Markdown table.
_MARKDOWN_WORDS = re.compile(r"[|\r\n\\]")
#: What a terminal would act on, and JSON lets stand.
_CONTROL = re.compile(r"[\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Column:
    """A column: its heading, and what it shows of a line."""

    heading: str
    cell: Callable[[TableLine], str]


def render(table: BenchmarkTable, *, form: Format) -> str:
    """The table as text that ends in a line break.

    Args:
        table: The rows.
        form: ``markdown`` (a title, the table, a list of notes), ``latex`` (a tabular for
            booktabs, notes as comments) or ``json``.
    """
    writers: Mapping[Format, Callable[[BenchmarkTable], str]] = {
        "markdown": _markdown,
        "latex": _latex,
        "json": _json,
    }
    return writers[form](table)


def title_of(table: BenchmarkTable) -> str:
    """What the table is of, in one line."""
    benchmark = table.pairs.benchmark
    model = "" if table.model is None else f", {table.model}"
    partial = ", PARTIAL" if table.pairs.is_partial else ""
    num_pairs, num_units = table.pairs.num_pairs, units_of_pairs(table.pairs).num_units
    units = "" if num_units == num_pairs else f" in {num_units:,} choices"
    return f"{benchmark.title}: {num_pairs:,} pairs{units}{partial}{model}"


def notes_of(table: BenchmarkTable) -> tuple[str, ...]:
    """Everything a reader should know beside the figures, a sentence each."""
    synthetic = [
        f"synthetic: {part}; read these figures as an example, not as evidence"
        for part in table.synthetic
    ]
    return (*synthetic, *_reading(table), *table.notes)


def _reading(table: BenchmarkTable) -> list[str]:
    rows = [line.row for line in table.lines if line.row is not None]
    found = ["scores are in percent; their 95 % intervals are over pairs (Wilson)"]
    rewarded = {row.score.ties for row in rows if row.kind != "judge"}
    if "loss" in rewarded:
        found.append("a reward model's tie is a loss")
    if "half" in rewarded:
        found.append("a reward model's tie counts one half, k equal best responses 1/k")
    if any(row.kind == "judge" and row.score.ties == "half" for row in rows):
        found.append("a judge's tie counts one half")
    if any(row.comparison is not None for row in rows):
        found.append(
            f"Δ is the difference to {table.reference} in points on the same pairs, with its "
            "paired bootstrap interval; p is McNemar's, exact"
        )
    if any(row.comparison is not None and row.p_value is None for row in rows):
        found.append(
            "no p where some credits lie between 0 and 1, as for means over draws and for ties "
            "that count in part: McNemar's test counts pairs that are right or wrong"
        )
    if any(row.draws is not None for row in rows):
        found.append(
            "draws: 2.5 and 97.5 % of the draws, what chance between draws alone does; the row "
            "itself is their mean"
        )
    if any(line.paper_recomputed is not None for line in table.lines):
        found.append("[x] behind a figure of the paper is what its own sub-scores give")
    return found


# --- columns --------------------------------------------------------------------------------------


def _columns(table: BenchmarkTable) -> list[_Column]:
    headline = table.pairs.benchmark.headline
    columns = [_Column(heading="Method", cell=lambda line: line.name)]
    columns += [_subset_column(name) for name in table.subsets]
    columns += [
        _Column(heading=headline, cell=_of_row(_score)),
        _Column(heading="95 %", cell=_of_row(_interval)),
        _Column(heading=f"Δ {table.reference or ''}".strip(), cell=_of_row(_difference)),
        _Column(heading="95 % of Δ", cell=_of_row(_difference_interval)),
        _Column(heading="p", cell=_of_row(_p_value)),
    ]
    if any(line.row is not None and line.row.draws is not None for line in table.lines):
        columns.append(_Column(heading="draws", cell=_of_row(_draws)))
    if table.has_paper:
        columns += [
            _Column(heading="paper", cell=_paper),
            _Column(heading=f"ours {_MINUS} paper", cell=_to_paper),
        ]
    return columns


def _of_row(cell: Callable[[TableRow], str]) -> Callable[[TableLine], str]:
    """A cell that is empty where there is no row of ours."""
    return lambda line: _NONE if line.row is None else cell(line.row)


def _subset_column(name: str) -> _Column:
    def cell(row: TableRow) -> str:
        found = [one.accuracy for one in row.score.subsets if one.subset == name]
        return _percent(found[0]) if found else _NONE

    return _Column(heading=name, cell=_of_row(cell))


def _score(row: TableRow) -> str:
    return _percent(row.score.headline.score)


def _interval(row: TableRow) -> str:
    return _range(row.score.headline.ci_low, row.score.headline.ci_high)


def _difference(row: TableRow) -> str:
    return _NONE if row.comparison is None else _signed(row.comparison.difference)


def _difference_interval(row: TableRow) -> str:
    if row.comparison is None:
        return _NONE
    return f"{_signed(row.comparison.ci_low)} to {_signed(row.comparison.ci_high)}"


def _p_value(row: TableRow) -> str:
    p_value = row.p_value
    if p_value is None:
        return _NONE
    return "<0.001" if p_value < 0.001 else f"{p_value:.3f}"


def _draws(row: TableRow) -> str:
    if row.draws is None:
        return _NONE
    return f"{_range(row.draws.low, row.draws.high)} of {row.draws.num_draws:,}"


def _paper(line: TableLine) -> str:
    if line.paper_score is None:
        return _NONE
    shown = _percent(line.paper_score)
    recomputed = line.paper_recomputed
    return shown if recomputed is None else f"{shown} [{_percent(recomputed)}]"


def _to_paper(line: TableLine) -> str:
    return _NONE if line.difference_to_paper is None else _signed(line.difference_to_paper)


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def _range(low: float, high: float) -> str:
    return f"{_percent(low)}–{_percent(high)}"


def _signed(share: float) -> str:
    text = f"{100 * share:+.1f}"
    return "0.0" if text in ("+0.0", "-0.0") else text.replace("-", _MINUS)


# --- forms ----------------------------------------------------------------------------------------


def _cells(table: BenchmarkTable) -> tuple[list[str], list[list[str]]]:
    columns = _columns(table)
    rows = [[column.cell(line) for column in columns] for line in table.lines]
    return [column.heading for column in columns], rows


def _markdown(table: BenchmarkTable) -> str:
    headings, rows = _cells(table)
    safe = [[_markdown_text(cell) for cell in row] for row in (headings, *rows)]
    # A column's rule needs a dash beside its colon, or the whole is no table to a reader.
    widths = [max(2, *map(len, column)) for column in zip(*safe, strict=True)]
    rule = [f":{'-' * (widths[0] - 1)}", *(f"{'-' * (width - 1)}:" for width in widths[1:])]
    lines = [_markdown_line(row, widths) for row in (safe[0], rule, *safe[1:])]
    notes = [f"- {_markdown_text(note)}" for note in notes_of(table)]
    title = f"**{_markdown_text(title_of(table))}**"
    return "\n".join([title, "", *lines, "", *notes]) + "\n"


def _markdown_line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [
        cell.ljust(width) if place == 0 else cell.rjust(width)
        for place, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return f"| {' | '.join(padded)} |"


def _markdown_text(text: str) -> str:
    return _MARKDOWN_WORDS.sub(lambda found: " " if found[0] in "\r\n" else f"\\{found[0]}", text)


def _latex(table: BenchmarkTable) -> str:
    headings, rows = _cells(table)
    marks = _latex_marks(table)
    lines = [
        *(f"% {_one_line(text)}" for text in (title_of(table), *notes_of(table))),
        f"\\begin{{tabular}}{{l{'r' * (len(headings) - 1)}}}",
        "\\toprule",
        *(f"\\multicolumn{{{len(headings)}}}{{l}}{{{_latex_text(mark)}}} \\\\" for mark in marks),
        *(["\\midrule"] if marks else []),
        _latex_line(headings),
        "\\midrule",
        *(_latex_line(row) for row in rows),
        "\\bottomrule",
        "\\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def _latex_marks(table: BenchmarkTable) -> list[str]:
    """What must be typeset with the figures: comments stay in the source."""
    pairs, benchmark = table.pairs, table.pairs.benchmark
    marks = []
    if pairs.is_partial:
        whole = "all" if benchmark.num_pairs is None else f"the {benchmark.num_pairs:,}"
        marks.append(f"PARTIAL: {pairs.num_pairs:,} pairs, not {whole} of {benchmark.name}")
    if table.synthetic:
        marks.append("SYNTHETIC: an example, not evidence")
    return marks


def _latex_line(cells: Sequence[str]) -> str:
    return " & ".join(map(_latex_text, cells)) + r" \\"


def _latex_text(text: str) -> str:
    return _LATEX_WORDS.sub(lambda found: _LATEX[found[0]], _one_line(text))


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _json(table: BenchmarkTable) -> str:
    text = json.dumps(table.as_dict(), indent=2, ensure_ascii=False, allow_nan=False)
    # They can only stand inside strings here, where an escape means the same to every reader.
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text) + "\n"
