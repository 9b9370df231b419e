"""`encore theory`: what the paper's theorem says about these rules, and what it does not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from encore.cli.output import compact_table, warn_of_synthetic
from encore.cli.rule_tables import NumberedRules, number, percent, show_result
from encore.evidence.theory_config import TheoryConfig
from encore.options import JsonOption, UsageError, command
from encore.terminal import visible

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from encore.evidence.theory import CounterExample, Theory
    from encore.evidence.theory_examination import Examination


@command
def theory(config: TheoryConfig, *, json: JsonOption = False) -> None:
    """Check the paper's Theorem 1 on your rules: gradients, learned weights, counter-examples.

    The theorem is about weights learned from people's preferences. With the reward G = Σ w_k ·
    (rating of chosen - rating of rejected) and the Bradley-Terry loss log(1 + exp(-G)), a rule's
    weight moves by its gradient, the mean of D · (chosen - rejected) with |D| at most 1. At zero
    weights D is -1/2 for every pair, so the gradient is minus half the rule's mean margin.

    z says how many standard deviations that is from zero if labels were drawn by lot: a rule with
    |z| below 2 is what the theorem is about. The second table lets gradient descent run from zero
    and shows the learned weights beside ENCORE's, which see no label. They are free in size and
    sign; compare their order. (`encore weights --scheme bradley-terry` fits them to the end.)

    Three synthetic counter-examples follow, because the theorem calls such rules maximally
    entropic, and entropy is another matter: a rule with uniform ratings that is always right, a
    constant rule, and a rule that only cancels another's noise.

    Examples: `encore theory study`, `encore theory ratings.parquet --json`,
    `encore theory --synthetic`.

    Exit code 3: the run is not complete; the figures are those of its finished shards.
    """
    if (config.ratings is None) != config.synthetic:
        raise UsageError("give RATINGS or --synthetic, one of the two")
    from encore.evidence.theory import theory as check_theorem
    from encore.warehouse import open_ratings

    ratings = None
    if config.ratings is not None:
        warn_of_synthetic(config.ratings, run=config.run)
        ratings = open_ratings(config.ratings, run=config.run, judge=config.judge)
    found = check_theorem(ratings, synthetic=config.synthetic, tau=config.tau, seed=config.seed)
    show_result(found, _tables(found), found.notes, as_json=json)


def _tables(found: Theory) -> Iterator[RenderableType]:
    what = ": SYNTHETIC DATA" if found.is_synthetic else ""
    rules = NumberedRules(rule.rule_id for rule in found.examination.rules)
    yield from _rule_tables(found.examination, rules, what=what)
    yield rules.legend()
    yield _step_table(found.examination)
    yield _correlation_table(found.examination)
    for one in found.counter_examples:
        yield _counter_example_table(one)
        yield f"The claim: {one.claim}\nWhat happens: {one.finding}\n"
    for statement in found.statements:
        yield visible(f"- {statement}")


def _rule_tables(found: Examination, rules: NumberedRules, *, what: str) -> Iterator[Table]:
    """Each rule's gradients beside its entropy; its learned weights beside ENCORE's."""
    yield rules.table(
        ("entropy", "half", "margin", "gradient", "z", "near zero"),
        [
            (
                rule.rule_id,
                number(rule.entropy_nats),
                percent(rule.half_accuracy),
                number(rule.mean_margin, digits=4),
                number(rule.gradient_at_zero, digits=4),
                number(rule.z, digits=1),
                number(rule.gradient_near_zero, digits=4),
            )
            for rule in found.rules
        ],
        title=f"Gradient of the mean loss at zero weights, {found.num_pairs:,} pairs{what}",
    )
    yield rules.table(
        ("entropy", "ENCORE", *(f"step {record.step}" for record in found.steps[1:])),
        [
            (
                rule.rule_id,
                number(rule.entropy_nats),
                number(rule.encore_weight),
                *map(number, rule.learned_weights),
            )
            for rule in found.rules
        ],
        title=f"Weights by gradient descent from zero, beside ENCORE's{what}",
    )


def _step_table(found: Examination) -> Table:
    """The loss on the way, the largest |D| and the largest gradient."""
    rows = [
        (
            record.step,
            number(record.loss, digits=4),
            number(record.largest_slope, digits=4),
            f"{max(map(abs, record.gradient)):.2g}",
        )
        for record in found.steps
    ]
    columns = ("step", "mean loss", "largest |D|", "largest gradient")
    return compact_table(columns, rows, title=f"The way down, step size {found.step_size:.3g}")


def _correlation_table(found: Examination) -> Table:
    """How what is learned from labels goes with entropy and with ENCORE's weights."""
    names = {"gradient_size": "|gradient at zero|", "z_size": "|z|"}
    half = len(found.correlations) // 2  # first against entropy, then against ENCORE's weights
    rows: Sequence[Sequence[object]] = [
        (
            names.get(entropy.quantity, f"learned weight, step {entropy.step}"),
            *(
                number(value, digits=2)
                for row in (entropy, weight)
                for value in (row.pearson_r, row.spearman_rho)
            ),
        )
        for entropy, weight in zip(
            found.correlations[:half], found.correlations[half:], strict=True
        )
    ]
    columns = ("over rules", "entropy r", "Spearman", "ENCORE r", "Spearman")
    return compact_table(columns, rows, title="Correlation with entropy and with ENCORE's weights")


def _counter_example_table(one: CounterExample) -> Table:
    """The rules of a counter-example."""
    last = one.examination.steps[-1].step
    rows = [
        (
            rule.rule_id,
            number(rule.entropy_nats),
            number(rule.encore_weight),
            percent(rule.half_accuracy),
            percent(rule.tie_rate),
            number(rule.gradient_at_zero),
            number(rule.learned_weights[-1]),
        )
        for rule in one.examination.rules
        if rule.rule_id in one.rule_ids
    ]
    columns = ("rule", "entropy", "ENCORE", "half", "ties", "gradient", f"step {last}")
    return compact_table(columns, rows, title=f"Counter-example (synthetic): {one.name}")
