"""`encore rules build`: a recipe from pools of principles to rule sets."""

from __future__ import annotations

from dataclasses import asdict

from encore.cli.output import amount, compact_table, number, span
from encore.curation.curation_config import BuildConfig
from encore.options import JsonOption, command
from encore.terminal import out, print_json, say, terminal_reporter, warn


@command
def rules_build(config: BuildConfig, *, json: JsonOption = False) -> None:
    """Go from pools to rule sets by a recipe: merge, dedupe, rate-importance, select.

    The recipe `paper` repeats the paper's 259 principles, 87 distinct ones, 20 and 10 rules from
    pools that you supply, and shows its counts beside yours. Run the same command again after a
    crash or a change: only what has changed is done again.

    Example: encore rules build my-recipe.toml --output my-rules
    """
    from encore.curation.build import build_rules

    with terminal_reporter() as reporter:
        report = build_rules(config, reporter=reporter)
    agreement = report.selection.people_and_judges
    if json:
        print_json(asdict(report) | {"selection": report.selection.as_dict()})
    else:
        rows = [(one.step, one.num_rules, amount(one.paper), one.file) for one in report.steps]
        out.print(compact_table(("step", "rules", "the paper", "file"), rows))
    for line in report.done:
        say(line)
    if agreement.r.value is not None:
        interval = span(agreement.r.low, agreement.r.high, number)
        say(f"people and judges: mean r {number(agreement.r.value)} ({interval}); the paper: 0.71")
    for note in report.selection.notes:
        warn(note)
