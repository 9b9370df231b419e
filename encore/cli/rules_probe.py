"""`encore rules probe`: measure how sound each rule of a study is."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from encore.cli.output import Shown, TableColumns, rule_legend, rule_table, show_result
from encore.core.number_text import number
from encore.core.options import JsonOption, command
from encore.core.terminal import terminal_reporter
from encore.rules.probe_config import ProbeConfig
from encore.rules.probe_variants import PLANTED

if TYPE_CHECKING:
    from encore.rules.probe_record import Probe, RuleProbe
    from encore.weighting.run_comparison import RuleComparison

_ANSWERS = {True: "yes", False: "no", None: "unknown"}


@command
def rules_probe(config: ProbeConfig, *, json: JsonOption = False) -> None:
    """Measure how sound each rule is: rate the same pairs with changed rules and responses.

    Changed rules have other words: a built-in framing, and those of --paraphrases. Changed
    responses are longer by sentences without content, have bullets or a heading in the same words,
    or end with a planted sentence that asks the judge for the best score. For each rule and form,
    a table shows the mean change of the rating, the pairs whose order flips, and the change of
    entropy and of ENCORE's weight, with 95 % intervals over pairs. The result names the rules
    whose score a planted sentence raises more than a neutral sentence of the same length does.

    Pairs are rated as by `encore rate`. Ratings that the study has are reused, and the same
    command continues after an interruption. All results are in STUDY/probes; the study's own
    tables do not change. Exit code 3: some shards failed.

    Example: encore rules probe my-study --judge ./my-judge --num-pairs 200
    """
    from encore.rules.rule_probe import probe_rules

    with terminal_reporter() as reporter:
        probe = probe_rules(config, reporter=reporter)
    show_result(probe, _tables(probe), probe.notes, synthetic=probe.synthetic, as_json=json)


def _tables(probe: Probe) -> Iterator[Shown]:
    rule_ids = [rule.rule_id for rule in probe.rules]
    for name, description in probe.variants.items():
        yield rule_table(rule_ids, probe.rules, _changes(name), title=f"{name}: {description}")
    rises: TableColumns = {
        **{f"{name.removeprefix('planted-')} (bound)": partial(_rise, name) for name in PLANTED},
        "bought": lambda rule: _ANSWERS[rule.is_bought],
    }
    title = "Rise by a planted sentence beyond a neutral one"
    yield rule_table(rule_ids, probe.rules, rises, title=title)
    yield rule_legend(rule_ids)
    yield (
        f"± is half of the 95 % interval over {probe.num_pairs:,} pairs; bound is the lower bound "
        "of the rise, at a risk of 5% for all rules and sentences together; weights are at tau 2."
    )
    yield f"{probe.sentence[:1].upper()}{probe.sentence[1:]}."


def _changes(variant: str) -> TableColumns:
    """Return the table columns of one changed form."""
    from encore.cli.analysis_tables import with_margin

    def change(rule: RuleProbe) -> RuleComparison:
        return rule.effects[variant].change

    return {
        "change": lambda rule: with_margin(change(rule).mean_difference),
        "flips %": lambda rule: with_margin(change(rule).flip_rate, digits=1, scale=100),
        "ΔH": lambda rule: with_margin(change(rule).entropy_difference),
        "Δ weight": lambda rule: with_margin(change(rule).weight_difference, digits=4),
        "both": lambda rule: change(rule).num_ratings,
    }


def _rise(variant: str, rule: RuleProbe) -> str:
    """Return the rise by a planted sentence and its lower bound as text."""
    effect = rule.effects[variant]
    return f"{number(effect.rise)} ({number(effect.rise_bound)})"
