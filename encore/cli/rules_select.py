"""`encore rules select`: the rules of highest mean importance."""

from __future__ import annotations

from typing import TYPE_CHECKING

from encore.cli.output import TableColumns, compact_table, number, record_table, span
from encore.curation.curation_config import SelectConfig
from encore.options import JsonOption, command
from encore.terminal import out, print_json, say, warn

if TYPE_CHECKING:
    from encore.curation.select import Selection


@command
def rules_select(config: SelectConfig, *, json: JsonOption = False) -> None:
    """Write the N rules of highest mean importance as a rule set; show how far raters agree.

    Every judge and every person counts alike. Of equal rules stands first the one that more raters
    rated, then the one that stands first in the pool. Agreement is the mean of Pearson's r over
    pairs of raters, with its 95 % interval over resampled rules.

    Example: encore rules select importance --top 10 --output rules.toml
    """
    from encore.curation.select import select_rules

    selection = select_rules(config)
    if json:
        print_json(selection.as_dict())
    else:
        _print_tables(selection)
    for note in selection.notes:
        warn(note)
    say(f"{selection.output}: {selection.num_selected} rules; all rules: {selection.table}")


def _print_tables(selection: Selection) -> None:
    rules: TableColumns = {
        "rule": "rule.title",
        "rank": "rank",
        "importance": "importance",
        "ratings": lambda one: len(one.ratings),
        "pool": "rule.source",
    }
    out.print(record_table(selection.rules[: selection.num_selected], rules, title="Selected"))
    agreement = {
        "people and judges (the paper: 0.71)": selection.people_and_judges,
        "among people": selection.among_people,
        "among judges": selection.among_judges,
    }
    rows = [
        (name, number(one.r.value), span(one.r.low, one.r.high, number), one.num_pairs)
        for name, one in agreement.items()
    ]
    columns = ("agreement", "mean r", "95 % interval", "pairs")
    title = f"People: {selection.num_people}; judges: {selection.num_judges}"
    out.print(compact_table(columns, rows, title=title))
