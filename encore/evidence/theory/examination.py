"""One set of rated pairs under the theorem: gradients at zero, learned weights, entropies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from encore.analysis.correlation import pearson_r, spearman_rho
from encore.errors import InputError
from encore.evidence.level_codes import LevelCodes
from encore.evidence.theory.gradient_descent import (
    STEPS,
    DescentStep,
    descend,
    loss_gradient,
    step_size,
)
from encore.warehouse import PairRatings
from encore.weighting.encore import entropy_weights
from encore.weighting.scheme import SchemeOptions

# Suffixes: P pairs, R rules.

#: Beyond this, one in twenty rules would lie if labels were drawn by lot.
Z_LIMIT = 1.96
#: Standard deviation of the weights that stand for "near zero".
NEAR_ZERO_SD = 0.01
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

    def rule(self, rule_id: str) -> TheoryRule:
        """The rule of this id."""
        return next(rule for rule in self.rules if rule.rule_id == rule_id)


def examine(pairs: PairRatings, *, tau: float = 2.0, seed: int = 0) -> Examination:
    """Gradients at and near zero, and weights by gradient descent, beside entropy and ENCORE.

    The theorem's margin sums over all rules, so only pairs are used whose two responses every rule
    rated; a missing rating is no rating of 0.

    Raises:
        InputError: No such pair, or an impossible tau.
    """
    tau = SchemeOptions(tau=tau).tau
    margin_PR = pairs.complete().margin_PR
    if not len(margin_PR):
        num_R = (~np.isnan(pairs.margin_PR)).sum(axis=0)
        least = int(num_R.argmin())
        raise InputError(
            f"theory: of {pairs.num_pairs} pairs none has both responses rated under every rule "
            f"(rule {pairs.rule_ids[least]} rated {num_R[least]} fully, the fewest); leave such "
            "rules out of the ratings or rate the missing responses"
        )
    codes = LevelCodes.of(pairs)
    rng = np.random.default_rng(seed)
    near_zero_R = rng.normal(scale=NEAR_ZERO_SD, size=len(pairs.rule_ids))
    sample_PR = _sample(margin_PR, rng)
    path = descend(sample_PR)
    rules = _rules(
        pairs.rule_ids, margin_PR, codes.entropies(codes.count()), near_zero_R, path, tau=tau
    )
    return Examination(
        num_pairs=len(margin_PR),
        num_pairs_left_out=pairs.num_pairs - len(margin_PR),
        num_descent_pairs=len(sample_PR),
        tau=tau,
        seed=seed,
        step_size=step_size(sample_PR),
        near_zero_weights=tuple(near_zero_R.tolist()),
        rules=rules,
        steps=path,
        correlations=tuple(_correlations(rules)),
    )


def _sample(margin_PR: _Floats, rng: np.random.Generator) -> _Floats:
    limit = max(_MAX_MARGINS // margin_PR.shape[1], 1)
    if len(margin_PR) <= limit:
        return margin_PR
    row_N = rng.choice(len(margin_PR), limit, replace=False)
    return np.asarray(margin_PR[row_N], dtype=np.float64)


def _rules(
    rule_ids: Sequence[str],
    margin_PR: _Floats,
    entropy_R: _Floats,
    near_zero_R: _Floats,
    path: Sequence[DescentStep],
    *,
    tau: float,
) -> tuple[TheoryRule, ...]:
    encore_R = entropy_weights(entropy_R, tau=tau)
    at_zero_R = loss_gradient(np.zeros_like(near_zero_R), margin_PR)
    near_R = loss_gradient(near_zero_R, margin_PR)
    # With signs drawn by lot the sum of margins has mean 0 and variance sum of squares.
    norm_R = np.linalg.norm(margin_PR, axis=0).tolist()
    return tuple(
        TheoryRule(
            rule_id=rule_id,
            entropy_nats=float(entropy_R[k]),
            encore_weight=float(encore_R[k]),
            mean_margin=float(margin_PR[:, k].mean()),
            tie_rate=float(np.mean(margin_PR[:, k] == 0)),
            half_accuracy=float(np.mean(margin_PR[:, k] > 0) + np.mean(margin_PR[:, k] == 0) / 2),
            gradient_at_zero=float(at_zero_R[k]),
            z=float(margin_PR[:, k].sum()) / norm_R[k] if norm_R[k] else None,
            gradient_near_zero=float(near_R[k]),
            learned_weights=tuple(record.weights[k] for record in path[1:]),
        )
        for k, rule_id in enumerate(rule_ids)
    )


def _correlations(rules: Sequence[TheoryRule]) -> Iterator[TheoryCorrelation]:
    others: dict[Against, list[float]] = {
        "entropy": [rule.entropy_nats for rule in rules],
        "encore_weight": [rule.encore_weight for rule in rules],
    }
    learned: list[tuple[Quantity, int | None, Sequence[float | None]]] = [
        ("gradient_size", None, [abs(rule.gradient_at_zero) for rule in rules]),
        ("z_size", None, [None if rule.z is None else abs(rule.z) for rule in rules]),
    ]
    for place, step in enumerate(STEPS):
        weights = [rule.learned_weights[place] for rule in rules]
        learned.append(("learned_weight", step, weights))
    for against, other_values in others.items():
        for quantity, at_step, values in learned:
            known = [both for both in zip(values, other_values, strict=True) if both[0] is not None]
            value_R, other_R = np.array(known, dtype=np.float64).reshape(-1, 2).T
            yield TheoryCorrelation(
                quantity=quantity,
                step=at_step,
                against=against,
                num_rules=len(known),
                pearson_r=pearson_r(value_R, other_R),
                spearman_rho=spearman_rho(value_R, other_R),
            )
