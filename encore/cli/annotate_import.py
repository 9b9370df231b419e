"""`encore annotate import`: take in what annotators gave back, and say how far all agree."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING

from encore.cli.output import Shown, TableColumns, estimate_of, percent, record_table, show_result
from encore.core.number_text import counted
from encore.core.options import JsonOption, command
from encore.core.terminal import say, warn
from encore.people.annotate_config import AnnotateImportConfig

if TYPE_CHECKING:
    from encore.data.annotations import Sample
    from encore.people.people_and_judges import PeopleReport

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
    from encore.data.study import open_study
    from encore.people.import_answers import import_answers
    from encore.people.people_and_judges import people_report

    sample, imported = import_answers(config)
    for one in imported:
        total = one["num_answers"] + one["num_missing"]
        say(f"{one['annotator']}: {one['num_answers']:,} of {total:,} answers")
        if one["always"] is not None:
            warn(f"{one['annotator']} gave the same answer to every item: {one['always']}")
    report = people_report(open_study(config.study), sample)
    tables = _win_rates(report) if sample.kind == "rules" else _agreement(report, sample)
    found = {"sample": sample.key, "imported": imported, **dataclasses.asdict(report)}
    show_result(found, tables, as_json=json)


def _agreement(report: PeopleReport, sample: Sample) -> Iterator[Shown]:
    columns: TableColumns = {
        "rule": "rule_id",
        "people and": "who",
        "items": "num_items",
        "kappa (95 %)": estimate_of("kappa"),
        "alpha (95 %)": estimate_of("alpha"),
    }
    people = counted(len(report.annotators), "annotator")
    scale = ", ".join(sample.scale)
    yield record_table(report.rules, columns, title=f"Agreement of {people}, scale {scale}")
    found = report.disagreements
    yield f"Disagreements: {counted(len(found), 'item')}" + ", the largest first" * bool(found)
    for one in found[:_NUM_DISAGREEMENTS]:
        said = ", ".join(f"{name} {label:g}" for name, label in one["said"].items())
        yield f"  {one['rule_id']}, {one['response_id']}: {said}"


def _win_rates(report: PeopleReport) -> Iterator[Shown]:
    columns: TableColumns = {
        "question": "question",
        "comparisons": "num_comparisons",
        "pairs of rules": "num_items",
        "lower entropy chosen (95 %)": estimate_of("win_rate", percent),
    }
    title = f"Rules of lower entropy, {counted(len(report.annotators), 'annotator')}"
    yield record_table(report.win_rates, columns, title=title)
    yield (
        f"The paper's 83% would be shown by {report.comparisons_needed} independent comparisons "
        "(against 50%, at 5%, power 0.8). Intervals resample pairs of rules: several annotators of "
        "one pair count for less than as many pairs."
    )
