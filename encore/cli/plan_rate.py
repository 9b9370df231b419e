"""`encore plan rate`: what a rating run will take, before the judge is loaded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from encore.cli.output import Shown, compact_table, show_result
from encore.core.number_text import amount
from encore.core.options import JsonOption, command
from encore.core.terminal import terminal_reporter
from encore.rating.rating_plan_config import PlanRateConfig


@command
def plan_rate(config: PlanRateConfig, *, json: JsonOption = False) -> None:
    """What a rating run will take: calls, tokens by prompt layout, hours, money. Loads no weights.

    Prompts are made and tokenised as for the judge, those of at most 1,000 pairs, evenly from the
    shortest to the longest. Computed are the tokens that the engine's prefix cache does not save.
    Hours are without the engine's start. Money is that of what has a price; a service that bills
    cached tokens at less costs less.

    Examples: `encore plan rate study --judge ./my-judge --gpu h100-80 --count 4
    --price-gpu-hour 2.5`, `encore plan rate study --judge ./my-judge --calibrate 200`.
    """
    from encore.data.study import open_study
    from encore.rating.rating_plan import plan_rating

    with terminal_reporter() as reporter:
        planned = plan_rating(config, open_study(config.study), reporter=reporter)
    show_result(planned, _tables(planned), planned["notes"], as_json=json)


def _tables(plan: dict[str, Any]) -> Iterator[Shown]:
    counted, num_pairs = plan["num_counted_pairs"], plan["num_pairs"]
    yield (
        f"judge {plan['judge']}: {num_pairs:,} pairs x 2 responses x {plan['num_rules']} rules; "
        f"tokens counted on {counted:,} of the pairs"
    )
    rows = [
        (name + " *" * (name == plan["layout"]), *map(amount, row.values()))
        for name, row in plan["layouts"].items()
    ]
    columns = ("layout (* asked)", "calls", "prompt", "computed", "output", "hours", "money")
    yield compact_table(columns, rows, title="Tokens, hours and money")
    yield f"hours: {plan['hours_origin']}"
    if pilot := plan["calibration"]:
        yield (
            f"calibration: {pilot['tokens']['num_calls']:,} calls in {pilot['seconds']:.1f} s, "
            f"{pilot['tokens']['computed_tokens']:,} tokens computed; the engine took "
            f"{pilot['startup_seconds']:.1f} s to start"
        )
