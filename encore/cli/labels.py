"""`encore labels`: people's labels of single responses beside a judge's ratings."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from encore.cli.output import (
    Shown,
    TableColumns,
    percent_of,
    rule_legend,
    rule_table,
    show_result,
    span,
)
from encore.core.number_text import number
from encore.core.options import JsonOption, command
from encore.core.terminal import say, terminal_reporter
from encore.people.labels_config import LabelsConfig

if TYPE_CHECKING:
    from encore.people.rule_agreement import LabelAgreement


@command
def labels(config: LabelsConfig, *, json: JsonOption = False) -> None:
    """How far does a judge agree with people's labels of single responses, rule by rule?

    A judge rates every response under every rule that has labels, as `encore rate` does with pairs;
    the same command goes on after an interruption. A table that has ratings needs no judge. Per
    rule: how often people say yes, equal labels, Cohen's kappa and Krippendorff's alpha with 95 %
    intervals, and the entropy of the ratings; then how that entropy goes with agreement over rules.
    A rating counts as the nearest of the values that labels have: as yes from one half on. Labels
    without pairs are not for `encore analyze`, `weights` and `train`.

    Examples: encore labels gold.jsonl.gz --to study --judge ./my-judge --rules propositions.yaml

    encore labels rated.csv
    """
    from encore.people.judge_labels import judge_labels

    with terminal_reporter() as reporter:
        found = judge_labels(config, reporter=reporter)
    show_result(found, _tables(found), found.notes, synthetic=found.synthetic, as_json=json)
    if found.table is not None:
        say(f"labels and ratings: {found.table}")


def _tables(found: LabelAgreement) -> Iterator[Shown]:
    rule_ids = [rule.rule_id for rule in found.rules]
    two = partial(number, digits=2)
    columns: TableColumns = {
        "labels": "num_labels",
        "rated": "num_ratings",
        "yes": percent_of("positive"),
        "equal": percent_of("agreement"),
        "kappa": lambda rule: two(rule.kappa.value),
        "95 % ": lambda rule: span(rule.kappa.low, rule.kappa.high, two),
        "alpha": lambda rule: two(rule.alpha.value),
        "95 %": lambda rule: span(rule.alpha.low, rule.alpha.high, two),
        "H": lambda rule: two(rule.entropy_nats),
    }
    yield rule_table(rule_ids, found.rules, columns, title="Judge and people, by rule")
    yield rule_legend(rule_ids)
    yield f"{found.sentence}.\n"
