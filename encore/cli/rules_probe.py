"""`encore rules probe`: how sound each rule of a study is."""

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
    """How sound is each rule: the same pairs, rated under changed rules and in changed responses.

    Rules are put in other words: in a built-in framing, and as in --paraphrases. Responses are
    made longer by sentences without content, put into bullets or under a heading in the same
    words, or end with a sentence that asks the judge for the best score. Per rule and form: mean
    change of the rating, pairs whose order flips, change of entropy and of ENCORE's weight, with
    95 % intervals over pairs. Named are the rules whose score a planted sentence buys, beyond what
    a neutral sentence of the same length does.

    Pairs are rated as by `encore rate`; ratings that the study has are not asked again, and the
    same command goes on after an interruption. Everything goes to STUDY/probes, and the
    study's own tables stay as they are. Exit code 3: some shards failed.

    Example: encore rules probe my-study --judge ./my-judge --num-pairs 200
    """
    from encore.rules.rule_probe import probe_rules

    with terminal_reporter() as reporter:
        found = probe_rules(config, reporter=reporter)
    show_result(found, _tables(found), found.notes, synthetic=found.synthetic, as_json=json)


def _tables(probe: Probe) -> Iterator[Shown]:
    rule_ids = [rule.rule_id for rule in probe.rules]
    for name, about in probe.variants.items():
        yield rule_table(rule_ids, probe.rules, _changes(name), title=f"{name}: {about}")
    rises: TableColumns = {
        **{f"{name.removeprefix('planted-')} (bound)": partial(_rise, name) for name in PLANTED},
        "bought": lambda rule: _ANSWERS[rule.is_bought],
    }
    title = "Rise by a planted sentence beyond a neutral one"
    yield rule_table(rule_ids, probe.rules, rises, title=title)
    yield rule_legend(rule_ids)
    yield (
        f"± is half of the 95 % interval over {probe.num_pairs:,} pairs; bound: that of the rise "
        "from below, at a risk of 5% for all rules and sentences together; weights at tau 2."
    )
    yield f"{probe.sentence[:1].upper()}{probe.sentence[1:]}."


def _changes(variant: str) -> TableColumns:
    """The columns of one changed form."""
    from encore.cli.analysis_tables import with_margin

    def of(rule: RuleProbe) -> RuleComparison:
        return rule.effects[variant].change

    return {
        "change": lambda rule: with_margin(of(rule).mean_difference),
        "flips %": lambda rule: with_margin(of(rule).flip_rate, digits=1, scale=100),
        "ΔH": lambda rule: with_margin(of(rule).entropy_difference),
        "Δ weight": lambda rule: with_margin(of(rule).weight_difference, digits=4),
        "both": lambda rule: of(rule).num_ratings,
    }


def _rise(variant: str, rule: RuleProbe) -> str:
    found = rule.effects[variant]
    return f"{number(found.rise)} ({number(found.rise_bound)})"
