"""Show an analysis in a terminal, in a notebook and as a plot: the answer of one source."""

from __future__ import annotations

from html import escape
from io import BytesIO
from typing import TYPE_CHECKING

from encore.analysis.rule_verdicts import RuleAnswer, RuleVerdict
from encore.core.extras import require_packages
from encore.core.number_text import number, percent, percent_interval, printable
from encore.core.record_table import html_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Rules that a terminal shows.
_MAX_LINES = 10
_MAX_NAME = 25
_COLUMNS = ("verdict", "rule", "untied accuracy", "ties", "weight")
#: Colours of verdicts, distinct for the colour-blind too.
_COLOURS = {
    "trust": "#0072b2",
    "against": "#d55e00",
    "double": "#cc79a7",
    "sources differ": "#e69f00",
}


def answer_text(answer: RuleAnswer, *, subject: str) -> str:
    """Return the answer in about a dozen lines of at most 80 columns.

    Args:
        answer: Verdicts on the rules of a source.
        subject: Line above the table.
    """
    if all(row.tie_rate is None for row in answer.rows):  # no pair has two ratings
        return "\n".join((subject, *answer.summary))
    lines = [subject, _line(_COLUMNS), *map(_line, map(_cells, answer.rows[:_MAX_LINES]))]
    if (num_more := len(answer.rows) - _MAX_LINES) > 0:
        lines.append(f"and {num_more} more: analysis.answers[-1].rows")
    return "\n".join([*lines, answer.summary[0]])


def answer_html(answer: RuleAnswer, *, subject: str) -> str:
    """Return the answer as HTML: every rule with its reason and what would settle it."""
    rows = [(*_cells(row), row.reason_and_caveat, row.remedy) for row in answer.rows]
    table = html_table((*_COLUMNS, "reason", "what would settle it"), rows)
    return f"<p>{escape(subject)}</p>{table}<p>{escape(' '.join(answer.summary))}</p>"


def _cells(row: RuleVerdict) -> tuple[str, ...]:
    interval = percent_interval(row.untied.low, row.untied.high)
    return (
        row.verdict,
        f"{row.number} {printable(row.rule_id)}",
        f"{percent(row.untied.value)} ({interval})",
        percent(row.tie_rate, digits=0),
        number(row.weight),
    )


def _line(cells: tuple[str, ...]) -> str:
    verdict, rule, accuracy, ties, weight = cells
    if len(rule) > _MAX_NAME:
        rule = f"{rule[: _MAX_NAME - 1]}…"
    return f"{verdict:14} {rule:{_MAX_NAME}} {accuracy:>25} {ties:>5} {weight:>7}"


def answer_plot(answer: RuleAnswer, *, subject: str) -> Figure:
    """Return a figure of each rule's untied accuracy with its interval, coloured by verdict.

    No display is needed. A notebook shows the figure.

    Args:
        answer: Verdicts on the rules of a source.
        subject: Title of the figure.

    Raises:
        EncoreError: Matplotlib is not installed.
    """
    require_packages("matplotlib", work="plot()")
    from matplotlib.figure import Figure

    class NotebookFigure(Figure):
        """Figure that a notebook shows without pyplot."""

        def _repr_png_(self) -> bytes:
            image = BytesIO()
            self.savefig(image, format="png")
            return image.getvalue()

    figure = NotebookFigure(figsize=(8, 1.5 + 0.3 * len(answer.rows)), layout="constrained")
    axes = figure.subplots()
    for position, row in enumerate(answer.rows):
        value, low, high = row.untied.value, row.untied.low, row.untied.high
        colour = _COLOURS.get(row.verdict, "#777777")
        if value is not None and low is not None and high is not None:
            axes.plot([low, high], [position, position], color=colour)
            axes.plot([value], [position], "o", color=colour)
        axes.annotate(
            row.verdict, (1.01, position), xycoords=("axes fraction", "data"), va="center"
        )
    names = [f"{row.number} {printable(row.rule_id)}" for row in answer.rows]
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_title(subject)
    axes.axvline(0.5, color="#777777", linestyle="--")
    axes.set_xlabel("untied accuracy, with an interval that holds for all rules at once")
    return figure
