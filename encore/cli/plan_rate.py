"""`encore plan rate`: plan the cost of a rating run before the judge is loaded."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from encore.cli.output import Renderable, compact_table, show_result
from encore.core.bucket_addresses import is_address, shown_address
from encore.core.command_parser import JsonOption, UsageError, command
from encore.core.number_text import amount
from encore.core.terminal import say_next, terminal_reporter
from encore.data.study_options import StudyArgument
from encore.rating.rating_options import PlanRateConfig, ReplyOptions

if TYPE_CHECKING:
    from encore.rating.rating_plan import RatingPlan


@command
def plan_rate(
    study: StudyArgument, config: PlanRateConfig, replies: ReplyOptions, *, json: JsonOption = False
) -> None:
    """Plan calls, tokens by prompt layout, hours and money of a rating run. Loads no weights.

    The prompts of at most 1,000 pairs are made and tokenised as for the judge; the pairs are taken
    evenly from the shortest to the longest. Computed tokens are those that the engine's prefix
    cache does not save. Hours are measured on a pilot of --calibrate, without the engine's start.
    Money covers everything that has a price. Cached tokens count in full, although some services
    bill less for them.

    Examples: `encore plan rate study --judge ./my-judge --price-input 0.15 --price-output 0.6`,
    `encore plan rate study --judge ./my-judge --calibrate 200 --price-gpu-hour 2.5`.
    """
    from encore.data.study import open_study
    from encore.rating.rating_plan import plan_rating

    if config.pairs is not None and config.limit is not None:
        raise UsageError("give --pairs or --limit: both say for how many pairs the plan is")
    with terminal_reporter() as reporter:
        plan = plan_rating(open_study(study), config, replies, reporter=reporter)
    show_result(plan, _tables(plan), plan.notes, as_json=json)
    say_next("rate", *_rating_arguments(sys.argv[3:]))  # after `encore plan rate`


def _rating_arguments(arguments: Sequence[str]) -> Iterator[str]:
    """Yield the arguments of `encore rate` for the run that was planned with these arguments."""
    only_of_plans = {f"--{name}" for name in ("pairs", "count", "calibrate")}
    remaining = iter(arguments)
    for argument in remaining:
        name, has_value, _ = argument.partition("=")
        if name in only_of_plans and not has_value:
            next(remaining, None)
        elif argument != "--json" and name not in only_of_plans:
            yield shown_address(argument) if is_address(argument) else argument


def _tables(plan: RatingPlan) -> Iterator[Renderable]:
    yield (
        f"{plan.judge_title}: {plan.num_pairs:,} pairs x 2 responses x {plan.num_rules} rules; "
        f"tokens counted on {plan.num_counted_pairs:,} of the pairs"
    )
    rows = [
        (name + " *" * (name == plan.layout), *map(amount, asdict(cost).values()))
        for name, cost in plan.layouts.items()
    ]
    columns = ("layout", "calls", "prompt", "computed", "output", "hours", "money")
    yield compact_table(columns, rows, title="Tokens, hours and money")
    yield "* the layout of this plan; `encore rate --layout NAME` takes another one"
    yield f"hours: {plan.hours_origin}"
    if pilot := plan.calibration:
        started = "an earlier call made it"
        if pilot.startup_seconds is not None:
            started = f"the engine took {pilot.startup_seconds:.1f} s to start"
        yield (
            f"calibration: {pilot.tokens.num_calls:,} calls in {pilot.seconds:.1f} s, "
            f"{pilot.tokens.computed_tokens:,} tokens computed; {started}"
        )
