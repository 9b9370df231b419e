"""A benchmark table as Markdown or JSON: figures in percent, intervals at 95 %."""

from __future__ import annotations

from functools import partial
from typing import Literal

from encore.benchmarks.benchmark_table import BenchmarkTable, RowFigures
from encore.benchmarks.paper_tables import PaperRow
from encore.core import number_text
from encore.core.files import json_text
from encore.core.number_text import MINUS, NONE, p_value, points

#: Shares stand without a unit: the table's notes say that they are in percent.
percent = partial(number_text.percent, unit="")
#: Would end a cell or a line of a Markdown table.
_MARKDOWN = str.maketrans({"|": "\\|", "\\": "\\\\", "\r": " ", "\n": " "})
#: What a tie is worth, by whether the row is a judge's.
_TIES = {
    (False, "loss"): "a reward model's tie is a loss",
    (False, "half"): "a reward model's tie counts one half, k equal best responses 1/k",
    (True, "half"): "a judge's tie counts one half",
}


def render(table: BenchmarkTable, *, form: Literal["markdown", "json"]) -> str:
    """The table as text that ends in a line break.

    Args:
        table: The rows.
        form: ``markdown`` (a title, the table, a list of notes) or ``json``.
    """
    if form == "markdown":
        return _markdown(table)
    return json_text(table.model_dump(mode="json"))


def table_title(table: BenchmarkTable) -> str:
    """What the table is of, in one line."""
    benchmark = table.benchmark
    model = "" if table.model is None else f", {table.model}"
    partial = ", PARTIAL" if benchmark.is_partial else ""
    num_units = {line.our_figures.headline.num_pairs for line in table.rows_with_figures} - {
        benchmark.num_pairs
    }
    units = "".join(f" in {num:,} choices" for num in num_units)
    return f"{benchmark.title}: {benchmark.num_pairs:,} pairs{units}{partial}{model}"


def table_notes(table: BenchmarkTable) -> tuple[str, ...]:
    """Everything a reader should know beside the figures, a sentence each."""
    synthetic = [
        f"synthetic: {part}; read these figures as an example, not as evidence"
        for part in table.synthetic
    ]
    return (*synthetic, *_reading(table), *table.notes)


def _reading(table: BenchmarkTable) -> list[str]:
    """How to read the figures."""
    ties = {(line.kind == "judge", line.our_figures.ties) for line in table.rows_with_figures}
    said = ["scores are in percent; their 95 % intervals are over pairs (Wilson)"]
    said += [text for one, text in _TIES.items() if one in ties]
    if len(table.rows_with_figures) > 1:
        said.append(
            f"Δ is the difference to {table.reference} in points on the same pairs, with its "
            "paired bootstrap interval; p is McNemar's, exact; it counts pairs that are right or "
            "wrong, so there is none where credits lie between 0 and 1"
        )
    if any(line.our_figures.draws is not None for line in table.rows_with_figures):
        said.append(
            "draws: 2.5 and 97.5 % of the draws, what chance between draws alone does; the row "
            "itself is their mean"
        )
    if not all(line.paper.follows for line in table.rows if line.paper is not None):
        said.append("[x] behind a figure of the paper is what its own sub-scores give")
    return said


# --- cells ----------------------------------------------------------------------------------------


def _cells(table: BenchmarkTable) -> list[list[str]]:
    """A row of headings, and one of text for each line; no column without a figure."""
    subsets = [
        one.subset for line in table.rows_with_figures[:1] for one in line.our_figures.subsets
    ]
    differs = (f"Δ {table.reference or ''}".strip(), "95 % of Δ", "p", "draws")
    own = [*subsets, table.benchmark.headline, "95 %", *differs]
    rows = [["Method", *own, "paper", f"ours {MINUS} paper"]]
    for line in table.rows:
        ours = [NONE] * len(own) if line.ours is None else _own_cells(line.ours)
        rows.append([line.name, *ours, _paper(line.paper), points(line.difference_to_paper)])
    columns = [column for column in zip(*rows, strict=True) if set(column[1:]) != {NONE}]
    return [list(row) for row in zip(*columns, strict=True)]


def _own_cells(own: RowFigures) -> list[str]:
    found, draws = own.comparison, own.draws
    return [
        *(percent(one.accuracy) for one in own.subsets),
        percent(own.headline.score),
        _range(own.headline.ci_low, own.headline.ci_high),
        NONE if found is None else points(found.difference),
        NONE if found is None else f"{points(found.ci_low)} to {points(found.ci_high)}",
        p_value(None if found is None else found.mcnemar_p),
        NONE if draws is None else f"{_range(draws.low, draws.high)} of {draws.num_draws:,}",
    ]


def _paper(paper: PaperRow | None) -> str:
    if paper is None:
        return NONE
    own = "" if paper.follows else f" [{percent(paper.recomputed)}]"
    return f"{percent(paper.score)}{own}"


def _range(low: float, high: float) -> str:
    return f"{percent(low)}–{percent(high)}"


# --- forms ----------------------------------------------------------------------------------------


def _markdown(table: BenchmarkTable) -> str:
    safe = [[cell.translate(_MARKDOWN) for cell in row] for row in _cells(table)]
    # A column's rule needs a dash beside its colon, or the whole is no table to a reader.
    widths = [max(2, *map(len, column)) for column in zip(*safe, strict=True)]
    rule = [f":{'-' * (widths[0] - 1)}", *(f"{'-' * (width - 1)}:" for width in widths[1:])]
    lines = []
    for row in (safe[0], rule, *safe[1:]):
        padded = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append(f"| {' | '.join([row[0].ljust(widths[0]), *padded[1:]])} |")
    notes = [f"- {note.translate(_MARKDOWN)}" for note in table_notes(table)]
    title = f"**{table_title(table).translate(_MARKDOWN)}**"
    return "\n".join([title, "", *lines, "", *notes]) + "\n"
