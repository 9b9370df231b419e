"""`encore theory` as a function: what Theorem 1 says of some ratings, and where its words mislead.

The theorem is about rules that do not depend on the label; it calls them maximally entropic.
Counter-examples on synthetic ratings show where the two come apart.

The loss is Bradley and Terry's over rule weights: log(1 + exp(-G)) of each pair, where G is the
weighted sum of the rules' margins, rating(chosen) - rating(rejected). The paper sums over pairs;
here it is the mean, 1/N of the paper's, so that figures of data sets of different size compare.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from encore.analysis.correlation import pearson_r, spearman_rho
from encore.errors import InputError
from encore.evidence.level_codes import LevelCodes, entropies_of
from encore.warehouse import PairRatings, Ratings, open_ratings, read_pairs_of
from encore.weighting.encore import entropy_weights
from encore.weighting.scheme import SchemeOptions

# Suffixes: P pairs, R rules.

SAYS = (
    "What Theorem 1 says: a rule whose rating difference averages to zero whatever the label and "
    "the other rules say (a label-independent rule) gets no gradient, so a weight that starts at "
    "zero stays there. The proof uses nothing else about the rule."
)
DOES_NOT_SAY = (
    "What it does not say: that a rule of high entropy is such a rule. The theorem calls it "
    "maximally entropic, but entropy is a property of a rule's ratings alone, and whether they "
    "depend on the label is another: neither follows from the other, as the counter-examples show. "
    "That rules of higher entropy are less accurate is a claim about data; `encore analyze` tests "
    "it on yours."
)
#: Weights that could still move by less than this have settled.
_SETTLED = 0.01
_NUM_RULES = 10
#: How often the part of a synthetic rule that knows the label is right.
_SKILL = 0.8
_NUM_LEVELS = 11

#: Beyond this, one in twenty rules would lie if labels were drawn by lot.
Z_LIMIT = 1.96
#: Standard deviation of the weights that stand for "near zero".
NEAR_ZERO_SD = 0.01
#: Steps of gradient descent after which the weights are looked at.
STEPS = (1, 10, 100, 1000)
#: Gradient descent looks at so many margins in every step: 100,000 pairs under 10 rules.
_MAX_MARGINS = 1_000_000

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

    quantity: str
    step: int | None
    against: str
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


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterExample:
    """A synthetic case against a reading of the theorem.

    Attributes:
        name: What it is called.
        claim: The reading.
        finding: What comes out instead, with the figures of ``rule_ids``.
        rule_ids: The rules of the examination that it is about.
        examination: Everything that was computed.
    """

    name: str
    claim: str
    finding: str
    rule_ids: tuple[str, ...]
    examination: Examination


@dataclass(frozen=True, slots=True, kw_only=True)
class Theory:
    """The theorem on some pairs, and where its words mislead.

    Attributes:
        is_synthetic: Whether the pairs are made up; the counter-examples always are.
        examination: What was computed on the pairs.
        counter_examples: Synthetic cases against readings of the theorem.
        statements: What all this says and does not say, in plain words.
        notes: Plain sentences on what limits these figures.
    """

    is_synthetic: bool
    examination: Examination
    counter_examples: tuple[CounterExample, ...]
    statements: tuple[str, ...]
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """The JSON of ``encore theory --json``: the examination's fields beside the rest."""
        found = dataclasses.asdict(self)
        return {**found.pop("examination"), **found}


def theory(
    ratings: str | Path | Ratings | Any = None,
    *,
    synthetic: bool = False,
    tau: float = 2.0,
    seed: int = 0,
) -> Theory:
    """Bradley-Terry loss over rule weights: gradients at zero and learned weights beside entropy.

    Args:
        ratings: As for `encore.analysis.analyze.analyze`; all sources are pooled.
        synthetic: Take a synthetic world instead, in which the theorem's premise holds: ten rules
            that are more and more noise.
        tau: Temperature of ENCORE's weights (the paper's default).
        seed: Of the synthetic world, of the weights near zero, and of the sample of pairs if there
            are too many for gradient descent.

    Raises:
        InputError: Ratings and synthetic both or neither, no ratings table, no pair that every
            rule rated fully.
    """
    if (ratings is None) != synthetic:
        raise InputError("theory: expected either ratings or the synthetic world (--synthetic)")
    opened = None if synthetic else open_ratings(ratings)
    found = examine(read_pairs_of(opened) if opened else noise_world(seed=seed), tau=tau, seed=seed)
    notes = []
    if found.num_pairs_left_out:
        notes.append(
            f"{found.num_pairs_left_out:,} of {found.num_pairs + found.num_pairs_left_out:,} pairs "
            "are left out, because some rule has no rating of one of the responses"
        )
    if found.num_descent_pairs < found.num_pairs:
        notes.append(
            f"gradient descent looks at a seeded sample of {found.num_descent_pairs:,} of "
            f"{found.num_pairs:,} pairs; gradients at and near zero are of all of them"
        )
    return Theory(
        is_synthetic=synthetic,
        examination=found,
        counter_examples=counter_examples(tau=tau),
        statements=(SAYS, *_about_gradients(found), *_about_learned_weights(found), DOES_NOT_SAY),
        notes=tuple(notes),
    )


# --- figures --------------------------------------------------------------------------------------


def examine(pairs: PairRatings, *, tau: float = 2.0, seed: int = 0) -> Examination:
    """Gradients at and near zero, and weights by gradient descent, beside entropy and ENCORE.

    The theorem's margin sums over all rules, so only pairs are used whose two responses every rule
    rated; a missing rating is no rating of 0.

    Raises:
        InputError: No such pair, or an impossible tau.
    """
    tau = SchemeOptions(tau=tau).tau
    margin_PR = pairs.complete().margin_PR
    num_pairs, num_rules = margin_PR.shape
    if not num_pairs:
        num_R = (~np.isnan(pairs.margin_PR)).sum(axis=0)
        raise InputError(
            f"theory: of {pairs.num_pairs} pairs none has both responses rated under every rule "
            f"(rule {pairs.rule_ids[num_R.argmin()]} rated {num_R.min()} fully, the fewest); leave "
            "such rules out of the ratings or rate the missing responses"
        )
    rng = np.random.default_rng(seed)
    near_zero_R = rng.normal(scale=NEAR_ZERO_SD, size=margin_PR.shape[1:])
    num_sampled = min(num_pairs, max(_MAX_MARGINS // num_rules, 1))
    sample_PR = margin_PR[rng.choice(num_pairs, num_sampled, replace=False)]
    steps = descend(sample_PR)
    entropy_R = entropies_of(LevelCodes.of(pairs.rating_2PR).count())
    figures = {
        "entropy_nats": entropy_R,
        "encore_weight": entropy_weights(entropy_R, tau=tau),
        **_of_margins(margin_PR),
        "gradient_near_zero": loss_gradient(near_zero_R, margin_PR),
    }
    return Examination(
        num_pairs=num_pairs,
        num_pairs_left_out=pairs.num_pairs - num_pairs,
        num_descent_pairs=len(sample_PR),
        tau=tau,
        seed=seed,
        step_size=step_size(sample_PR),
        near_zero_weights=tuple(near_zero_R.tolist()),
        rules=tuple(
            TheoryRule(
                rule_id=rule_id,
                learned_weights=tuple(record.weights[place] for record in steps[1:]),
                **{name: _known(value_R[place]) for name, value_R in figures.items()},
            )
            for place, rule_id in enumerate(pairs.rule_ids)
        ),
        steps=steps,
        correlations=tuple(_correlations(figures, steps[1:])),
    )


def _of_margins(margin_PR: _Floats) -> dict[str, _Floats]:
    """Figures of each rule that follow from its margins alone, shape [R]."""
    tie_R = (margin_PR == 0).mean(axis=0)
    with np.errstate(invalid="ignore"):
        return {
            "mean_margin": margin_PR.mean(axis=0),
            "tie_rate": tie_R,
            "half_accuracy": (margin_PR > 0).mean(axis=0) + tie_R / 2,
            "gradient_at_zero": loss_gradient(np.zeros(margin_PR.shape[1]), margin_PR),
            # With signs drawn by lot the sum has mean 0 and variance sum of squares.
            "z": margin_PR.sum(axis=0) / np.linalg.norm(margin_PR, axis=0),
        }


def _known(value: float) -> Any:
    """A number, or None for NaN."""
    return None if np.isnan(value) else float(value)


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


def _correlations(
    figures: Mapping[str, _Floats], steps: Sequence[DescentStep]
) -> Iterator[TheoryCorrelation]:
    learned: list[tuple[str, int | None, _Floats]] = [
        ("gradient_size", None, np.abs(figures["gradient_at_zero"])),
        ("z_size", None, np.abs(figures["z"])),
        *(("learned_weight", record.step, np.array(record.weights)) for record in steps),
    ]
    others = {"entropy": figures["entropy_nats"], "encore_weight": figures["encore_weight"]}
    for (against, other_R), (quantity, step, value_R) in product(others.items(), learned):
        is_known_R = ~np.isnan(value_R)
        both = value_R[is_known_R], other_R[is_known_R]
        yield TheoryCorrelation(
            quantity=quantity,
            step=step,
            against=against,
            num_rules=len(both[0]),
            pearson_r=pearson_r(*both),
            spearman_rho=spearman_rho(*both),
        )


# --- in words -------------------------------------------------------------------------------------


def _about_gradients(found: Examination) -> Iterator[str]:
    yield (
        "With all weights at zero every |D| is 1/2 (the proof needs no more than |D| <= 1), so a "
        "rule's gradient is minus half its mean rating difference. Entropy does not occur in it."
    )
    silent = [rule for rule in found.rules if not rule.depends_on_labels]
    if silent:
        yield (
            f"{len(silent)} of {len(found.rules)} rules have a gradient that labels drawn by lot "
            f"would give as well (|z| up to {Z_LIMIT}): {_names(silent)}. The theorem may be about "
            "them."
        )
    else:
        yield (
            f"All {len(found.rules)} rules have a gradient that labels drawn by lot would not give "
            f"(|z| above {Z_LIMIT}): the theorem is about none of them."
        )
    highest = max(found.rules, key=lambda rule: rule.entropy_nats)
    if highest.z is None:
        finding = "never tells two responses apart: no gradient."
    elif highest.depends_on_labels:
        finding = (
            f"depends on the label (z = {highest.z:.1f}): high entropy has not made it what the "
            "theorem calls maximally entropic."
        )
    else:
        finding = (
            f"shows no dependence on the label (z = {highest.z:.1f}): here high entropy and the "
            "theorem's premise go together."
        )
    yield (
        f"The rule of highest entropy, {highest.rule_id} ({highest.entropy_nats:.3f} nats), "
        f"{finding}"
    )


def _about_learned_weights(found: Examination) -> Iterator[str]:
    last = found.steps[-1]
    for row in found.correlations:
        if row.step == last.step and row.against == "entropy" and row.pearson_r is not None:
            way = "lower" if row.pearson_r < 0 else "higher"
            contrast = "" if row.pearson_r < 0 else ", the opposite of what ENCORE does"
            yield (
                f"After {last.step} steps of gradient descent from zero, learned weight and "
                f"entropy correlate with r = {row.pearson_r:.2f} over {row.num_rules} rules: the "
                f"higher the entropy, the {way} the learned weight{contrast}."
            )
    wrong_way = [rule for rule in found.rules if rule.learned_weights[-1] < 0]
    if wrong_way:
        yield (
            f"{len(wrong_way)} of {len(found.rules)} rules learn a weight below zero, which "
            f"ENCORE's weights cannot have: {_names(wrong_way)}."
        )
    could_move = max(map(abs, last.gradient)) * found.step_size * last.step
    if could_move > _SETTLED:
        yield (
            f"The weights have not settled after {last.step} steps: as many again could move one "
            f"by {could_move:.2g}. Where some combination of rules is never wrong they grow for "
            "ever."
        )


def _names(rules: Sequence[TheoryRule]) -> str:
    return ", ".join(rule.rule_id for rule in rules)


# --- synthetic ratings ----------------------------------------------------------------------------


def counter_examples(*, tau: float = 2.0) -> tuple[CounterExample, ...]:
    """Three cases: a uniform rule that is perfect, a constant rule, a rule that cancels noise."""
    equal = examine(equal_entropy_example(), tau=tau)
    shared = examine(shared_noise_example(), tau=tau)
    perfect, dice, constant = equal.rules
    disturbed, noise = shared.rules
    last_step = equal.steps[-1].step
    return (
        CounterExample(
            name="a uniform rule that predicts perfectly",
            claim="A rule with maximally entropic (uniform) ratings gets no gradient.",
            finding=(
                f"{perfect.rule_id} has uniform ratings (entropy {perfect.entropy_nats:.3f} nats = "
                f"ln 10) and ranks {perfect.half_accuracy:.0%} of pairs right: gradient at zero "
                f"{perfect.gradient_at_zero:.3f}, and its weight grows to "
                f"{perfect.learned_weights[-1]:.1f} in {last_step} steps. {dice.rule_id} has the "
                f"same entropy and knows nothing: gradient {abs(dice.gradient_at_zero):.3f}. "
                f"ENCORE gives both the same weight, {perfect.encore_weight:.3f}."
            ),
            rule_ids=("uniform-and-perfect", "uniform-and-random"),
            examination=equal,
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
            rule_ids=("constant",),
            examination=equal,
        ),
        CounterExample(
            name="a rule that knows nothing but cancels another's noise",
            claim="A rule that alone knows nothing of the label keeps the weight zero.",
            finding=(
                f"{noise.rule_id} alone is right in {noise.half_accuracy:.0%} of pairs (ties "
                f"half), with gradient {abs(noise.gradient_at_zero):.3f} at zero. But it shares "
                f"the noise of {disturbed.rule_id} ({disturbed.half_accuracy:.0%} right), so it "
                f"learns the weight {noise.learned_weights[-1]:.1f} in {last_step} steps and the "
                "two together rank every pair right. The proof needs independence of the other "
                "rules too."
            ),
            rule_ids=("disturbed", "disturbance"),
            examination=shared,
        ),
    )


def noise_world(*, seed: int, num_pairs: int = 20_000) -> PairRatings:
    """Ten rules between a decisive one and pure noise: the mixture of the paper's remark.

    Rule k rates a pair with probability k/9 by throwing dice: each response gets one of 11 levels,
    all equally likely. Otherwise it is decisive: 1 to one response and 0 to the other, to the right
    one in 80 % of cases. So entropy rises from ln 2 to ln 11 and the mean margin falls from 0.6 to
    0, and the last rule is what the theorem is about: uniform and independent of the label.
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
    """500 pairs under three rules: two with uniform ratings, and one that always says 0.5.

    Both uniform rules give each of the levels 0, 0.1, … 0.9 to a tenth of the responses. The
    perfect one gives the chosen response always 0.5 more; the random one goes through all
    combinations of two levels, for each of the perfect one's, so that it knows nothing.
    """
    index_P = np.arange(500)
    level_P = index_P % 5 / 10
    half_P = np.full(len(index_P), 0.5)
    return _pairs(
        ("uniform-and-perfect", "uniform-and-random", "constant"),
        chosen_PR=np.stack([level_P + 0.5, index_P // 5 % 10 / 10, half_P], axis=1),
        rejected_PR=np.stack([level_P, index_P // 50 / 10, half_P], axis=1),
    )


def shared_noise_example() -> PairRatings:
    """400 pairs under two rules that share a disturbance s: +1, -1, 0 and 0 in turn.

    One rule's margin is 0.3 + 0.5 s: it knows the label, and is disturbed. The other's is 0.5 s:
    on its own it knows nothing.
    """
    disturbance_P = np.tile([1.0, -1.0, 0.0, 0.0], 100)
    margin_PR = np.stack([0.3 + 0.5 * disturbance_P, 0.5 * disturbance_P], axis=1)
    return _pairs(
        ("disturbed", "disturbance"), chosen_PR=0.5 + margin_PR / 2, rejected_PR=0.5 - margin_PR / 2
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
