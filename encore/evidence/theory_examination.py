"""The paper's Theorem 1 on rated pairs: gradients at zero and learned weights beside entropies.

The loss is Bradley and Terry's over rule weights: log(1 + exp(-G)) of each pair, where G is the
weighted sum of the rules' margins, rating(chosen) - rating(rejected). The paper sums over pairs;
here it is the mean, 1/N of the paper's, so that figures of data sets of different size compare.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from encore.analysis.correlation import pearson_r, spearman_rho
from encore.errors import InputError
from encore.evidence.level_codes import LevelCodes
from encore.warehouse import PairRatings
from encore.weighting.encore import entropy_weights
from encore.weighting.scheme import SchemeOptions

# Suffixes: P pairs, R rules.

#: Beyond this, one in twenty rules would lie if labels were drawn by lot.
Z_LIMIT = 1.96
#: Standard deviation of the weights that stand for "near zero".
NEAR_ZERO_SD = 0.01
#: Steps of gradient descent after which the weights are looked at.
STEPS = (1, 10, 100, 1000)
#: Gradient descent looks at so many margins in every step: 100,000 pairs under 10 rules.
_MAX_MARGINS = 1_000_000

Quantity = Literal["gradient_size", "z_size", "learned_weight"]
Against = Literal["entropy", "encore_weight"]

_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class TheoryRule:
    """One rule; margins are rating(chosen) - rating(rejected) over the pairs that were used.

    Attributes:
        rule_id: The rule.
        entropy_nats: Of all its ratings, as `encore weights` has it.
        encore_weight: ENCORE's weight.
        mean_margin: Mean margin.
        tie_rate: Share of margins that are 0.
        half_accuracy: Share of positive margins, ties half.
        gradient_at_zero: Derivative of the mean loss by the rule's weight where all weights are
            0: minus half the mean margin. N times this is the paper's.
        z: Sum of margins over the root of their sum of squares: how many standard deviations the
            gradient is from 0 if labels were drawn by lot; positive where the rule sides with
            people. None for a rule that never tells two responses apart.
        gradient_near_zero: The derivative at small random weights.
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

    @property
    def depends_on_labels(self) -> bool:
        """Whether its gradient is larger than labels drawn by lot would make it (at 95 %)."""
        return self.z is not None and abs(self.z) > Z_LIMIT


@dataclass(frozen=True, slots=True, kw_only=True)
class DescentStep:
    """The weights after some steps of gradient descent, and the loss there.

    Attributes:
        step: Steps taken.
        weights: One per rule; they are free, not on the simplex.
        gradient: Of the mean loss, one per rule.
        loss: Mean over pairs; ln 2 with all weights 0.
        largest_slope: Largest |D| of a pair.
    """

    step: int
    weights: tuple[float, ...]
    gradient: tuple[float, ...]
    loss: float
    largest_slope: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TheoryCorrelation:
    """How something that was learned goes with entropy or with ENCORE's weights, over rules.

    Attributes:
        quantity: ``gradient_size`` (absolute, at zero), ``z_size`` or ``learned_weight``.
        step: For learned weights, after how many steps.
        against: What it is compared with.
        num_rules: Rules that have both.
        pearson_r: Pearson's r; None for fewer than 3 rules or a constant.
        spearman_rho: Spearman's rho; None likewise.
    """

    quantity: Quantity
    step: int | None
    against: Against
    num_rules: int
    pearson_r: float | None
    spearman_rho: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """What the theorem's setting gives on some pairs.

    Attributes:
        num_pairs: Pairs that every rule rated fully: those that were used.
        num_pairs_left_out: Other pairs; their ratings enter the entropies only.
        num_descent_pairs: Pairs of the gradient descent: ``num_pairs``, or a seeded sample.
        tau: Temperature of ENCORE's weights.
        seed: Of the weights near zero and of the sample.
        step_size: Of gradient descent: 1 over the largest curvature of the mean loss.
        near_zero_weights: Where ``gradient_near_zero`` was taken.
        rules: One per rule.
        steps: The start and what was found after each number of steps.
        correlations: Of what was learned with entropy and with ENCORE's weights.
    """

    num_pairs: int
    num_pairs_left_out: int
    num_descent_pairs: int
    tau: float
    seed: int
    step_size: float
    near_zero_weights: tuple[float, ...]
    rules: tuple[TheoryRule, ...]
    steps: tuple[DescentStep, ...]
    correlations: tuple[TheoryCorrelation, ...]


def examine(pairs: PairRatings, *, tau: float = 2.0, seed: int = 0) -> Examination:
    """Gradients at and near zero, and weights by gradient descent, beside entropy and ENCORE.

    The theorem's margin sums over all rules, so only pairs are used whose two responses every rule
    rated; a missing rating is no rating of 0.

    Raises:
        InputError: No such pair, or an impossible tau.
    """
    tau = SchemeOptions(tau=tau).tau
    margin_PR = pairs.complete().margin_PR
    num_pairs, num_rules = len(margin_PR), len(pairs.rule_ids)
    if not num_pairs:
        num_R = (~np.isnan(pairs.margin_PR)).sum(axis=0)
        least = int(num_R.argmin())
        raise InputError(
            f"theory: of {pairs.num_pairs} pairs none has both responses rated under every rule "
            f"(rule {pairs.rule_ids[least]} rated {num_R[least]} fully, the fewest); leave such "
            "rules out of the ratings or rate the missing responses"
        )
    rng = np.random.default_rng(seed)
    near_zero_R = rng.normal(scale=NEAR_ZERO_SD, size=num_rules)
    num_sampled = max(_MAX_MARGINS // num_rules, 1)
    sample_PR = margin_PR
    if num_pairs > num_sampled:
        sample_PR = margin_PR[rng.choice(num_pairs, num_sampled, replace=False)]
    steps = descend(sample_PR)
    rules = tuple(_rules(pairs, margin_PR, near_zero_R, steps, tau=tau))
    return Examination(
        num_pairs=num_pairs,
        num_pairs_left_out=pairs.num_pairs - num_pairs,
        num_descent_pairs=len(sample_PR),
        tau=tau,
        seed=seed,
        step_size=step_size(sample_PR),
        near_zero_weights=tuple(near_zero_R.tolist()),
        rules=rules,
        steps=steps,
        correlations=tuple(_correlations(rules)),
    )


def _rules(
    pairs: PairRatings,
    margin_PR: _Floats,
    near_zero_R: _Floats,
    steps: Sequence[DescentStep],
    *,
    tau: float,
) -> Iterator[TheoryRule]:
    codes = LevelCodes.of(pairs.rating_2PR)
    entropy_R = codes.entropies(codes.count())
    tie_R = (margin_PR == 0).mean(axis=0)
    figures = {
        "entropy_nats": entropy_R,
        "encore_weight": entropy_weights(entropy_R, tau=tau),
        "mean_margin": margin_PR.mean(axis=0),
        "tie_rate": tie_R,
        "half_accuracy": (margin_PR > 0).mean(axis=0) + tie_R / 2,
        "gradient_at_zero": loss_gradient(np.zeros_like(near_zero_R), margin_PR),
        "gradient_near_zero": loss_gradient(near_zero_R, margin_PR),
    }
    # With signs drawn by lot the sum of margins has mean 0 and variance sum of squares.
    norm_R, sum_R = np.linalg.norm(margin_PR, axis=0), margin_PR.sum(axis=0)
    for place, rule_id in enumerate(pairs.rule_ids):
        yield TheoryRule(
            rule_id=rule_id,
            z=float(sum_R[place] / norm_R[place]) if norm_R[place] else None,
            learned_weights=tuple(record.weights[place] for record in steps[1:]),
            **{name: float(value_R[place]) for name, value_R in figures.items()},
        )


def loss_slope(composed_P: _Floats) -> _Floats:
    """D of the paper's proof: the derivative of a pair's loss log(1 + exp(-g)) by its margin g.

    It is -1 / (1 + exp(g)). The proof bounds |D| by 1; at a margin of 0 it is 1/2.
    """
    from scipy.special import expit

    return np.asarray(-expit(-composed_P), dtype=np.float64)


def mean_loss(weight_R: _Floats, margin_PR: _Floats) -> float:
    """Mean loss of pairs whose composed margin is the weighted sum of the rules' margins."""
    return float(np.logaddexp(0.0, -(margin_PR @ weight_R)).mean())


def loss_gradient(weight_R: _Floats, margin_PR: _Floats) -> _Floats:
    """Gradient of `mean_loss` by the weights: the mean of D times the rule's margin, shape [R]."""
    slope_P = loss_slope(margin_PR @ weight_R)
    return np.asarray(slope_P @ margin_PR / len(margin_PR), dtype=np.float64)


def step_size(margin_PR: _Floats) -> float:
    """The largest step that never overshoots: 1 over the largest curvature of the mean loss.

    The second derivative of the loss by a margin is at most 1/4, so that of the mean loss by the
    weights is at most a quarter of the mean of margin' margin. 0 where all margins are 0.
    """
    gram_RR = margin_PR.T @ margin_PR / len(margin_PR)
    curvature = float(np.linalg.eigvalsh(gram_RR)[-1]) / 4
    return 1 / curvature if curvature > np.finfo(np.float64).tiny else 0.0


def descend(margin_PR: _Floats, *, steps: Sequence[int] = STEPS) -> tuple[DescentStep, ...]:
    """Gradient descent on the mean loss from zero weights.

    Args:
        margin_PR: rating(chosen) - rating(rejected) of each pair and rule, none missing, [P, R].
        steps: After how many steps to look, ascending.

    Returns:
        The start (step 0) and one record for each of ``steps``.
    """
    size = step_size(margin_PR)
    weight_R = np.zeros(margin_PR.shape[1])
    records = []
    for step in range(max(steps) + 1):
        gradient_R = loss_gradient(weight_R, margin_PR)
        if step in (0, *steps):
            records.append(
                DescentStep(
                    step=step,
                    weights=tuple(weight_R.tolist()),
                    gradient=tuple(gradient_R.tolist()),
                    loss=mean_loss(weight_R, margin_PR),
                    largest_slope=float(np.abs(loss_slope(margin_PR @ weight_R)).max()),
                )
            )
        weight_R = weight_R - size * gradient_R
    return tuple(records)


def _correlations(rules: Sequence[TheoryRule]) -> Iterator[TheoryCorrelation]:
    def column(values: Sequence[float | None]) -> _Floats:
        return np.array(values, dtype=np.float64)  # None is NaN

    learned_SR = np.array([rule.learned_weights for rule in rules]).T
    learned: list[tuple[Quantity, int | None, _Floats]] = [
        ("gradient_size", None, np.abs(column([rule.gradient_at_zero for rule in rules]))),
        ("z_size", None, np.abs(column([rule.z for rule in rules]))),
        *(("learned_weight", step, of_R) for step, of_R in zip(STEPS, learned_SR, strict=True)),
    ]
    others: dict[Against, _Floats] = {
        "entropy": column([rule.entropy_nats for rule in rules]),
        "encore_weight": column([rule.encore_weight for rule in rules]),
    }
    for against, other_R in others.items():
        for quantity, step, value_R in learned:
            is_known_R = ~np.isnan(value_R)
            value_K, other_K = value_R[is_known_R], other_R[is_known_R]
            yield TheoryCorrelation(
                quantity=quantity,
                step=step,
                against=against,
                num_rules=len(value_K),
                pearson_r=pearson_r(value_K, other_K),
                spearman_rho=spearman_rho(value_K, other_K),
            )
