"""`encore rules lint`: what to look at in a pool or a rule set."""

from __future__ import annotations

from encore.cli.output import compact_table, show_result
from encore.core.number_text import counted
from encore.core.options import JsonOption, command
from encore.core.terminal import say
from encore.rules.rules_config import LintConfig


@command
def rules_lint(config: LintConfig, *, json: JsonOption = False) -> None:
    """Look through a pool or a rule set: empty and repeated texts, double and opposed rules.

    Two checks are guesses from English words, and each finding shows what it rests on. two-things:
    a rule that asks for a second thing after "and", which a judge cannot rate with one number.
    opposed: a preference text that asks for the opposite of the rating text.

    Examples: `encore rules lint encore-20`, `encore rules lint my-rules.toml`.
    """
    from encore.rules.lint import lint

    found = lint(config)
    findings = [[*finding.values()] for finding in found["findings"]]
    table = compact_table(("rule", "check", "field", "what"), findings)
    show_result(found, [table], found["notes"], as_json=json)
    num_rules = counted(found["num_rules"], "rule")
    say(f"{counted(len(findings), 'finding')} in {num_rules} of {found['name']}")
