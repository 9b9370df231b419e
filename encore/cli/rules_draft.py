"""`encore rules draft`: a judge writes principles as rules, a person accepts them."""

from __future__ import annotations

from encore.core.number_text import counted
from encore.core.options import JsonOption, command
from encore.core.terminal import print_json, say, terminal_reporter, warn
from encore.rules.rules_config import DraftConfig


@command
def rules_draft(config: DraftConfig, *, json: JsonOption = False) -> None:
    """Have a judge write the four texts of each principle, as drafts; or accept drafts.

    A rule that has all four texts stays as it is. A reply that is not the four texts as JSON is a
    failure with its reason, and the rule stays a principle. What a judge wrote is a draft until a
    person has read and accepted it: rating refuses drafts. Drafts may be edited in the file.

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
        found = draft_rules(config, reporter=reporter)
    if json:
        print_json(found)
    if "judge" in found:
        say(f"judge {found['judge']}: {len(found['drafted'])} drafted; replies: {found['run_dir']}")
    for rule_id, reason in found["failed"].items():
        warn(f"rule {rule_id} stays a principle: {reason.replace('_', ' ')}")
    num_rules = counted(found["num_rules"], "rule")
    say(f"{config.output}: {num_rules}, {found['num_drafts']} of them drafts")
    if found["num_drafts"]:
        say(f"next: read them, then encore rules draft {config.output} --accept RULE_ID")
