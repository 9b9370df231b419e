"""`encore weights`: turn statistics of rules into a weight for each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from encore.cli.analyze import (
    JudgeOption,
    RatingsArgument,
    exit_if_incomplete,
    number,
    percent,
)
from encore.cli.output import JsonOption, RunOption, compact_table, out, print_json, warn
from encore.weighting import SCHEMES

if TYPE_CHECKING:
    from rich.table import Table

    from encore.weighting.weigh import WeighedRules

_DEFAULT_TAU = 2.0


def weights(
    ratings: RatingsArgument,
    scheme: Annotated[str, typer.Option(help=f"One of: {', '.join(SCHEMES)}.")] = "encore",
    tau: Annotated[
        float | None,
        typer.Option(
            help="Temperature of scheme encore: large approaches uniform weights, small the rule "
            f"of lowest entropy. Default: {_DEFAULT_TAU:g}, the paper's."
        ),
    ] = None,
    run: RunOption = None,
    judge: JudgeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Weigh the rules, all sources pooled; weights are non-negative and sum to 1.

    The effective weight is the weight times the standard deviation of rating(chosen) −
    rating(rejected): how much the rule really moves the composed reward. A rule whose ratings are
    all the same takes the largest weight (entropy 0) and moves nothing.

    Exit code 3: the run is not complete; the weights are those of its finished shards.
    """
    from encore.weighting import load_scheme
    from encore.weighting.scheme import SchemeOptions
    from encore.weighting.weigh import weigh_rules

    if tau is not None and "tau" not in load_scheme(scheme).options:
        warn(f"scheme {scheme} has no temperature: --tau {tau:g} changes nothing")
    options = SchemeOptions(tau=_DEFAULT_TAU if tau is None else tau)
    weighed = weigh_rules(ratings, scheme=scheme, options=options, run=run, judge=judge)
    if as_json:
        print_json(weighed.vector.as_dict())
    else:
        out.print(weights_table(weighed))
    for rule, weight in zip(weighed.rules, weighed.vector.weights, strict=True):
        if rule.num_levels == 1:
            warn(
                f"rule {rule.rule_id} is constant: its weight {weight:.3f} has no effect on any "
                "ranking; consider leaving the rule out"
            )
    exit_if_incomplete(weighed.num_missing_shards, weighed.num_shards)


def weights_table(weighed: WeighedRules) -> Table:
    """Weight, effective weight, entropy, accuracy, ties and coverage of every rule."""
    columns = (
        *("rule", "weight", "w × sd", "entropy"),
        *("levels", "half", "untied", "ties", "cover"),
    )
    rows = [
        (
            rule.rule_id,
            number(weight, digits=4),
            number(None if sd is None else weight * sd, digits=4),
            number(rule.entropy_nats),
            rule.num_levels,
            percent(rule.accuracy.half),
            percent(rule.accuracy.untied),
            percent(rule.tie_rate),
            percent(rule.coverage),
        )
        for rule, weight, sd in zip(
            weighed.rules, weighed.vector.weights, weighed.margin_sds, strict=True
        )
    ]
    params = ", ".join(f"{name} {value}" for name, value in weighed.vector.params.items())
    title = f"Weights by scheme {weighed.vector.scheme}" + (f" ({params})" if params else "")
    return compact_table(columns, rows, title=title)
