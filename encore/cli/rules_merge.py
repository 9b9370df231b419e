"""`encore rules merge`: pools of principles become one."""

from __future__ import annotations

from encore.cli.output import compact_table, show_result
from encore.core.number_text import counted
from encore.core.options import JsonOption, command
from encore.core.terminal import say
from encore.rules.rules_config import MergeConfig

#: So many copies are shown; all of them stand in the JSON and in the file.
_MAX_SHOWN = 20


@command
def rules_merge(config: MergeConfig, *, json: JsonOption = False) -> None:
    """Put pools of principles together; each rule keeps its source, licence and place in it.

    A rule with the texts of an earlier one is a copy, also under another name: the first stays, in
    the order of the pools, and remembers the others in `merged_from`. Two rules with one id and
    different texts both stay; the later one's id gets a suffix. Records without a text are left
    out. All of it is counted and shown.

    Examples: `encore rules merge constitution.csv rbr=propositions.toml --output pool.toml
    --licence rbr=MIT`, `encore rules merge encore-20 my-rules.jsonl --output pool.toml`.
    """
    from encore.rules.merge import merge

    merged = merge(config)
    columns = ("pool", "rules", "copies", "empty")
    copies = [
        (one["rule_id"], f"{one['pool']}, {one['origin']}", one["kept"])
        for one in merged["copies"][:_MAX_SHOWN]
    ]
    tables = (
        compact_table(columns, [[*pool.values()] for pool in merged["pools"]]),
        compact_table(("copy", "from", "stays"), copies, title="Copies"),
    )
    show_result(merged, tables, merged["notes"], as_json=json)
    say(f"{counted(merged['num_rules'], 'rule')} in {config.output}")
