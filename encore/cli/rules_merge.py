"""`encore rules merge`: merge pools of principles into one."""

from __future__ import annotations

from encore.cli.output import compact_table, show_result
from encore.core.number_text import counted
from encore.core.options import JsonOption, command
from encore.core.terminal import say
from encore.rules.rules_config import MergeConfig

#: Rows of the table of copies. The JSON and the written pool have all copies.
_MAX_COPY_ROWS = 20


@command
def rules_merge(config: MergeConfig, *, json: JsonOption = False) -> None:
    """Merge pools of principles; each rule records its source, licence and origin.

    A rule with the texts of an earlier rule is a copy, even under another title: the first is
    kept, in the order of the pools, and lists the others in `merged_from`. Two rules with one id
    and different texts are both kept; the id of the later rule gets a suffix. Records without a
    text are left out. The output counts all of these.

    Examples: `encore rules merge constitution.csv rbr=propositions.toml --output pool.toml
    --licence rbr=MIT`, `encore rules merge encore-20 my-rules.jsonl --output pool.toml`.
    """
    from encore.rules.merge import merge

    merged = merge(config)
    columns = ("pool", "rules", "copies", "empty")
    copies = [
        (copy["rule_id"], f"{copy['pool']}, {copy['origin']}", copy["kept"])
        for copy in merged["copies"][:_MAX_COPY_ROWS]
    ]
    tables = (
        compact_table(columns, [[*pool.values()] for pool in merged["pools"]]),
        compact_table(("copy", "from", "kept"), copies, title="Copies"),
    )
    show_result(merged, tables, merged["notes"], as_json=json)
    say(f"{counted(merged['num_rules'], 'rule')} in {config.output}")
