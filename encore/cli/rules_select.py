"""`encore rules select`: the rules of highest mean importance."""

from __future__ import annotations

from typing import TYPE_CHECKING

from encore.cli.output import NOTHING, compact_table, number, span
from encore.curation.curation_config import SelectConfig
from encore.options import JsonOption, command
from encore.terminal import out, print_json, say, terminal_reporter, visible, warn

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

    with terminal_reporter():
        selection = select_rules(config)
    if json:
        print_json(selection.as_dict())
    else:
        _print_tables(selection)
    for note in selection.notes:
        warn(note)
    say(f"{selection.output}: {len(selection.selected)} rules; all rules: {selection.table}")


def _print_tables(selection: Selection) -> None:
    rows = [
        (rule.title, str(rule.rank), number(rule.importance), rule.num_ratings, rule.source)
        for rule in selection.selected
    ]
    columns = ("rule", "rank", "importance", "ratings", "pool")
    out.print(compact_table(columns, rows, title="Selected rules"))
    rows = [
        (
            name,
            number(found.r.value),
            span(found.r.low, found.r.high, number),
            found.num_pairs,
            paper,
        )
        for name, found, paper in (
            ("people and judges", selection.people_and_judges, "0.71"),
            ("among people", selection.among_people, NOTHING),
            ("among judges", selection.among_judges, NOTHING),
        )
    ]
    raters = f"{selection.num_people} people, {selection.num_judges} judges"
    out.print(
        compact_table(
            ("agreement", "mean r", "95 % interval", "pairs of raters", "the paper"),
            rows,
            title=visible(f"Agreement of {raters}"),
        )
    )
