"""`encore check`: pass only if rules agree with people's preferences above a floor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from encore.analysis.check_options import CheckConfig
from encore.cli.output import Renderable, compact_table, percent, show_result, warn_of_synthetic
from encore.core.command_parser import JsonOption, command
from encore.core.number_text import first_names, pairs_of_prompts, points
from encore.core.terminal import say

if TYPE_CHECKING:
    from encore.analysis.check_study import StudyCheck


@command
def check(config: CheckConfig, *, json: JsonOption = False) -> None:
    """Pass only if rules agree with people above a floor, or no less than in an older run.

    Agreement is the rule's accuracy over pairs without a tie, as in `encore analyze`: a rule passes
    if the lower one-sided 95 % bound of it is above --floor. All rules must pass, so a check in
    which any rule is at the floor or below passes wrongly at most 1 time in 20, if the rules were
    chosen before these pairs were looked at. A table shows each rule, and how many further pairs
    would decide.

    With --against, a rule passes if the lower bound of its difference to the older run, on the same
    pairs, ties counting one half, is above the negative of --margin.

    The record that is written is bound to the judge, to the wording of prompts and rules, and to
    the limits. With --record FILE, a FILE of another judge, wording or limit is stale: the check
    fails and names what differs.

    Examples: `encore check study --floor 0.8 --rule 3 --rule avoid-harm --record accepted.json`,
    `encore check study --run 3f --against 9a --margin 0.02`.

    Exit code 4: a rule did not pass, or the record is stale. 3: the run is not complete.
    """
    from encore.analysis.check_study import check_study, raise_if_failed

    study_check = check_study(config)
    warn_of_synthetic(study_check.ratings.synthetic)
    show_result(
        study_check.as_dict(),
        _tables(study_check),
        study_check.notes,
        ratings=study_check.ratings,
        as_json=json,
    )
    if not study_check.stale:
        say(f"record: {study_check.record}")
    raise_if_failed(study_check)


def _tables(check: StudyCheck) -> Iterator[Renderable]:
    """Yield a table of each rule against the floor, then one against the older run."""
    pairs = pairs_of_prompts(check.num_pairs, check.num_prompts)
    if check.rules:
        rows = [
            (
                row.rule_id,
                percent(row.agreement.value),
                percent(row.agreement.low),
                row.num_untied_pairs,
                percent(row.tie_rate),
                *_outcome_cells(row.outcome, row.num_more_pairs),
            )
            for row in check.rules
        ]
        columns: tuple[str, ...] = (
            "rule",
            "agrees",
            "at least",
            "untied",
            "ties",
            "floor",
            "more pairs",
        )
        title = f"Floor {percent(check.floor)} of untied pairs, 95 % bounds; {pairs}"
        yield compact_table(columns, rows, title=title)
    if check.drift:
        changes = [
            (
                row.rule_id,
                points(row.difference.value),
                points(row.difference.low),
                row.num_pairs,
                row.num_better_pairs,
                row.num_worse_pairs,
                *_outcome_cells(row.outcome, row.num_more_pairs),
            )
            for row in check.drift
        ]
        title = (
            f"Difference to run {check.against} in points, margin {points(-(check.margin or 0))}"
        )
        columns = ("rule", "Δ", "at least", "pairs", "better", "worse", "margin", "more pairs")
        yield compact_table(columns, changes, title=title)
        yield f"{_drift_sentence(check)}\n"


def _outcome_cells(outcome: str, num_more_pairs: int | None) -> tuple[str, str]:
    """Return the cells on a rule's outcome and on the pairs that would decide it."""
    more_pairs = f"{num_more_pairs:,}" if num_more_pairs else ""
    return "pass" if outcome == "above" else outcome, more_pairs


def _drift_sentence(check: StudyCheck) -> str:
    """Return in one line under which rules the new run agrees more or less with people."""
    rules = {
        "more": [row.rule_id for row in check.drift if (row.difference.low or 0) > 0],
        "less": [row.rule_id for row in check.drift if (row.difference.high or 0) < 0],
    }
    parts = [
        f"{direction} under {first_names(rule_ids)}"
        for direction, rule_ids in rules.items()
        if rule_ids
    ]
    if not parts:
        return "Neither run is shown to agree more with people than the other."
    return f"The new run agrees with people {', '.join(parts)}."
