"""`encore theory`: what the paper's theorem says about these rules, and what it does not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING

from encore.analysis.answer_options import DEFAULT_TAU
from encore.cli.output import (
    Renderable,
    TableColumns,
    opened_ratings,
    percent_of,
    record_table,
    rule_legend,
    rule_table,
    show_result,
)
from encore.core.command_parser import JsonOption, UsageError, command
from encore.core.config import option
from encore.core.terminal import say_next
from encore.data.study_options import RatingsConfig, StudyFolder
from encore.weighting.scheme_options import tau_option

if TYPE_CHECKING:
    from encore.weighting.theory import Theory, TheoryRule


class TheoryConfig(RatingsConfig):
    """Options of `encore theory`."""

    ratings: StudyFolder | None = option(  # type: ignore[assignment]  # not needed for a synthetic world
        None, positional=True, identity=False
    )
    """A study, a Parquet file, or a folder of them, as for `encore analyze`."""
    synthetic: bool = option(False)
    """Use a synthetic world instead of ratings. The theorem's premise holds there: its ten rules
    contain more and more noise."""
    tau: float = tau_option(DEFAULT_TAU)
    seed: int = option(0, ge=0)
    """Seed of the synthetic world and of the weights near zero."""


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

    Two synthetic counter-examples follow, because the theorem calls such rules maximally entropic,
    and entropy is another matter: a rule with uniform ratings that is always right, and a constant
    rule.

    Examples: `encore theory study`, `encore theory ratings.parquet --json`,
    `encore theory --synthetic`.

    Exit code 3: the run is not complete; the figures are those of its finished shards.
    """
    if (config.ratings is None) != config.synthetic:
        raise UsageError("give RATINGS or --synthetic, one of the two")
    from encore.weighting.theory import theory as check_theorem

    ratings = None if config.synthetic else opened_ratings(config)
    checked = check_theorem(ratings, tau=config.tau, seed=config.seed)
    show_result(asdict(checked), _tables(checked), checked.notes, ratings=ratings, as_json=json)
    run = ("--run", config.run) if config.run else ()
    say_next("weights", config.ratings or "STUDY", *run, "--compare")


def _tables(checked: Theory) -> Iterator[Renderable]:
    mark = ": SYNTHETIC DATA" if checked.is_synthetic else ""
    rule_ids = [rule.rule_id for rule in checked.rules]
    entropy: TableColumns = {"entropy": "entropy_nats"}
    half: TableColumns = {"half": percent_of("half_accuracy")}
    gradients: TableColumns = {
        "margin": "mean_margin",
        "gradient": "gradient_at_zero",
        "z": "z",
        "near zero": "gradient_near_zero",
    }
    weight: TableColumns = {"ENCORE": "encore_weight"}
    steps: TableColumns = {
        f"step {step}": partial(_learned_weight, index) for index, step in enumerate(checked.steps)
    }
    title = f"Gradient of the mean loss at zero weights, {checked.num_pairs:,} pairs{mark}"
    yield rule_table(rule_ids, checked.rules, {**entropy, **half, **gradients}, title=title)
    title = f"Weights by gradient descent from zero, beside ENCORE's{mark}"
    yield rule_table(rule_ids, checked.rules, {**entropy, **weight, **steps}, title=title)
    yield rule_legend(rule_ids)
    last: TableColumns = {"last step": partial(_learned_weight, -1)}
    columns: TableColumns = {"rule": "rule_id", **entropy, **weight, **half, **gradients, **last}
    columns = {title: column for title, column in columns.items() if title != "near zero"}
    for example in checked.counter_examples:
        title = f"Counter-example (synthetic): {example.name}"
        yield record_table(example.rules, columns, title=title)
        yield f"The claim: {example.claim}\nWhat happens: {example.finding}\n"
    for statement in checked.statements:
        yield f"- {statement}"


def _learned_weight(step_index: int, rule: TheoryRule) -> float:
    return rule.learned_weights[step_index]
