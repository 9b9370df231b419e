"""`encore rules rate-importance`: rate the importance of rules by judges and people."""

from __future__ import annotations

from encore.core.number_text import counted
from encore.core.options import JsonOption, command
from encore.core.terminal import print_json, say, terminal_reporter, warn
from encore.rules.rules_config import ImportanceConfig


@command
def rules_rate_importance(config: ImportanceConfig, *, json: JsonOption = False) -> None:
    """Rate how important and commonly applicable each rule is, by a judge and by people.

    One folder holds the ratings of several judges and people for one pool: run the command once
    for each judge. After a crash or Ctrl-C, run the same command again: it rates only the missing
    rules. A reply that is not a number from 0 to 1 is null; the report counts the reasons.

    Examples: encore rules rate-importance pool.toml --judge ./my-judge --output importance

    encore rules rate-importance pool.toml --people anna.csv --people ben.csv --output importance
    """
    from encore.rules.importance import rate_importance

    with terminal_reporter() as reporter:
        report = rate_importance(config, reporter=reporter)
    if json:
        print_json(report)
    num_rules = counted(report["num_rules"], "rule")
    if "judge" in report:
        say(
            f"judge {report['judge']}: {report['num_ratings']} of {num_rules} rated; shards: "
            f"{report['summary']}; run {report['run_key']}"
        )
        for reason, count in report["null_reasons"].items():
            warn(f"{counted(count, 'rule')} without a rating: {reason.replace('_', ' ')}")
    for annotator, count in report["num_answers"].items():
        say(f"annotator {annotator}: {count} of {num_rules} rated")
    say(f"next: encore rules select {config.output} --top 10 --output rules.toml")
