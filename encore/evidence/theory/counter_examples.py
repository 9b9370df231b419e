"""Where "maximally entropic" and "label-independent" come apart: made-up rules, real figures."""

from __future__ import annotations

from dataclasses import dataclass

from encore.evidence.theory.examination import Examination, examine
from encore.evidence.theory.worlds import equal_entropy_example, shared_noise_example


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
    return (_uniform_but_perfect(equal), _constant(equal), _disturbance(shared))


def _uniform_but_perfect(found: Examination) -> CounterExample:
    perfect, dice = found.rule("uniform-and-perfect"), found.rule("uniform-and-random")
    return CounterExample(
        name="a uniform rule that predicts perfectly",
        claim="A rule with maximally entropic (uniform) ratings gets no gradient.",
        finding=(
            f"{perfect.rule_id} has uniform ratings (entropy {perfect.entropy_nats:.3f} nats = ln "
            f"10) and ranks {perfect.half_accuracy:.0%} of pairs right: gradient at zero "
            f"{perfect.gradient_at_zero:.3f}, and its weight grows to "
            f"{perfect.learned_weights[-1]:.1f} in {found.steps[-1].step} steps. "
            f"{dice.rule_id} has the same entropy and knows nothing: gradient "
            f"{abs(dice.gradient_at_zero):.3f}. ENCORE gives both the same weight, "
            f"{perfect.encore_weight:.3f}."
        ),
        rule_ids=(perfect.rule_id, dice.rule_id),
        examination=found,
    )


def _constant(found: Examination) -> CounterExample:
    constant = found.rule("constant")
    return CounterExample(
        name="a constant rule",
        claim="A rule of low entropy deserves weight.",
        finding=(
            f"{constant.rule_id} has the lowest possible entropy, {constant.entropy_nats:.3f}, and "
            f"so the largest of ENCORE's weights, {constant.encore_weight:.3f}; it ties every pair "
            f"and ranks nothing. Its gradient is exactly {abs(constant.gradient_at_zero):g} at any "
            "weights: the loss never gives it any."
        ),
        rule_ids=(constant.rule_id,),
        examination=found,
    )


def _disturbance(found: Examination) -> CounterExample:
    disturbed, noise = found.rule("disturbed"), found.rule("disturbance")
    return CounterExample(
        name="a rule that knows nothing but cancels another's noise",
        claim="A rule that alone knows nothing of the label keeps the weight zero.",
        finding=(
            f"{noise.rule_id} alone is right in {noise.half_accuracy:.0%} of pairs (ties half), "
            f"with gradient {abs(noise.gradient_at_zero):.3f} at zero. But it shares the noise of "
            f"{disturbed.rule_id} ({disturbed.half_accuracy:.0%} right), so it learns the weight "
            f"{noise.learned_weights[-1]:.1f} in {found.steps[-1].step} steps and the two together "
            "rank every pair right. The proof needs independence of the other rules too."
        ),
        rule_ids=(disturbed.rule_id, noise.rule_id),
        examination=found,
    )
