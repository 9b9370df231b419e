"""`encore rules select`: select the rules of highest mean importance."""

from __future__ import annotations

from encore.cli.output import compact_table, show_result, span
from encore.core.number_text import number
from encore.core.options import JsonOption, command
from encore.core.terminal import say
from encore.rules.rules_config import SelectConfig

_RULE_COLUMNS = ("rule", "importance", "ratings", "pool")
_AGREEMENT_COLUMNS = ("agreement", "mean r", "95 % interval", "pairs")
_AGREEMENT = {
    "people_and_judges": "people and judges (the paper: 0.71)",
    "among_people": "among people",
    "among_judges": "among judges",
}


@command
def rules_select(config: SelectConfig, *, json: JsonOption = False) -> None:
    """Write the N rules of highest mean importance as a rule set, and show the raters' agreement.

    Every judge and every person has the same weight. Rules of equal importance are sorted by their
    number of ratings, then by the pool's order. Agreement is the mean of Pearson's r over pairs of
    raters, with its 95 % interval over resampled rules.

    Example: encore rules select importance --top 10 --output rules.toml
    """
    from encore.rules.select import select_rules

    selection = select_rules(config)
    rules = [
        (row["title"], row["importance"], len(row["ratings"]), row["source"])
        for row in selection["rules"][: config.top]
    ]
    rows = {name: selection[key].values() for key, name in _AGREEMENT.items()}
    agreement = [
        (name, r["value"], span(r["low"], r["high"], number), num_pairs)
        for name, (r, num_pairs) in rows.items()
    ]
    tables = (
        compact_table(_RULE_COLUMNS, rules, title="Selected"),
        compact_table(_AGREEMENT_COLUMNS, agreement),
    )
    show_result(selection, tables, selection["notes"], as_json=json)
    say(f"{config.output}: {config.top} rules; all rules: {selection['table']}")
