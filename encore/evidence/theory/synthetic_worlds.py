"""Ratings made for the theorem: a synthetic world in which it holds, and small counter-examples.

The counter-examples show where "maximally entropic" and "label-independent" come apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from encore.evidence.theory.examination import Examination, examine
from encore.warehouse import PairRatings

# Suffixes: P pairs, R rules.

NUM_PAIRS = 20_000
_NUM_RULES = 10
#: How often the part of a rule that knows the label is right.
_SKILL = 0.8
_NUM_LEVELS = 11

_Floats = NDArray[np.float64]


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


def counter_examples(*, tau: float = 2.0) -> tuple[CounterExample, ...]:
    """Three cases: a uniform rule that is perfect, a constant rule, a rule that cancels noise."""
    equal = examine(equal_entropy_example(), tau=tau)
    shared = examine(shared_noise_example(), tau=tau)
    perfect, dice = equal.rule("uniform-and-perfect"), equal.rule("uniform-and-random")
    constant = equal.rule("constant")
    disturbed, noise = shared.rule("disturbed"), shared.rule("disturbance")
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
            rule_ids=(perfect.rule_id, dice.rule_id),
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
            rule_ids=(constant.rule_id,),
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
            rule_ids=(disturbed.rule_id, noise.rule_id),
            examination=shared,
        ),
    )


def noise_world(*, seed: int, num_pairs: int = NUM_PAIRS) -> PairRatings:
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
        ("disturbed", "disturbance"),
        chosen_PR=0.5 + margin_PR / 2,
        rejected_PR=0.5 - margin_PR / 2,
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
