"""`encore annotate import`: take in what annotators gave back, and say how far all agree."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from encore.annotation.annotate_config import AnnotateImportConfig
from encore.cli.output import TableColumns, counted, estimate_of, percent, record_table
from encore.options import JsonOption, command
from encore.terminal import out, print_json, say, visible, warn

if TYPE_CHECKING:
    from encore.annotation.answers import Sample
    from encore.annotation.people_and_judges import PeopleReport

#: How many disagreements are listed; --json has all of them.
_NUM_DISAGREEMENTS = 10


@command
def annotate_import(config: AnnotateImportConfig, *, json: JsonOption = False) -> None:
    """Put annotators' answers into their study and report who agrees with whom, per rule.

    Reads what the page saved, filled CSV files and Label Studio's JSON export, checks all of them,
    and writes all or none. An annotator's earlier answers are replaced, so importing a file again
    changes nothing. Missing answers are allowed and counted.

    A judge's rating counts as the nearest label of the scale, the higher of two that are equally
    near. Judges are compared with the median label of people. Samples of --kind rules give the win
    rate of lower-entropy rules (the paper: 83%).

    Example: `encore annotate import study annotator-1.json annotator-2.json`
    """
    from encore.annotation.import_answers import import_answers
    from encore.annotation.people_and_judges import people_report
    from encore.data.study import open_study

    sample, imported = import_answers(config)
    for one in imported:
        total = one["num_answers"] + one["num_missing"]
        say(f"{one['annotator']}: {one['num_answers']:,} of {total:,} answers")
        if one["always"] is not None:
            warn(f"{one['annotator']} gave the same answer to every item: {one['always']}")
    report = people_report(open_study(config.study), sample)
    if json:
        about = {"sample": sample.key, "imported": imported}
        print_json(about | dataclasses.asdict(report))
    elif sample.kind == "rules":
        _print_win_rates(report)
    else:
        _print_agreement(report, sample)


def _print_agreement(report: PeopleReport, sample: Sample) -> None:
    columns: TableColumns = {
        "rule": "rule_id",
        "people and": "who",
        "items": "num_items",
        "kappa (95 %)": estimate_of("kappa"),
        "alpha (95 %)": estimate_of("alpha"),
    }
    people = counted(len(report.annotators), "annotator")
    scale = ", ".join(sample.scale)
    out.print(record_table(report.rules, columns, title=f"Agreement of {people}, scale {scale}"))
    found = report.disagreements
    out.print(f"Disagreements: {counted(len(found), 'item')}" + ", the largest first" * bool(found))
    for one in found[:_NUM_DISAGREEMENTS]:
        said = ", ".join(f"{name} {label:g}" for name, label in one["said"].items())
        place = f"  {one['rule_id']}, {one['response_id']}"
        out.print(visible(f"{place}: {said}"), soft_wrap=True)


def _print_win_rates(report: PeopleReport) -> None:
    columns: TableColumns = {
        "question": "question",
        "comparisons": "num_comparisons",
        "pairs of rules": "num_items",
        "lower entropy chosen (95 %)": estimate_of("win_rate", percent),
    }
    title = f"Rules of lower entropy, {counted(len(report.annotators), 'annotator')}"
    out.print(record_table(report.win_rates, columns, title=title))
    out.print(
        f"The paper's 83% would be shown by {report.comparisons_needed} independent comparisons "
        "(against 50%, at 5%, power 0.8). Intervals resample pairs of rules: several annotators of "
        "one pair count for less than as many pairs."
    )
