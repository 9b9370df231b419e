"""`encore rules dedupe`: near-duplicates of a pool are dropped."""

from __future__ import annotations

from encore.cli.output import compact_table, show_result
from encore.core.number_text import counted
from encore.core.options import JsonOption, command
from encore.core.terminal import say, terminal_reporter
from encore.rules.rules_config import DedupeConfig


@command
def rules_dedupe(config: DedupeConfig, *, json: JsonOption = False) -> None:
    """Drop rules that say nearly the same as an earlier one: the cosine of sentence embeddings.

    Compared are description and rating text. Rules are gone through in the file's order: one stays
    unless it is above the threshold to one before it that stays. So the first wording stays; put
    the pool whose words you want first when you merge. The number of rules is shown for a range of
    thresholds.

    Embeddings hardly see a negation. A dropped rule that may say the opposite of the one that stays
    is marked with "opposite?": read these.

    Example: `encore rules dedupe pool.toml --output distinct.toml --threshold 0.8`.
    """
    from encore.rules.dedupe import dedupe

    with terminal_reporter() as reporter:
        found = dedupe(config, reporter=reporter)
    rows = []
    for cluster in found["clusters"]:
        for one in cluster["dropped"]:
            mark = "opposite?" if one["may_be_opposite"] else ""
            rows.append((one["title"], cluster["title"], one["similarity"], mark))
    counts = found["num_rules_at"].items()
    tables = (
        compact_table(("dropped", "stays", "cosine", ""), rows, title="Near-duplicates"),
        compact_table(("threshold", "rules"), counts, title="Rules by threshold"),
    )
    show_result(found, tables, found["notes"], as_json=json)
    say(
        f"{counted(found['num_rules'], 'rule')} of {found['num_before']:,} in {config.output}, "
        f"threshold {config.threshold:g}"
    )
