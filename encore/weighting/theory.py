"""Check Theorem 1 on ratings, and show by counter-examples what it does not say.

The theorem: a rule whose rating difference averages to zero whatever the label and the other rules
say (a label-independent rule) gets no gradient, so a weight that starts at zero stays there. The
proof uses nothing else about the rule. The paper calls such a rule maximally entropic, but entropy
is a property of a rule's ratings alone: neither follows from the other, as the rules of
`equal_entropy_example` show.

The loss is Bradley and Terry's over rule weights: log(1 + exp(-G)) of each pair, where G is the
weighted sum of the rules' margins, rating(chosen) - rating(rejected). The paper sums over pairs.
This module takes the mean, 1/N of the sum, so that data sets of different sizes can be compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from encore.analysis.correlation import pearson_r
from encore.analysis.entropy import entropy_weights
from encore.core.errors import InputError
from encore.core.shown_record import ShownRecord
from encore.data.records import RESPONSES
from encore.warehouse import PairRatings, Ratings, open_ratings, open_warehouse, read_pair_ratings

# Suffixes: P pairs, R rules.

#: Standard deviation of the random weights near zero.
NEAR_ZERO_SD = 0.01
#: Numbers of steps of gradient descent after which the weights are recorded.
STEPS = (1, 10, 100, 1000)

_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class TheoryRule:
    """Figures of one rule; margins are rating(chosen) - rating(rejected) over the complete pairs.

    Attributes:
        rule_id: The rule, as in the rule set.
        entropy_nats: Entropy of all its ratings, as in `encore weights`.
        encore_weight: ENCORE's weight of the rule at the paper's temperature, 2.
        mean_margin: Mean margin over pairs.
        tie_rate: Share of margins that are 0.
        half_accuracy: Share of positive margins, with one half for ties.
        gradient_at_zero: Derivative of the mean loss by the rule's weight where all weights are
            0: minus half the mean margin. The paper's is N times as large.
        z: Sum of margins over the root of their sum of squares: the distance of the gradient from
            0 in its standard deviations under random labels. It is positive if the rule agrees with
            people. None for a rule that rates both responses alike in every pair: it has no
            standard deviation.
        gradient_near_zero: Derivative of the mean loss at small random weights.
        learned_weights: Weight after each number of steps of gradient descent from zero.
    """

    rule_id: str
    entropy_nats: float
    encore_weight: float
    mean_margin: float
    tie_rate: float
    half_accuracy: float
    gradient_at_zero: float
    z: float | None
    gradient_near_zero: float
    learned_weights: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Theory(ShownRecord):
    """Result of `theory`.

    Attributes:
        num_pairs: Pairs that every rule rated fully, which the figures are over.
        num_pairs_left_out: All other pairs; their ratings count for the entropies only.
        steps: Numbers of steps of gradient descent, in the order of ``learned_weights``.
        rules: Figures of each rule.
        correlations: Pearson's r over rules of the last learned weights with ``entropy_nats`` and
            with ``encore_weight``; None for fewer than 3 rules or a constant.
    """

    num_pairs: int
    num_pairs_left_out: int
    steps: tuple[int, ...] = STEPS
    rules: tuple[TheoryRule, ...]
    correlations: Mapping[str, float | None]


def theory(ratings: str | Path | Ratings | Any | None = None) -> Theory:
    """Compare gradients and learned weights of the Bradley-Terry loss with entropy and ENCORE.

    >>> [rule.rule_id for rule in theory("ratings.csv").rules]
    ['avoid-harm', 'be-kind', 'privacy']

    Args:
        ratings: Ratings, in any form that `encore.analysis.analyze.analyze` takes; all sources are
            pooled. None takes `equal_entropy_example`, which is synthetic.

    Raises:
        InputError: Not a ratings table, or no pair that every rule rated fully.
    """
    opened = open_ratings(equal_entropy_example() if ratings is None else ratings)
    with open_warehouse(opened) as warehouse:
        pairs = read_pair_ratings(warehouse, rule_ids=warehouse.rule_ids())
        statistics = warehouse.rows_by_rule("rule_statistics")
    entropies = [statistics[None, rule_id]["entropy_nats"] for rule_id in pairs.rule_ids]
    num_pairs = pairs.complete().num_pairs
    rules = theory_rules(pairs, np.array(entropies, dtype=np.float64))
    learned_R = np.array([rule.learned_weights[-1] for rule in rules])
    return Theory(
        num_pairs=num_pairs,
        num_pairs_left_out=pairs.num_pairs - num_pairs,
        rules=rules,
        correlations={
            name: pearson_r(learned_R, np.array([getattr(rule, name) for rule in rules]))
            for name in ("entropy_nats", "encore_weight")
        },
    )


def theory_rules(pairs: PairRatings, entropy_R: _Floats) -> tuple[TheoryRule, ...]:
    """Return each rule's gradients at and near zero, its learned weights, its entropy and weight.

    The theorem's margin is a sum over all rules, so only pairs count whose two responses every rule
    rated: a missing rating is not a rating of 0. A rule that does not apply to a pair ties it.

    Raises:
        InputError: There is no such pair.
    """
    margin_PR = pairs.complete().margin_or_zero_PR
    if not len(margin_PR):
        num_R = (~np.isnan(pairs.margin_PR)).sum(axis=0)
        raise InputError(
            f"theory: of {pairs.num_pairs} pairs none has both responses rated under every rule "
            f"(rule {pairs.rule_ids[num_R.argmin()]} rated {num_R.min()} fully, the fewest); leave "
            "such rules out of the ratings or rate the missing responses"
        )
    near_zero_R = np.random.default_rng(0).normal(scale=NEAR_ZERO_SD, size=margin_PR.shape[1:])
    tie_R = (margin_PR == 0).mean(axis=0)
    # With random signs the sum of margins has mean 0, and its variance is the sum of squares.
    spread_R = np.linalg.norm(margin_PR, axis=0)
    with np.errstate(invalid="ignore"):
        z_R = (margin_PR.sum(axis=0) / spread_R).astype(object)
    z_R[spread_R == 0] = None
    figures: dict[str, NDArray[Any]] = {
        "entropy_nats": entropy_R,
        "encore_weight": entropy_weights(entropy_R),
        "mean_margin": margin_PR.mean(axis=0),
        "tie_rate": tie_R,
        "half_accuracy": (margin_PR > 0).mean(axis=0) + tie_R / 2,
        "gradient_at_zero": loss_gradient(np.zeros_like(near_zero_R), margin_PR),
        "z": z_R,
        "gradient_near_zero": loss_gradient(near_zero_R, margin_PR),
        "learned_weights": gradient_descent(margin_PR).T,
    }
    columns = [value_R.tolist() for value_R in figures.values()]
    return tuple(
        TheoryRule(rule_id=rule_id, **dict(zip(figures, values, strict=True)))
        for rule_id, *values in zip(pairs.rule_ids, *columns, strict=True)
    )


def loss_gradient(weight_R: _Floats, margin_PR: _Floats) -> _Floats:
    """Return the gradient of the mean loss: the mean of D times the rule's margin, shape [R].

    D is the derivative of the loss log(1 + exp(-g)) by the pair's composed margin g, the weighted
    sum of the rules' margins: -1 / (1 + exp(g)). The proof bounds |D| by 1; at g = 0 it is 1/2.
    """
    from scipy.special import expit

    slope_P = -expit(-(margin_PR @ weight_R))
    return np.asarray(slope_P @ margin_PR / len(margin_PR), dtype=np.float64)


def step_size(margin_PR: _Floats) -> float:
    """Return the largest step that never overshoots: 1 over the largest curvature of the mean loss.

    The second derivative of the loss by a margin is at most 1/4, so that of the mean loss by the
    weights is at most a quarter of the mean of margin' margin. The step is 0 if all margins are 0.
    """
    gram_RR = margin_PR.T @ margin_PR / len(margin_PR)
    curvature = float(np.linalg.eigvalsh(gram_RR)[-1]) / 4
    return 1 / curvature if curvature > np.finfo(np.float64).tiny else 0.0


def gradient_descent(margin_PR: _Floats, *, steps: Sequence[int] = STEPS) -> _Floats:
    """Return the weights after S numbers of steps from zero on the mean loss, shape [S, R].

    Args:
        margin_PR: rating(chosen) - rating(rejected) of each pair and rule, none missing, [P, R].
        steps: The S numbers of steps, ascending.
    """
    size = step_size(margin_PR)
    weight_R = np.zeros(margin_PR.shape[1])
    recorded = []
    for step in range(1, max(steps) + 1):
        weight_R = weight_R - size * loss_gradient(weight_R, margin_PR)
        if step in steps:
            recorded.append(weight_R)
    return np.stack(recorded)


def equal_entropy_example() -> pa.Table:
    """Return 500 pairs under three rules: two with uniform ratings, one with 0.5 throughout.

    The table has a row for each response, and a column for each rule.

    Both uniform rules give each of the levels 0, 0.1, … 0.9 to a tenth of the responses. The
    perfect rule always gives the chosen response 0.5 more. The random rule has all combinations of
    two levels equally often for each rating of the perfect rule, so it predicts nothing: it is what
    the theorem is about.
    """
    index_P = np.arange(500)
    level_P = index_P % 5 / 10
    half_P = np.full(len(index_P), 0.5)
    ratings = {
        "uniform-and-perfect": (level_P + 0.5, level_P),
        "uniform-and-random": (index_P // 5 % 10 / 10, index_P // 50 / 10),
        "constant": (half_P, half_P),
    }
    return pa.table(
        {
            "pair_id": [f"pair-{index:03d}" for index in index_P] * len(RESPONSES),
            "source": ["synthetic"] * len(RESPONSES) * len(index_P),
            "response": np.repeat(RESPONSES, len(index_P)),
            # Two decimals, as judges give: levels must not differ in their last bits.
            **{rule_id: np.round(np.concatenate(pair), 2) for rule_id, pair in ratings.items()},
        }
    )
