"""Print people's rates: by the judge alone, by people alone, and corrected."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from encore.cli.output import Renderable, TableColumns, estimate_of, record_table
from encore.core import number_text
from encore.core.number_text import NONE, number

if TYPE_CHECKING:
    from encore.people.rates_by_rule import RuleRate

#: The judge is said to save labels only if the interval of its saving begins above this.
_SAVES_LABELS = 1.1


def rate_lines(rates: Sequence[RuleRate], rule_ids: Sequence[str]) -> Iterator[Renderable]:
    """Yield the table of people's rates, and sentences on what the judges save."""
    whole_percent = partial(number_text.percent, digits=0, unit="")
    one_digit = partial(number, digits=1)
    columns: TableColumns = {
        "#": lambda row: rule_ids.index(row.rule_id) + 1,
        **({"judge": "who"} if any(row.who for row in rates) else {}),
        "labels": "rate.num_labels",
        "of": "rate.num_responses",
        "judge alone": estimate_of("rate.judge", whole_percent),
        "people alone": estimate_of("rate.people", whole_percent),
        "corrected": estimate_of("rate.corrected", whole_percent),
        "saved": _saved_labels,
        "a label is worth": estimate_of("forecast", one_digit),
    }
    if not rates:
        return
    yield record_table(rates, columns, title="People's rate by rule, in percent (95 %)")
    yield (
        "A rate is the mean label, for labels of yes and no the share of yes. "
        "The interval of the judge alone leaves its errors out; trust the corrected one. Saved are "
        "the labels that people alone would need besides for an interval as narrow. A further "
        "label is worth so many without the judge, while few responses have one.\n"
    )
    if uncorrected := _numbers({row.rule_id for row in rates if _is_uncorrected(row)}, rule_ids):
        yield (
            f"Under rule {uncorrected} nothing was corrected, and the figures are those of people "
            "alone: the judge gives one rating only, or its levels have too few labels each.\n"
        )
    idle = {row.rule_id for row in rates} - {row.rule_id for row in rates if _saves_labels(row)}
    if idle:
        yield f"No judge is shown to save labels under rule {_numbers(idle, rule_ids)}.\n"


def _numbers(chosen: Collection[str], rule_ids: Sequence[str]) -> str:
    """Return the numbers of some rules as text, ascending."""
    return ", ".join(map(str, sorted(rule_ids.index(rule_id) + 1 for rule_id in chosen)))


def _is_uncorrected(row: RuleRate) -> bool:
    """Return True if all labels count as of one level of the judge, so that none is corrected."""
    return row.rate.people.value is not None and row.rate.corrected == row.rate.people


def _saved_labels(row: RuleRate) -> str:
    """Return how many labels the judge saved; negative where it made the interval wider."""
    times = row.rate.times
    return NONE if times is None else number(row.rate.num_labels * (times - 1), digits=0)


def _saves_labels(row: RuleRate) -> bool:
    return (row.forecast.low or 0) > _SAVES_LABELS
