"""`encore theory`: what the paper's theorem says about these rules, and what it does not."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from encore.cli.analyze import JudgeOption, exit_if_incomplete, number, percent
from encore.cli.output import (
    JsonOption,
    RunOption,
    compact_table,
    out,
    print_json,
    say,
    visible,
    warn_of_synthetic,
)

if TYPE_CHECKING:
    from rich.table import Table

    from encore.evidence.theory.counter_examples import CounterExample
    from encore.evidence.theory.examination import Examination
    from encore.evidence.theory.theorem import Theory


def theory(
    ratings: Annotated[
        Path | None,
        typer.Argument(
            metavar="RATINGS",
            help="A study, a Parquet file, or a folder of them, as for `encore analyze`.",
        ),
    ] = None,
    synthetic: Annotated[
        bool,
        typer.Option(
            "--synthetic",
            help="Instead of ratings: a synthetic world in which the theorem's premise holds, ten "
            "rules that are more and more noise.",
        ),
    ] = False,
    tau: Annotated[float, typer.Option(help="Temperature of ENCORE's weights.")] = 2.0,
    seed: Annotated[
        int, typer.Option(help="Of the synthetic world, of weights near zero, of samples.")
    ] = 0,
    run: RunOption = None,
    judge: JudgeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check the paper's Theorem 1 on your rules: gradients, learned weights, counter-examples.

    The theorem is about weights learned from people's preferences. With the reward G = Σ w_k ·
    (rating of chosen − rating of rejected) and the Bradley-Terry loss log(1 + exp(−G)), a rule's
    weight moves by its gradient, the mean of D · (chosen − rejected) with |D| at most 1. At zero
    weights D is −1/2 for every pair, so the gradient is minus half the rule's mean margin.

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
    from encore.evidence.theory.theorem import theory as check_theorem

    if (ratings is None) != synthetic:
        raise typer.BadParameter("give RATINGS or --synthetic, one of the two")
    if ratings is not None:
        warn_of_synthetic(ratings, run=run)
    found = check_theorem(ratings, synthetic=synthetic, tau=tau, seed=seed, run=run, judge=judge)
    if as_json:
        print_json(found.as_dict())
    else:
        _print(found)
    for note in found.notes:
        say(f"note: {note}")
    exit_if_incomplete(found.num_missing_shards, found.num_shards)


def _print(found: Theory) -> None:
    what = ": SYNTHETIC DATA" if found.is_synthetic else ""
    out.print(gradient_table(found.examination, what=what))
    out.print(learned_table(found.examination, what=what))
    out.print(step_table(found.examination))
    out.print(correlation_table(found.examination))
    for one in found.counter_examples:
        out.print(counter_example_table(one))
        out.print(f"The claim: {one.claim}\nWhat happens: {one.finding}\n")
    for statement in found.statements:
        out.print(visible(f"- {statement}"))


def gradient_table(found: Examination, *, what: str = "") -> Table:
    """Each rule's gradient at zero weights and near them, beside its entropy."""
    columns = ("rule", "entropy", "half", "margin", "gradient", "z", "near zero")
    rows = [
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
    ]
    title = f"Gradient of the mean loss at zero weights, {found.num_pairs:,} pairs{what}"
    return compact_table(columns, rows, title=title)


def learned_table(found: Examination, *, what: str = "") -> Table:
    """Each rule's weight by gradient descent after some steps, beside ENCORE's."""
    steps = [record.step for record in found.steps[1:]]
    columns = ("rule", "entropy", "ENCORE", *(f"step {step}" for step in steps))
    rows = [
        (
            rule.rule_id,
            number(rule.entropy_nats),
            number(rule.encore_weight),
            *(_signed(weight) for weight in rule.learned_weights),
        )
        for rule in found.rules
    ]
    return compact_table(
        columns, rows, title=f"Weights by gradient descent from zero, beside ENCORE's{what}"
    )


def step_table(found: Examination) -> Table:
    """The loss on the way, the largest |D| and the largest gradient."""
    columns = ("step", "mean loss", "largest |D|", "largest gradient")
    rows = [
        (
            record.step,
            number(record.loss, digits=4),
            number(record.largest_slope, digits=4),
            f"{max(map(abs, record.gradient)):.2g}",
        )
        for record in found.steps
    ]
    return compact_table(columns, rows, title=f"The way down, step size {found.step_size:.3g}")


def correlation_table(found: Examination) -> Table:
    """How what is learned from labels goes with entropy and with ENCORE's weights."""
    columns = ("over rules", "entropy r", "Spearman", "ENCORE r", "Spearman")
    names = {"gradient_size": "|gradient at zero|", "z_size": "|z|"}
    pairs = zip(
        (row for row in found.correlations if row.against == "entropy"),
        (row for row in found.correlations if row.against == "encore_weight"),
        strict=True,
    )
    rows = [
        (
            names.get(entropy.quantity, f"learned weight, step {entropy.step}"),
            number(entropy.pearson_r, digits=2),
            number(entropy.spearman_rho, digits=2),
            number(weight.pearson_r, digits=2),
            number(weight.spearman_rho, digits=2),
        )
        for entropy, weight in pairs
    ]
    title = "Correlation with entropy and with ENCORE's weights"
    return compact_table(columns, rows, title=title)


def counter_example_table(one: CounterExample) -> Table:
    """The rules of a counter-example."""
    last = one.examination.steps[-1].step
    columns = ("rule", "entropy", "ENCORE", "half", "ties", "gradient", f"step {last}")
    rules = [rule for rule in one.examination.rules if rule.rule_id in one.rule_ids]
    rows = [
        (
            rule.rule_id,
            number(rule.entropy_nats),
            number(rule.encore_weight),
            percent(rule.half_accuracy),
            percent(rule.tie_rate),
            _signed(rule.gradient_at_zero),
            _signed(rule.learned_weights[-1]),
        )
        for rule in rules
    ]
    return compact_table(columns, rows, title=f"Counter-example (synthetic): {one.name}")


def _signed(value: float) -> str:
    """Three digits; nothing but rounding is 0.000 and not -0.000."""
    return number(round(value, 3) + 0.0)
