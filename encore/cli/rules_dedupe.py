"""`encore rules dedupe`: drop near-duplicates of a pool."""

from __future__ import annotations

from encore.cli.output import compact_table, show_result
from encore.core.number_text import counted
from encore.core.options import JsonOption, command
from encore.core.terminal import say, terminal_reporter
from encore.rules.rules_config import DedupeConfig


@command
def rules_dedupe(config: DedupeConfig, *, json: JsonOption = False) -> None:
    """Drop rules that say nearly the same as an earlier rule, by cosine of sentence embeddings.

    The description and the rating text are compared, in the file's order: a rule is dropped if its
    cosine to an earlier kept rule is above the threshold. So the first wording is kept: when you
    merge pools, put the pool with the best wording first. A table shows the number of rules for a
    range of thresholds.

    Embeddings hardly notice a negation. A dropped rule that may say the opposite of the kept rule
    is marked "opposite?": read it.

    Example: `encore rules dedupe pool.toml --output distinct.toml --threshold 0.8`.
    """
    from encore.rules.dedupe import dedupe

    with terminal_reporter() as reporter:
        report = dedupe(config, reporter=reporter)
    rows = []
    for cluster in report["clusters"]:
        for rule in cluster["dropped"]:
            mark = "opposite?" if rule["may_be_opposite"] else ""
            rows.append((rule["title"], cluster["title"], rule["similarity"], mark))
    counts = report["num_rules_at"].items()
    tables = (
        compact_table(("dropped", "kept", "cosine", ""), rows, title="Near-duplicates"),
        compact_table(("threshold", "rules"), counts, title="Rules by threshold"),
    )
    show_result(report, tables, report["notes"], as_json=json)
    say(
        f"{counted(report['num_rules'], 'rule')} of {report['num_before']:,} in {config.output}, "
        f"threshold {config.threshold:g}"
    )
