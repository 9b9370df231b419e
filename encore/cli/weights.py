"""`encore weights`: turn statistics of rules into a weight for each, by one scheme or by all."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from encore.cli.analyze import JudgeOption, RatingsArgument, exit_if_incomplete, percent
from encore.cli.output import JsonOption, RunOption, out, print_json, say, warn, warn_of_synthetic
from encore.cli.scheme_options import warn_of_unused
from encore.cli.weight_tables import (
    comparison_tables,
    leave_one_out_table,
    sweep_table,
    weights_table,
)
from encore.weighting import SCHEMES
from encore.weighting.scheme import DEFAULT_K, DEFAULT_TAU

if TYPE_CHECKING:
    from encore.weighting.scheme import SchemeOptions
    from encore.weighting.weigh import WeighedRules

__all__ = ["weights", "weights_table"]

View = Literal["vector", "compare", "sweep", "leave-one-out"]

_DEFAULT_SCHEME = "encore"
_DEFAULT_SEED = 0


def weights(
    ratings: RatingsArgument,
    scheme: Annotated[
        str | None, typer.Option(help=f"One of: {', '.join(SCHEMES)}. Default: {_DEFAULT_SCHEME}.")
    ] = None,
    tau: Annotated[
        float | None,
        typer.Option(
            help="Temperature of scheme encore: large approaches uniform weights, small the rule "
            f"of lowest entropy. Default: {DEFAULT_TAU:g}, the paper's."
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            help="Of schemes random and random-k, and of the folds that hold out pairs. "
            f"Default: {_DEFAULT_SEED}."
        ),
    ] = None,
    k: Annotated[
        int | None,
        typer.Option(
            "--k",
            help="How many rules top-k and random-k select. "
            f"Default: {DEFAULT_K}, as in the paper's appendix.",
        ),
    ] = None,
    rule: Annotated[
        str | None, typer.Option(metavar="RULE_ID", help="The rule of scheme single.")
    ] = None,
    compare: Annotated[
        bool, typer.Option("--compare", help="All schemes side by side, with what chance reaches.")
    ] = False,
    sweep: Annotated[
        bool, typer.Option("--sweep", help="Scheme encore at one temperature after another.")
    ] = False,
    leave_one_out: Annotated[
        bool,
        typer.Option("--leave-one-out", help="What each rule does for the composed accuracy."),
    ] = False,
    run: RunOption = None,
    judge: JudgeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Weigh the rules, all sources pooled; weights are non-negative and sum to 1.

    The effective weight is the weight times the standard deviation of
    rating(chosen) − rating(rejected): how much the rule really moves the
    composed reward. A rule whose ratings are all the same takes the largest
    weight (entropy 0) and moves nothing.

    Leakage says what a scheme has seen of the answers it is measured by.
    Scheme bradley-terry learns from people's preferences, so read its accuracy
    on held-out pairs: five folds, every prompt whole in one.

    For example:

    encore weights study --tau 0.5 --json

    encore weights study --scheme top-k --k 3

    encore weights study --compare

    Exit code 3: the run is not complete; the weights are those of its finished
    shards.
    """
    from encore.weighting.scheme import SchemeOptions

    warn_of_synthetic(ratings, run=run)
    view = _view(compare=compare, sweep=sweep, leave_one_out=leave_one_out)
    given = {"tau": tau, "seed": seed, "k": k, "rule": rule}
    options = SchemeOptions(
        tau=DEFAULT_TAU if tau is None else tau,
        seed=_DEFAULT_SEED if seed is None else seed,
        k=DEFAULT_K if k is None else k,
        rule=rule,
    )
    if view == "compare":
        if scheme is not None:
            warn(f"--compare shows every scheme: --scheme {scheme} changes nothing")
        _compare(ratings, options, run=run, judge=judge, as_json=as_json)
        return
    if view == "sweep":
        if scheme not in (None, _DEFAULT_SCHEME):
            raise typer.BadParameter(f"--sweep is of scheme encore; {scheme} has no temperature")
        warn_of_unused(given, used=("tau",), who="--sweep")
        _sweep(ratings, tau, run=run, judge=judge, as_json=as_json)
        return
    from encore.weighting import load_scheme

    loaded = load_scheme(scheme or _DEFAULT_SCHEME)
    # The seed also draws the folds of a scheme that learns from labels.
    used = (*loaded.options, *(("seed",) if loaded.uses_labels else ()))
    warn_of_unused(given, used=used, who=f"scheme {loaded.name}")
    show = _vector if view == "vector" else _leave_one_out
    show(ratings, loaded.name, options, run=run, judge=judge, as_json=as_json)


def _view(*, compare: bool, sweep: bool, leave_one_out: bool) -> View:
    asked: dict[View, bool] = {
        "compare": compare,
        "sweep": sweep,
        "leave-one-out": leave_one_out,
    }
    views = [view for view, is_asked in asked.items() if is_asked]
    if len(views) > 1:
        shown = " and ".join(f"--{view}" for view in views)
        raise typer.BadParameter(f"{shown} are different views; ask for one at a time")
    return views[0] if views else "vector"


def _vector(
    ratings: Path,
    scheme: str,
    options: SchemeOptions,
    *,
    run: str | None,
    judge: str | None,
    as_json: bool,
) -> None:
    from encore.weighting.comparison import fold_notes
    from encore.weighting.weigh import weigh_rules

    weighed = weigh_rules(ratings, scheme=scheme, options=options, run=run, judge=judge)
    if as_json:
        print_json(weighed.as_dict())
    else:
        out.print(weights_table(weighed))
        _print_held_out(weighed)
    if weighed.uses_labels:
        _say_notes(list(fold_notes(scheme, weighed.held_out)))
    _warn_of_effects(weighed, options)
    exit_if_incomplete(weighed.num_missing_shards, weighed.num_shards)


def _print_held_out(weighed: WeighedRules) -> None:
    test = weighed.held_out
    if test is None:
        return
    low, high = test.outcome.interval
    out.print(
        f"on held-out pairs: half {percent(test.accuracy.half)} (95 %: {percent(low)} to "
        f"{percent(high)}), untied {percent(test.accuracy.untied)}; {test.outcome.num_pairs} "
        f"pairs, {test.num_folds} folds grouped by {test.grouped_by}"
    )


def _warn_of_effects(weighed: WeighedRules, options: SchemeOptions) -> None:
    params = weighed.vector.params
    if "k" in params and options.k > len(weighed.rules):
        warn(
            f"--k {options.k}: there are only {len(weighed.rules)} rules, so all of them weigh "
            "the same"
        )
    if params.get("scale") == 0:
        warn(
            "no rule agrees with these labels: the best scale is 0, at which all weights are "
            "equally good; they are shown as uniform"
        )
    if params.get("num_pairs_left_out"):
        warn(
            f"{params['num_pairs_left_out']} pairs lack a rating under some rule; the weights are "
            f"learnt from the other {params['num_pairs']}"
        )
    for rule, weight in zip(weighed.rules, weighed.vector.weights, strict=True):
        if rule.num_levels == 1:
            warn(
                f"rule {rule.rule_id} is constant: its weight {weight:.3f} has no effect on any "
                "ranking; consider leaving the rule out"
            )


def _compare(
    ratings: Path, options: SchemeOptions, *, run: str | None, judge: str | None, as_json: bool
) -> None:
    from encore.weighting.comparison import compare_schemes

    comparison = compare_schemes(ratings, options=options, run=run, judge=judge)
    if as_json:
        print_json(comparison.as_dict())
    else:
        for table in comparison_tables(comparison):
            out.print(table)
    if options.rule is None:
        say("note: single is the rule of lowest entropy; name another with --rule")
    _say_notes(comparison.notes)
    exit_if_incomplete(comparison.num_missing_shards, comparison.num_shards)


def _sweep(
    ratings: Path, tau: float | None, *, run: str | None, judge: str | None, as_json: bool
) -> None:
    from encore.weighting.sweep import DEFAULT_TAUS, tau_sweep

    taus = sorted({*DEFAULT_TAUS, *(() if tau is None else (tau,))})
    found = tau_sweep(ratings, taus=taus, run=run, judge=judge)
    if as_json:
        print_json(found.as_dict())
    else:
        out.print(sweep_table(found))
    _say_notes(found.notes)
    exit_if_incomplete(found.num_missing_shards, found.num_shards)


def _leave_one_out(
    ratings: Path,
    scheme: str,
    options: SchemeOptions,
    *,
    run: str | None,
    judge: str | None,
    as_json: bool,
) -> None:
    from encore.weighting import load_scheme
    from encore.weighting.leave_one_out import leave_each_out
    from encore.weighting.opening import open_evidence

    with open_evidence(ratings, run=run, judge=judge) as evidence:
        found = leave_each_out(evidence, scheme=load_scheme(scheme), options=options)
    if as_json:
        print_json(found.as_dict())
    else:
        out.print(leave_one_out_table(found))
    _say_notes(found.notes)
    exit_if_incomplete(found.num_missing_shards, found.num_shards)


def _say_notes(notes: Sequence[str]) -> None:
    for note in notes:
        say(f"note: {note}")
