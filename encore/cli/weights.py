"""`encore weights`: turn statistics of rules into a weight for each, by one scheme or by all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from encore.cli.output import exit_if_incomplete, warn_of_synthetic
from encore.cli.scheme_options import warn_of_unused
from encore.options import JsonOption, UsageError, command
from encore.terminal import out, print_json, say, warn
from encore.weighting.weights_config import SchemeOptions, WeightsConfig

if TYPE_CHECKING:
    from encore.warehouse import Ratings
    from encore.weighting.weigh import WeighedRules


@command
def weights(config: WeightsConfig, *, json: JsonOption = False) -> None:
    """Weigh the rules, all sources pooled; weights are non-negative and sum to 1.

    The effective weight is the weight times the standard deviation of
    rating(chosen) - rating(rejected): how much the rule really moves the composed reward. A rule
    whose ratings are all the same takes the largest weight (entropy 0) and moves nothing.

    Leakage says what a scheme has seen of the answers it is measured by. Scheme bradley-terry
    learns from people's preferences, so read its accuracy on held-out pairs: five folds, every
    prompt whole in one.

    Examples: `encore weights study --tau 0.5 --json`,
    `encore weights study --scheme top-k --k 3`, `encore weights study --compare`.

    Exit code 3: the run is not complete; the weights are those of its finished shards.
    """
    from encore.warehouse import open_ratings
    from encore.weighting import load_scheme

    if config.compare and config.sweep:
        raise UsageError("--compare and --sweep are different views; ask for one at a time")
    warn_of_synthetic(config.ratings, run=config.run)
    options = SchemeOptions(**{name: getattr(config, name) for name in SchemeOptions.model_fields})
    given = {
        name: getattr(config, name)
        for name in SchemeOptions.model_fields
        if name in config.model_fields_set
    }
    loaded = load_scheme(config.scheme)
    if config.compare:
        if "scheme" in config.model_fields_set:
            warn(f"--compare shows every scheme: --scheme {config.scheme} changes nothing")
    elif config.sweep:
        if config.scheme != "encore":
            raise UsageError(f"--sweep is of scheme encore; {config.scheme} has no temperature")
        warn_of_unused(given, used=("tau",), who="--sweep")
    else:
        # The seed also draws the folds of a scheme that learns from labels.
        used = (*loaded.options, *(("seed",) if loaded.uses_labels else ()))
        warn_of_unused(given, used=used, who=f"scheme {loaded.name}")
    ratings = open_ratings(config.ratings, run=config.run, judge=config.judge)
    if config.compare:
        _compare(ratings, options, as_json=json)
    elif config.sweep:
        _sweep(ratings, options, as_json=json)
    else:
        _vector(ratings, loaded.name, options, as_json=json)


def _vector(ratings: Ratings, scheme: str, options: SchemeOptions, *, as_json: bool) -> None:
    from encore.cli.weight_tables import held_out_line, weights_table
    from encore.weighting.comparison import fold_notes
    from encore.weighting.weigh import weigh_rules

    weighed = weigh_rules(ratings, scheme=scheme, options=options)
    if as_json:
        print_json(weighed.as_dict())
    else:
        out.print(weights_table(weighed))
        if weighed.held_out is not None:
            out.print(held_out_line(weighed.held_out))
    if weighed.uses_labels:
        _say_notes(fold_notes(scheme, weighed.held_out))
    _warn_of_effects(weighed, options)
    exit_if_incomplete(weighed.num_missing_shards, weighed.num_shards)


def _warn_of_effects(weighed: WeighedRules, options: SchemeOptions) -> None:
    params = weighed.vector.params
    if "k" in params and options.k > len(weighed.rules):
        warn(f"--k {options.k}: there are only {len(weighed.rules)} rules; all weigh the same")
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


def _compare(ratings: Ratings, options: SchemeOptions, *, as_json: bool) -> None:
    from encore.cli.weight_tables import comparison_tables
    from encore.weighting.comparison import compare_schemes

    comparison = compare_schemes(ratings, options=options)
    if as_json:
        print_json(comparison.as_dict())
    else:
        for table in comparison_tables(comparison):
            out.print(table)
    if options.rule is None:
        say("note: single is the rule of lowest entropy; name another with --rule")
    _say_notes(comparison.notes)
    exit_if_incomplete(comparison.num_missing_shards, comparison.num_shards)


def _sweep(ratings: Ratings, options: SchemeOptions, *, as_json: bool) -> None:
    from encore.cli.weight_tables import sweep_table
    from encore.weighting.opening import open_evidence
    from encore.weighting.sweep import DEFAULT_TAUS, sweep

    with open_evidence(ratings) as evidence:
        found = sweep(evidence, taus=sorted({*DEFAULT_TAUS, options.tau}))
    if as_json:
        print_json(found.as_dict())
    else:
        out.print(sweep_table(found))
    _say_notes(found.notes)
    exit_if_incomplete(found.num_missing_shards, found.num_shards)


def _say_notes(notes: Iterable[str]) -> None:
    for note in notes:
        say(f"note: {note}")
