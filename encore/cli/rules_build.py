"""`encore rules build`: a recipe from pools of principles to rule sets."""

from __future__ import annotations

from encore.cli.output import compact_table, number, span
from encore.curation.curation_config import BuildConfig
from encore.options import JsonOption, command
from encore.terminal import out, print_json, say, terminal_reporter, warn


@command
def rules_build(config: BuildConfig, *, json: JsonOption = False) -> None:
    """Go from pools to rule sets by a recipe: merge, dedupe, rate-importance, select.

    The recipe `paper` repeats the paper's 259 principles, 87 distinct ones, 20 and 10 rules from
    pools that you supply, and shows its counts beside yours. Run the same command again after a
    crash or a change: judges are asked only what is missing.

    Example: encore rules build my-recipe.toml --output my-rules
    """
    from encore.curation.build import build_rules

    with terminal_reporter() as reporter:
        found = build_rules(config, reporter=reporter)
    selection = found["selection"]
    if json:
        print_json(found)
    else:
        rows = [[*one.values()] for one in found["steps"]]
        out.print(compact_table(("step", "rules", "the paper", "file"), rows))
    for one in found["importance"]:
        if "judge" in one:
            say(f"judge {one['judge']}: {one['num_ratings']} ratings; {one['summary']}")
    r = selection["people_and_judges"]["r"]
    if r["value"] is not None:
        interval = span(r["low"], r["high"], number)
        say(f"people and judges: mean r {number(r['value'])} ({interval}); the paper: 0.71")
    for note in selection["notes"]:
        warn(note)
