"""Check Theorem 1 on ratings, and show by counter-examples what it does not say.

The theorem is about rules that do not depend on the label; it calls them maximally entropic.
Counter-examples on synthetic ratings show that these two properties differ.

The loss is Bradley and Terry's over rule weights: log(1 + exp(-G)) of each pair, where G is the
weighted sum of the rules' margins, rating(chosen) - rating(rejected). The paper sums over pairs.
This module takes the mean, 1/N of the sum, so that data sets of different sizes can be compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from encore.analysis.correlation import pearson_r
from encore.analysis.entropy import entropy_weights
from encore.analysis.level_codes import LevelCodes, rule_entropies
from encore.core.errors import InputError
from encore.warehouse import PairRatings, Ratings, open_ratings, read_pairs_of
from encore.weighting.scheme_options import SchemeOptions

# Suffixes: P pairs, R rules.

THEOREM = (
    "What Theorem 1 says: a rule whose rating difference averages to zero whatever the label and "
    "the other rules say (a label-independent rule) gets no gradient, so a weight that starts at "
    "zero stays there. The proof uses nothing else about the rule."
)
LIMITS_OF_THEOREM = (
    "What it does not say: that a rule of high entropy is such a rule. The theorem calls it "
    "maximally entropic, but entropy is a property of a rule's ratings alone, and whether they "
    "depend on the label is another: neither follows from the other, as the counter-examples show. "
    "That rules of higher entropy are less accurate is a claim about data; `encore analyze` tests "
    "it on yours."
)
_NUM_RULES = 10
#: Accuracy of the decisive part of a synthetic rule.
_SKILL = 0.8
_NUM_LEVELS = 11

#: With random labels, the |z| of one rule in twenty is larger.
Z_LIMIT = 1.96
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
        encore_weight: ENCORE's weight of the rule.
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

    @property
    def depends_on_labels(self) -> bool:
        """Return True if random labels would hardly give so large a gradient (at 95 %)."""
        return self.z is not None and abs(self.z) > Z_LIMIT


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterExample:
    """A synthetic case against a reading of the theorem.

    Attributes:
        name: Name of the case, e.g. ``a constant rule``.
        claim: The reading of the theorem that is wrong.
        finding: The result that contradicts it, with the figures of the rules.
        rules: The rules of the case.
    """

    name: str
    claim: str
    finding: str
    rules: tuple[TheoryRule, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Theory:
    """Result of `theory`.

    Attributes:
        is_synthetic: True if the pairs are synthetic; the counter-examples always are.
        num_pairs: Pairs that every rule rated fully, which the figures are over.
        num_pairs_left_out: All other pairs; their ratings count for the entropies only.
        tau: Temperature of ENCORE's weights.
        seed: Seed of the synthetic world and of the weights near zero.
        steps: Numbers of steps of gradient descent, in the order of ``learned_weights``.
        rules: Figures of each rule.
        correlations: Pearson's r over rules of the last learned weights with ``entropy_nats`` and
            with ``encore_weight``; None for fewer than 3 rules or a constant.
        counter_examples: Synthetic cases against readings of the theorem.
        statements: Sentences on what the theorem and these figures say and do not say.
        notes: Sentences on what limits these figures.
    """

    is_synthetic: bool
    num_pairs: int
    num_pairs_left_out: int
    tau: float
    seed: int
    steps: tuple[int, ...] = STEPS
    rules: tuple[TheoryRule, ...]
    correlations: Mapping[str, float | None]
    counter_examples: tuple[CounterExample, ...]
    statements: tuple[str, ...]
    notes: tuple[str, ...]


def theory(
    ratings: str | Path | Ratings | Any | None, *, tau: float = 2.0, seed: int = 0
) -> Theory:
    """Compare gradients and learned weights of the Bradley-Terry loss with entropy and ENCORE.

    >>> [rule.rule_id for rule in theory("ratings.csv").rules]
    ['avoid-harm', 'be-kind', 'privacy']

    Args:
        ratings: Ratings, in any form that `encore.analysis.analyze.analyze` takes; all sources are
            pooled. None takes a synthetic world in which the theorem's premise holds
            (`noise_world`).
        tau: Temperature of ENCORE's weights; the default is the paper's.
        seed: Seed of the synthetic world and of the weights near zero.

    Raises:
        InputError: Not a ratings table, no pair that every rule rated fully, or a tau out of range.
    """
    tau = SchemeOptions(tau=tau).tau
    opened = None if ratings is None else open_ratings(ratings)
    pairs = read_pairs_of(opened) if opened else noise_world(seed=seed)
    num_pairs = pairs.complete().num_pairs
    rules = theory_rules(pairs, tau=tau, seed=seed)
    learned_R = np.array([rule.learned_weights[-1] for rule in rules])
    correlations = {
        name: pearson_r(learned_R, np.array([getattr(rule, name) for rule in rules]))
        for name in ("entropy_nats", "encore_weight")
    }
    notes = []
    if num_left_out := pairs.num_pairs - num_pairs:
        notes.append(
            f"{num_left_out:,} of {pairs.num_pairs:,} pairs are left out, because some rule has no "
            "rating of one of the responses"
        )
    return Theory(
        is_synthetic=opened is None,
        num_pairs=num_pairs,
        num_pairs_left_out=num_left_out,
        tau=tau,
        seed=seed,
        rules=rules,
        correlations=correlations,
        counter_examples=counter_examples(tau=tau),
        statements=(THEOREM, *_statements(rules, correlations["entropy_nats"]), LIMITS_OF_THEOREM),
        notes=tuple(notes),
    )


# --- figures --------------------------------------------------------------------------------------


def theory_rules(pairs: PairRatings, *, tau: float = 2.0, seed: int = 0) -> tuple[TheoryRule, ...]:
    """Return each rule's gradients at and near zero, its learned weights, its entropy and weight.

    The theorem's margin is a sum over all rules, so only pairs count whose two responses every rule
    rated: a missing rating is not a rating of 0.

    Raises:
        InputError: There is no such pair.
    """
    margin_PR = pairs.complete().margin_PR
    if not len(margin_PR):
        num_R = (~np.isnan(pairs.margin_PR)).sum(axis=0)
        raise InputError(
            f"theory: of {pairs.num_pairs} pairs none has both responses rated under every rule "
            f"(rule {pairs.rule_ids[num_R.argmin()]} rated {num_R.min()} fully, the fewest); leave "
            "such rules out of the ratings or rate the missing responses"
        )
    rng = np.random.default_rng(seed)
    near_zero_R = rng.normal(scale=NEAR_ZERO_SD, size=margin_PR.shape[1:])
    entropy_R = rule_entropies(LevelCodes.from_ratings(pairs.rating_2PR).histogram())
    tie_R = (margin_PR == 0).mean(axis=0)
    # With random signs the sum of margins has mean 0, and its variance is the sum of squares.
    spread_R = np.linalg.norm(margin_PR, axis=0)
    with np.errstate(invalid="ignore"):
        z_R = (margin_PR.sum(axis=0) / spread_R).astype(object)
    z_R[spread_R == 0] = None
    figures: dict[str, NDArray[Any]] = {
        "entropy_nats": entropy_R,
        "encore_weight": entropy_weights(entropy_R, tau=tau),
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


def loss_slope(composed_P: _Floats) -> _Floats:
    """Return D of the paper's proof: the derivative of the loss log(1 + exp(-g)) by the margin g.

    D is -1 / (1 + exp(g)). The proof bounds |D| by 1; at a margin of 0 it is 1/2.
    """
    from scipy.special import expit

    return np.asarray(-expit(-composed_P), dtype=np.float64)


def loss_gradient(weight_R: _Floats, margin_PR: _Floats) -> _Floats:
    """Return the gradient of the mean loss: the mean of D times the rule's margin, shape [R].

    A pair's composed margin is the weighted sum of the rules' margins.
    """
    slope_P = loss_slope(margin_PR @ weight_R)
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


# --- in words -------------------------------------------------------------------------------------


def _statements(rules: Sequence[TheoryRule], learned_r: float | None) -> Iterator[str]:
    independent = [rule.rule_id for rule in rules if not rule.depends_on_labels]
    yield (
        f"{len(independent)} of {len(rules)} rules have a gradient that random labels can give too "
        f"(|z| up to {Z_LIMIT}): {', '.join(independent) or 'none'}. The theorem can be about "
        "these rules only."
    )
    highest = max(rules, key=lambda rule: rule.entropy_nats)
    finding = "shows no dependence on the label: here high entropy and the premise go together."
    if highest.depends_on_labels:
        finding = "depends on the label: despite its high entropy the theorem is not about it."
    yield (
        f"The rule of highest entropy, {highest.rule_id} ({highest.entropy_nats:.3f} nats), "
        f"{finding}"
    )
    if learned_r is not None:
        direction = "lower" if learned_r < 0 else "higher"
        yield (
            f"After {STEPS[-1]} steps of gradient descent from zero, learned weight and entropy "
            f"correlate with r = {learned_r:.2f} over {len(rules)} rules: the higher the entropy, "
            f"the {direction} the learned weight; ENCORE's weight is always lower."
        )


# --- synthetic ratings ----------------------------------------------------------------------------


def counter_examples(*, tau: float = 2.0) -> tuple[CounterExample, ...]:
    """Return two cases: a uniform rule that predicts perfectly, and a constant rule."""
    perfect, dice, constant = theory_rules(equal_entropy_example(), tau=tau)
    return (
        CounterExample(
            name="a uniform rule that predicts perfectly",
            claim="A rule with maximally entropic (uniform) ratings gets no gradient.",
            finding=(
                f"{perfect.rule_id} has uniform ratings (entropy {perfect.entropy_nats:.3f} nats = "
                f"ln 10) and ranks {perfect.half_accuracy:.0%} of pairs right: gradient at zero "
                f"{perfect.gradient_at_zero:.3f}, and its weight grows to "
                f"{perfect.learned_weights[-1]:.1f} in {STEPS[-1]} steps. {dice.rule_id} has the "
                f"same entropy and predicts nothing: gradient {abs(dice.gradient_at_zero):.3f}. "
                f"ENCORE gives both the same weight, {perfect.encore_weight:.3f}."
            ),
            rules=(perfect, dice),
        ),
        CounterExample(
            name="a constant rule",
            claim="A rule of low entropy deserves weight.",
            finding=(
                f"{constant.rule_id} has the lowest possible entropy, {constant.entropy_nats:.3f}, "
                f"and so the largest of ENCORE's weights, {constant.encore_weight:.3f}; it ties "
                "every pair and ranks nothing. Its gradient is exactly "
                f"{abs(constant.gradient_at_zero):g} at any weights: the loss never gives it any."
            ),
            rules=(constant,),
        ),
    )


def noise_world(*, seed: int, num_pairs: int = 20_000) -> PairRatings:
    """Return ratings by ten rules between a decisive one and pure noise (the paper's remark).

    With probability k/9 rule k rates a pair by dice: each response gets one of 11 levels, all
    equally likely. Otherwise the rule is decisive: it rates one response 1 and the second 0, and in
    80 % of cases the chosen one gets the 1. So entropy rises from ln 2 to ln 11, and the mean
    margin falls from 0.6 to 0. The last rule is what the theorem is about: uniform and independent
    of the label.
    """
    rng = np.random.default_rng(seed)
    shape = (num_pairs, _NUM_RULES)
    noise_R = np.linspace(0, 1, _NUM_RULES)
    is_dice = rng.random(shape) < noise_R
    decisive_PR = (rng.random(shape) < _SKILL).astype(np.float64)
    dice = rng.integers(0, _NUM_LEVELS, size=(2, *shape)) / (_NUM_LEVELS - 1)
    return _pairs(
        [f"noise-{round(100 * noise):03d}-percent" for noise in noise_R],
        chosen_PR=np.where(is_dice, dice[0], decisive_PR),
        rejected_PR=np.where(is_dice, dice[1], 1 - decisive_PR),
    )


def equal_entropy_example() -> PairRatings:
    """Return 500 pairs under three rules: two with uniform ratings, one with 0.5 throughout.

    Both uniform rules give each of the levels 0, 0.1, … 0.9 to a tenth of the responses. The
    perfect rule always gives the chosen response 0.5 more. The random rule has all combinations of
    two levels equally often for each rating of the perfect rule, so it predicts nothing.
    """
    index_P = np.arange(500)
    level_P = index_P % 5 / 10
    half_P = np.full(len(index_P), 0.5)
    return _pairs(
        ("uniform-and-perfect", "uniform-and-random", "constant"),
        chosen_PR=np.stack([level_P + 0.5, index_P // 5 % 10 / 10, half_P], axis=1),
        rejected_PR=np.stack([level_P, index_P // 50 / 10, half_P], axis=1),
    )


def _pairs(rule_ids: Sequence[str], *, chosen_PR: _Floats, rejected_PR: _Floats) -> PairRatings:
    num_pairs = len(chosen_PR)
    return PairRatings(
        rule_ids=tuple(rule_ids),
        source_P=np.full(num_pairs, "synthetic", dtype=object),
        pair_id_P=np.array([f"pair-{row:06d}" for row in range(num_pairs)], dtype=object),
        # Two decimals, as judges give: levels must not differ in their last bits.
        chosen_PR=np.round(chosen_PR, 2),
        rejected_PR=np.round(rejected_PR, 2),
    )
