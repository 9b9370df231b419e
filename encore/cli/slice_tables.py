"""Tables of `encore analyze --by`: each rule in each slice, and where slices differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from encore.analysis.slices import SlicedAnswer
from encore.cli.output import Renderable, compact_table, percent, rule_legend, span
from encore.core.number_text import first_names, p_value

_HALF = 0.5


def slice_tables(answer: SlicedAnswer, *, rule_ids: Sequence[str]) -> Iterator[Renderable]:
    """Yield a table of the rules in each slice, the test of each rule, and what differs.

    Args:
        answer: The rules in each slice, with their tests.
        rule_ids: All rules; their order gives their numbers.
    """
    for name, size in answer.slices.items():
        rows = [
            (
                rule_ids.index(row.rule_id) + 1,
                percent(row.untied.value),
                span(row.untied.low, row.untied.high),
                row.num_untied_pairs,
            )
            for row in answer.rows
            if row.slice == name
        ]
        title = f"{answer.column} {name}: {size:,} pairs"
        yield compact_table(("#", "untied", "95 %", "untied pairs"), rows, title=title)
        against = [
            f"{row.rule_id} ({percent(row.untied.value)})"
            for row in answer.rows
            if row.slice == name and row.untied.high is not None and row.untied.high < _HALF
        ]
        if against:
            yield (
                f"In {name}, these rules prefer what people do not (each interval lies below "
                f"50 %): {first_names(against)}.\n"
            )
    tests = [
        (
            rule_ids.index(test.rule_id) + 1,
            p_value(test.p_value),
            p_value(test.corrected_p),
            "differs" if test.differs else "",
        )
        for test in answer.tests
    ]
    title = f"Is a rule's accuracy the same in all slices of {answer.column}?"
    yield compact_table(("#", "p", "p for all rules", ""), tests, title=title)
    yield rule_legend(rule_ids)
    differing = [test.rule_id for test in answer.tests if test.differs]
    yield (
        f"By {answer.column}, these rules agree with people more often in one slice than in "
        f"another: {first_names(differing)}."
        if differing
        else f"By {answer.column}, no rule is shown to differ between slices."
    )
    yield ""
