"""`encore weights`: turn statistics of rules into a weight for each, by one scheme or by all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING

from encore.cli.output import opened_ratings, show_result, warn_of_unused
from encore.core.command_parser import JsonOption, UsageError, command
from encore.core.terminal import out, say, say_next
from encore.data.study import is_study
from encore.weighting.scheme_options import SchemeOptions
from encore.weighting.trainer_configs import TrainerWeights, trainer_config
from encore.weighting.weights_options import WeightsConfig

if TYPE_CHECKING:
    from encore.warehouse import Ratings
    from encore.weighting.weigh import WeighedRules

_VIEWS = ("compare", "sweep", "label_curve")


@command
def weights(config: WeightsConfig, *, json: JsonOption = False) -> None:
    """Weigh the rules, all sources pooled; weights are non-negative and sum to 1.

    The effective weight is the weight times the standard deviation of
    rating(chosen) - rating(rejected): how much the rule really moves the composed reward. A rule
    whose ratings are all the same takes the largest weight (entropy 0) and moves nothing.

    Leakage says what a scheme has seen of the answers it is measured by. Schemes bradley-terry and
    shrunk learn from people's preferences, so read their accuracy on held-out pairs: five folds,
    every prompt whole in one. `--labels N` lets them learn from N pairs only.

    Examples: `encore weights study --tau 0.5 --json`,
    `encore weights study --scheme top-k --k 3`, `encore weights study --compare`,
    `encore weights study --label-curve`, `encore weights study --for trl`.

    Exit code 3: the run is not complete; the weights are those of its finished shards.
    """
    from encore.cli.weight_tables import comparison_tables, label_curve_tables, sweep_tables
    from encore.weighting.label_curve import label_curve
    from encore.weighting.scheme_comparison import DEFAULT_TAUS, compare_schemes, sweep_tau
    from encore.weighting.weigh import open_evidence

    _refuse_combinations(config, as_json=json)
    _warn_of_idle_options(config)
    ratings = opened_ratings(config)
    show = partial(show_result, ratings=ratings, as_json=json)
    if config.compare:
        comparison = compare_schemes(ratings, options=config)
        notes = comparison.notes
        if config.rule is None:
            notes = ("single is the rule of lowest entropy; name another with --rule", *notes)
        show(comparison.as_dict(), comparison_tables(comparison), notes)
    elif config.sweep:
        with open_evidence(ratings) as evidence:
            sweep = sweep_tau(evidence, taus=sorted({*DEFAULT_TAUS, config.tau}))
        show(asdict(sweep), sweep_tables(sweep), sweep.notes)
    elif config.label_curve:
        with open_evidence(ratings) as evidence:
            curve = label_curve(evidence, config)
        show(asdict(curve), label_curve_tables(curve), ())
    else:
        _show_weights(config, ratings, show)
    if is_study(config.ratings):
        say_next("train", config.ratings, "--backbone", "MODEL")


def _show_weights(config: WeightsConfig, ratings: Ratings, show: Callable[..., None]) -> None:
    """Weigh the rules by one scheme; print the weights, or a trainer's configuration of them."""
    from encore.cli.weight_tables import weights_tables
    from encore.weighting.weigh import weigh_rules

    weighed = weigh_rules(ratings, scheme=config.scheme, options=config)
    parts = weights_tables(weighed)
    if config.trainer:
        rules = _with_head_0(_trainer_weights(weighed, ratings), config)
        text = trainer_config(config.trainer, rules)
        out.print(text, end="", soft_wrap=True, markup=False, highlight=False)
        parts = iter(())
    show(weighed.as_dict(), parts, _notes(weighed, config))


def _refuse_combinations(config: WeightsConfig, *, as_json: bool) -> None:
    """Raise UsageError if the options ask for several views at a time."""
    views = [f"--{name.replace('_', '-')}" for name in _VIEWS if getattr(config, name)]
    if len(views) > 1:
        raise UsageError(f"{' and '.join(views)} are different views; ask for one at a time")
    if config.trainer and (views or as_json):
        raise UsageError("--for prints a configuration of one scheme, without other views or JSON")


def _trainer_weights(weighed: WeighedRules, ratings: Ratings) -> TrainerWeights:
    from encore.weighting.scheme_comparison import scheme_label

    vector = weighed.vector
    weights = dict(zip(vector.rule_ids, vector.weights, strict=True))
    rules = ratings.manifest.rules if ratings.manifest else ()
    return TrainerWeights(
        label=scheme_label(vector),
        weights=weights,
        effective_weights={
            rule_id: None if sd is None else weight * sd
            for (rule_id, weight), sd in zip(weights.items(), weighed.margin_sds, strict=True)
        },
        texts={rule["rule_id"]: rule["rating_rule"] for rule in rules},
    )


def _with_head_0(rules: TrainerWeights, config: WeightsConfig) -> TrainerWeights:
    """Return the weights of all heads of a model with head 0, if one is named.

    The deviations are then those of the held-out scores, since head 0 has no ratings.
    """
    if config.model is None:
        return rules
    import numpy as np

    from encore.model.held_out_scores import read_heads
    from encore.weighting.composed_ratings import rule_margin_sds
    from encore.weighting.head_mix import mix_heads

    head_ids, held_out = read_heads(config.model)
    mix = mix_heads(rules.weights, held_out, head_ids=head_ids, beta=config.beta)
    if mix.note:
        say(f"note: {mix.note}")
    assert held_out is not None, "mix_heads refuses a model without held-out scores"
    score_P2R = held_out.score_P2R.astype(np.float64)
    sds = rule_margin_sds(score_P2R[:, 0] - score_P2R[:, 1])
    effective_weights = {
        head_id: None if sd is None else weight * sd
        for (head_id, weight), sd in zip(mix.weights.items(), sds, strict=True)
    }
    return replace(
        rules,
        label=f"{rules.label}, composed with head 0 (--beta {mix.beta:g})",
        weights=mix.weights,
        effective_weights=effective_weights,
    )


def _warn_of_idle_options(config: WeightsConfig) -> None:
    from encore.weighting.schemes import load_scheme

    scheme, is_given = load_scheme(config.scheme), config.model_fields_set
    if config.sweep and config.scheme != "encore":
        raise UsageError(f"--sweep is of scheme encore; {config.scheme} has no temperature")
    names = [*SchemeOptions.model_fields] * (not config.compare)
    names += ["scheme"] * (config.compare or config.label_curve)
    options = {name: getattr(config, name) for name in names if name in is_given}
    # The seed also draws the folds of a scheme that learns from labels.
    reader, used = f"scheme {scheme.name}", (*scheme.options, *(("seed",) * scheme.uses_labels))
    if config.compare or config.sweep:
        reader, used = ("--sweep", ("tau",)) if config.sweep else ("--compare", ())
    elif config.label_curve:
        reader, used = "--label-curve", ("tau", "seed")
    warn_of_unused(options, used=used, who=reader)


def _notes(weighed: WeighedRules, options: SchemeOptions) -> Iterator[str]:
    from encore.weighting.cross_validation import fold_notes

    params = weighed.vector.params
    if weighed.uses_labels:
        yield from fold_notes(weighed.vector.scheme, weighed.held_out)
    if "k" in params and options.k > len(weighed.rules):
        yield f"--k {options.k}: there are only {len(weighed.rules)} rules; all weigh the same"
    num_left_out = params.get("num_pairs_left_out")  # only of a scheme that reads --labels
    if num_left_out is not None and int(params["num_pairs"]) < (options.labels or 0):
        yield f"--labels {options.labels}: there are only {params['num_pairs']} labelled pairs"
    if params.get("scale") == 0:
        yield "no rule agrees with these labels: all weights are equally good, shown as uniform"
    if num_left_out:
        yield (
            f"{num_left_out} pairs lack a rating under some rule; the weights are "
            f"learnt from {'' if options.labels else 'the other '}{params['num_pairs']}"
        )
    for rule, weight in zip(weighed.rules, weighed.vector.weights, strict=True):
        if rule.is_constant:
            yield (
                f"rule {rule.rule_id} is constant: its weight {weight:.3f} has no effect on any "
                "ranking; consider leaving the rule out"
            )
