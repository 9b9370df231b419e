"""What the theorem's figures mean, in plain words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from encore.evidence.theory.examination import Z_LIMIT, Examination, TheoryRule

#: Weights that could still move by less than this have settled.
_SETTLED = 0.01

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


def statements(found: Examination) -> tuple[str, ...]:
    """What the theorem says, what these pairs show, what the theorem does not say."""
    return (SAYS, *_about_gradients(found), *_about_learned_weights(found), DOES_NOT_SAY)


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
    yield _about_highest_entropy(max(found.rules, key=lambda rule: rule.entropy_nats))


def _about_highest_entropy(rule: TheoryRule) -> str:
    start = f"The rule of highest entropy, {rule.rule_id} ({rule.entropy_nats:.3f} nats), "
    if rule.z is None:
        return start + "never tells two responses apart: no gradient."
    if rule.depends_on_labels:
        return start + (
            f"depends on the label (z = {rule.z:.1f}): high entropy has not made it what the "
            "theorem calls maximally entropic."
        )
    return start + (
        f"shows no dependence on the label (z = {rule.z:.1f}): here high entropy and the theorem's "
        "premise go together."
    )


def _about_learned_weights(found: Examination) -> Iterator[str]:
    last = found.steps[-1]
    for row in found.correlations:
        if row.step == last.step and row.against == "entropy" and row.pearson_r is not None:
            yield (
                f"After {last.step} steps of gradient descent from zero, learned weight and "
                f"entropy correlate with r = {row.pearson_r:.2f} over {row.num_rules} rules: the "
                f"higher the entropy, the {'lower' if row.pearson_r < 0 else 'higher'} the learned "
                f"weight{'' if row.pearson_r < 0 else ', the opposite of what ENCORE does'}."
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
