"""A benchmark table as Markdown, LaTeX or JSON: figures in percent, intervals at 95 %."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Literal

from encore.benchmarks.metrics import units_of_pairs
from encore.benchmarks.rows import TableRow
from encore.benchmarks.table import BenchmarkTable, TableLine

Format = Literal["markdown", "latex", "json"]
FORMATS: tuple[Format, ...] = ("markdown", "latex", "json")

NONE = "–"
MINUS = "−"
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


def render(table: BenchmarkTable, *, form: Format) -> str:
    """The table as text that ends in a line break.

    Args:
        table: The rows.
        form: ``markdown`` (a title, the table, a list of notes), ``latex`` (a tabular for
            booktabs, notes as comments) or ``json``.
    """
    writers = {"markdown": _markdown, "latex": _latex, "json": _json}
    return writers[form](table)


def title_of(table: BenchmarkTable) -> str:
    """What the table is of, in one line."""
    benchmark = table.pairs.benchmark
    model = "" if table.model is None else f", {table.model}"
    partial = ", PARTIAL" if table.pairs.is_partial else ""
    num_pairs, num_units = table.pairs.num_pairs, len(units_of_pairs(table.pairs).subset_U)
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


# --- cells ----------------------------------------------------------------------------------------


def _cells(table: BenchmarkTable) -> tuple[list[str], list[list[str]]]:
    """The headings, and a row of text for each line."""
    has_draws = any(line.row is not None and line.row.draws is not None for line in table.lines)
    headings = [
        "Method",
        *table.subsets,
        table.pairs.benchmark.headline,
        "95 %",
        f"Δ {table.reference or ''}".strip(),
        "95 % of Δ",
        "p",
        *(["draws"] if has_draws else []),
        *(["paper", f"ours {MINUS} paper"] if table.has_paper else []),
    ]
    rows = []
    for line in table.lines:
        num_ours = len(table.subsets) + 5 + has_draws
        ours = [NONE] * num_ours if line.row is None else _row_cells(line.row, table.subsets)
        paper = [_paper(line), _signed(line.difference_to_paper)] if table.has_paper else []
        rows.append([line.name, *ours[:num_ours], *paper])
    return headings, rows


def _row_cells(row: TableRow, subsets: Sequence[str]) -> list[str]:
    headline, found, draws = row.score.headline, row.comparison, row.draws
    accuracy = {one.subset: percent(one.accuracy) for one in row.score.subsets}
    return [
        *(accuracy.get(name, NONE) for name in subsets),
        percent(headline.score),
        _range(headline.ci_low, headline.ci_high),
        _signed(None if found is None else found.difference),
        NONE if found is None else f"{_signed(found.ci_low)} to {_signed(found.ci_high)}",
        p_value(row.p_value),
        NONE if draws is None else f"{_range(draws.low, draws.high)} of {draws.num_draws:,}",
    ]


def _paper(line: TableLine) -> str:
    if line.paper_score is None:
        return NONE
    recomputed = line.paper_recomputed
    own = "" if recomputed is None else f" [{percent(recomputed)}]"
    return f"{percent(line.paper_score)}{own}"


def percent(share: float) -> str:
    """A share in percent, with one decimal."""
    return f"{100 * share:.1f}"


def points(share: float) -> str:
    """A difference of shares in points, with its sign."""
    text = f"{100 * share:+.1f}"
    return "0.0" if text in ("+0.0", "-0.0") else text.replace("-", MINUS)


def p_value(value: float | None) -> str:
    """A p-value with three decimals; a dash where there is none."""
    if value is None:
        return NONE
    return "<0.001" if value < 0.001 else f"{value:.3f}"


def _range(low: float, high: float) -> str:
    return f"{percent(low)}–{percent(high)}"


def _signed(share: float | None) -> str:
    return NONE if share is None else points(share)


# --- forms ----------------------------------------------------------------------------------------


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
