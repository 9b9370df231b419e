"""`encore rules draft`: let a judge write principles as rules, and accept its drafts."""

from __future__ import annotations

from encore.core.number_text import counted
from encore.core.options import JsonOption, command
from encore.core.terminal import print_json, say, terminal_reporter, warn
from encore.rules.rules_config import DraftConfig


@command
def rules_draft(config: DraftConfig, *, json: JsonOption = False) -> None:
    """Let a judge write the four texts of each principle as a draft, or accept drafts.

    A rule that has all four texts does not change. A reply that is not the four texts as JSON is
    reported with the reason, and the rule is still a principle. A rule written by a judge is a
    draft until a person has read and accepted it: rating refuses drafts. You may edit drafts in
    the file.

    Examples: encore rules draft selected.toml --judge ./my-judge --output rules.toml

    encore rules draft rules.toml --accept respect-for-privacy --accept honesty
    """
    from encore.rules.draft import accept_drafts, draft_rules

    if config.accept:
        accepted = accept_drafts(config.pool, config.accept)
        if json:
            print_json({"output": str(config.pool), "accepted": accepted})
        say(f"{config.pool}: {counted(len(accepted), 'draft')} accepted")
        return
    with terminal_reporter() as reporter:
        report = draft_rules(config, reporter=reporter)
    if json:
        print_json(report)
    if "judge" in report:
        num_drafted = len(report["drafted"])
        say(f"judge {report['judge']}: {num_drafted} drafted; replies: {report['run_dir']}")
    for rule_id, reason in report["failed"].items():
        warn(f"rule {rule_id} is still a principle: {reason.replace('_', ' ')}")
    num_rules = counted(report["num_rules"], "rule")
    say(f"{config.output}: {num_rules}, {report['num_drafts']} of them drafts")
    if report["num_drafts"]:
        say(f"next: read them, then encore rules draft {config.output} --accept RULE_ID")
