"""`encore rules rate-importance`: judges and people say how important each rule is."""

from __future__ import annotations

from encore.core.number_text import counted
from encore.core.options import JsonOption, command
from encore.core.terminal import print_json, say, terminal_reporter, warn
from encore.rules.rules_config import ImportanceConfig


@command
def rules_rate_importance(config: ImportanceConfig, *, json: JsonOption = False) -> None:
    """How important and commonly applicable is each rule? Ask a judge, read people's answers.

    One folder holds the ratings of several judges and people for one pool: run the command once
    for each judge. Run the same command again after a crash or Ctrl-C: a judge is asked only what
    is missing. A reply that is no number from 0 to 1 is null, with its reason.

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
