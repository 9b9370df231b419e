"""Text of a benchmark table as Markdown: figures in percent, intervals at 95 %."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial

from encore.benchmarks.benchmark_table import BenchmarkTable, RowFigures
from encore.core import number_text
from encore.core.number_text import MINUS, NONE, first_names, p_value, points

#: Format a share without its unit: the table's notes say that figures are in percent.
percent = partial(number_text.percent, unit="")
#: Replacements for characters that would end a cell or a line of a Markdown table.
_MARKDOWN = str.maketrans({"|": "\\|", "\\": "\\\\", "\r": " ", "\n": " "})
#: What would begin HTML, or the target of a link or an image.
_LIVE = re.compile(r"<(?=[A-Za-z/!?])|(?<=\])\(")
#: Note on the credit of a tie, by (is a judge's row, credit of a tie).
_TIES = {
    (False, "loss"): "a reward model's tie is a loss",
    (False, "half"): "a reward model's tie counts one half, k equal best responses 1/k",
    (True, "half"): "a judge's tie counts one half",
}


def render_markdown(table: BenchmarkTable) -> str:
    """Return the table as Markdown that ends in a line break: title, cells, list of notes."""
    cells = [[_escaped(cell) for cell in row] for row in _cells(table)]
    # The rule of a column needs a dash beside its colon, else Markdown sees no table.
    widths = [max(2, *map(len, column)) for column in zip(*cells, strict=True)]
    rule = [f":{'-' * (widths[0] - 1)}", *(f"{'-' * (width - 1)}:" for width in widths[1:])]
    lines = []
    for row in (cells[0], rule, *cells[1:]):
        padded = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append(f"| {' | '.join([row[0].ljust(widths[0]), *padded[1:]])} |")
    notes = [f"- {_escaped(note)}" for note in table_notes(table)]
    title = f"**{_escaped(table_title(table))}**"
    return "\n".join([title, "", *lines, "", *notes]) + "\n"


def _escaped(text: str) -> str:
    """Return a text for Markdown; names and notes come from files and models of others."""
    return _LIVE.sub(r"\\\g<0>", text.translate(_MARKDOWN))


def table_title(table: BenchmarkTable) -> str:
    """Return a title of one line: benchmark, number of pairs, model."""
    benchmark = table.benchmark
    model = "" if table.model is None else f", {table.model}"
    partial = ", PARTIAL" if benchmark.is_partial else ""
    num_units = {
        line.our_figures.headline.num_pairs
        for line in table.rows_with_figures
        if not line.our_figures.num_set_aside_pairs
    } - {benchmark.num_pairs}
    units = "".join(f" in {num:,} choices" for num in num_units)
    return f"{benchmark.title}: {benchmark.num_pairs:,} pairs{units}{partial}{model}"


def table_notes(table: BenchmarkTable) -> tuple[str, ...]:
    """Return all notes that a reader of the figures needs, as sentences."""
    synthetic = [_synthetic_note(table.synthetic)] if table.synthetic else []
    return (*synthetic, *_legend(table), *table.notes)


def _synthetic_note(labels: Sequence[str]) -> str:
    """Return one note that names each synthetic part once, with the rows that it is a part of.

    Args:
        labels: Parts like ``benchmark b``, ``training source s`` or ``row: source s``.
    """
    users_by_part: dict[str, list[str]] = {}
    for label in labels:
        row, _, part = label.rpartition(": ")
        is_training = part.startswith("training ")
        user = row or ("training" if is_training else "")
        users_by_part.setdefault(part.removeprefix("training "), []).extend([user] * bool(user))
    parts = [
        f"{part} in {first_names(users, limit=3)}" if users else part
        for part, users in users_by_part.items()
    ]
    return f"synthetic: {'; '.join(parts)}. Read these figures as an example, not as evidence"


def _legend(table: BenchmarkTable) -> list[str]:
    """Return the notes that explain the figures."""
    ties = {(line.kind == "judge", line.our_figures.ties) for line in table.rows_with_figures}
    legend = ["scores are in percent; their 95 % intervals are over prompts (Wilson)"]
    legend += [text for key, text in _TIES.items() if key in ties]
    if len(table.rows_with_figures) > 1:
        legend.append(
            f"Δ is the difference to {table.reference} in points on the same pairs, with its "
            "interval over prompts (Bonett and Price); p is from McNemar's exact test of pairs "
            "that are right or "
            "wrong, so rows with credits between 0 and 1 have none"
        )
    if any(line.our_figures.draws is not None for line in table.rows_with_figures):
        legend.append(
            "draws: quantiles at 2.5 and 97.5 % of the draws, the variation between draws alone; "
            "the row is their mean"
        )
    if any(line.published is not None for line in table.rows):
        legend.append("as published: copied from the records given, not computed here")
    settings: dict[str, list[str]] = {}
    for line in table.rows_with_figures:
        if (computed_with := line.our_figures.computed_with) is not None:
            settings.setdefault(computed_with.sentence, []).append(line.name)
    for sentence, names in settings.items():
        rows = "rows" if len(names) == len(table.rows_with_figures) else first_names(names)
        legend.append(f"{rows} computed with {sentence}")
    if not all(line.paper.follows for line in table.rows if line.paper is not None):
        legend.append(
            "[x] after a figure of the paper is the score that follows from its own sub-scores"
        )
    return legend


def _cells(table: BenchmarkTable) -> list[list[str]]:
    """Return the headings, then the cells of each line, without columns that have no figure."""
    figures = [line.our_figures for line in table.rows_with_figures]
    subsets = [*dict.fromkeys(score.subset for ours in figures for score in ours.subsets)]
    # The number of pairs stands in each row only where rows differ in it.
    num_pairs = ["pairs"] if any(ours.num_set_aside_pairs for ours in figures) else []
    differences = (f"Δ {table.reference or ''}".strip(), "95 % of Δ", "p", "draws")
    headings = [*num_pairs, *subsets, table.benchmark.headline, "95 %", *differences]
    rows = [["Method", *headings, "paper", f"ours {MINUS} paper"]]
    for line in table.rows:
        ours = [NONE] * len(headings)
        if line.ours is not None:
            counts = [f"{line.ours.headline.num_pairs:,}"] * len(num_pairs)
            ours = [*counts, *_figure_cells(line.ours, subsets)]
        if line.published is not None:
            scores = line.published.scores
            ours = [percent(scores[name]) if name in scores else NONE for name in headings]
        paper = NONE if line.paper is None else percent(line.paper.score)
        if line.paper is not None and not line.paper.follows:
            paper += f" [{percent(line.paper.recomputed)}]"
        rows.append([line.name, *ours, paper, points(line.difference_to_paper)])
    columns = [column for column in zip(*rows, strict=True) if set(column[1:]) != {NONE}]
    return [list(row) for row in zip(*columns, strict=True)]


def _figure_cells(ours: RowFigures, subsets: Sequence[str]) -> list[str]:
    delta, draws, figures = ours.comparison, ours.draws, ours.figures
    return [
        *(percent(figures[name].score) if name in figures else NONE for name in subsets),
        percent(ours.headline.score),
        _range(ours.headline.ci_low, ours.headline.ci_high),
        NONE if delta is None else points(delta.difference),
        NONE if delta is None else f"{points(delta.ci_low)} to {points(delta.ci_high)}",
        p_value(None if delta is None else delta.mcnemar_p),
        NONE if draws is None else f"{_range(draws.low, draws.high)} of {draws.num_draws:,}",
    ]


def _range(low: float, high: float) -> str:
    return f"{percent(low)}–{percent(high)}"
