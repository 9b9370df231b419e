"""`encore rules lint`: check the texts of a pool or a rule set."""

from __future__ import annotations

from encore.cli.output import compact_table, show_result
from encore.core.number_text import counted
from encore.core.options import JsonOption, command
from encore.core.terminal import say
from encore.rules.rules_config import LintConfig


@command
def rules_lint(config: LintConfig, *, json: JsonOption = False) -> None:
    """Check a pool or a rule set for empty, repeated, double and contradictory texts.

    Two checks are guesses from English words; each finding quotes the words that it rests on.
    two-things: a rule asks for a second thing after "and", so one number cannot rate it. opposed:
    a preference text asks for the opposite of the rating text.

    Examples: `encore rules lint encore-20`, `encore rules lint my-rules.toml`.
    """
    from encore.rules.lint import lint

    report = lint(config)
    findings = [[*finding.values()] for finding in report["findings"]]
    table = compact_table(("rule", "check", "field", "finding"), findings)
    show_result(report, [table], report["notes"], as_json=json)
    num_rules = counted(report["num_rules"], "rule")
    say(f"{counted(len(findings), 'finding')} in {num_rules} of {report['name']}")
