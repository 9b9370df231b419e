"""`encore annotate …`: draw samples for annotators, and import their answers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from encore.cli.output import (
    Renderable,
    TableColumns,
    estimate_of,
    percent,
    record_table,
    rule_legend,
    show_result,
)
from encore.cli.rate_tables import rate_lines
from encore.core.command_parser import JsonOption, command
from encore.core.number_text import counted
from encore.core.terminal import say, say_next, warn
from encore.people.people_options import AnnotateExportConfig, AnnotateImportConfig

if TYPE_CHECKING:
    from encore.data.annotations import Sample
    from encore.people.people_and_judges import PeopleReport

#: Number of disagreements that are printed; --json has all of them.
_NUM_DISAGREEMENTS = 10


@command
def annotate_export(config: AnnotateExportConfig, *, json: JsonOption = False) -> None:
    """Draw a blind, stratified, seeded sample of a study for people to answer.

    Responses are spread over sources, rules and the judge's ratings, so that rare ratings occur.
    Annotators see neither ratings nor ranks, entropies or preferences; only the examples of --kind
    rules have scores, as in the paper. All annotators get the same items. The data that an import
    needs stay in STUDY/annotations/KEY; give annotators only the files that are printed.

    --next draws where another label narrows the interval of people's rate most, and prints what the
    labels so far say: how many labels each further label is worth beside the judge.

    Examples: `encore annotate export study --annotators 3`,
    `encore annotate export study --kind rules --annotators 3`,
    `encore annotate export study --items 500 --format label-studio`.
    """
    from encore.data.study import open_study
    from encore.people.export_sample import export_sample
    from encore.people.rates_by_rule import rates_of_study

    study = open_study(config.study)
    export = export_sample(study, config)
    sample, notes = export.sample, [export.note] if export.note else []
    record = {**sample.model_dump(), "files": export.files}
    parts: list[Renderable] = [*map(str, export.files)]
    if config.next:
        rates = record["rates"] = tuple(rates_of_study(study))
        rule_ids = sorted({row.rule_id for row in rates})
        parts += [*rate_lines(rates, rule_ids), *([rule_legend(rule_ids)] if rates else ())]
    show_result(record, parts, notes, as_json=json)
    item_kind = "response" if config.kind == "responses" else "pair of rules"
    items = counted(sample.num_items, "item")
    say(f"sample {sample.key}: {items}, each a {item_kind}; the same for all annotators")
    say_next("annotate", "import", config.study, "FILES")


@command
def annotate_import(config: AnnotateImportConfig, *, json: JsonOption = False) -> None:
    """Put annotators' answers into their study and report who agrees with whom, per rule.

    Reads files that the page saved, filled CSV files and JSON exports of Label Studio, checks all
    of them, and writes all or none. An annotator's earlier answers are replaced, so importing a
    file again changes nothing. Missing answers and "cannot say" are allowed and counted.

    A judge's rating counts as the nearest label of the scale, the higher of two that are equally
    near. Judges are compared with the median label of people. Then people's rate under each rule
    among all rated responses: by the judge alone, by people alone, and corrected. Samples of --kind
    rules give the win rate of lower-entropy rules (the paper: 83%).

    Example: `encore annotate import study annotator-1.json annotator-2.json`
    """
    from encore.data.rating_runs import list_runs, read_run
    from encore.data.study import open_study
    from encore.people.import_answers import import_answers
    from encore.people.people_and_judges import ALL_RULES, people_report
    from encore.people.rates_by_rule import rates_of_study

    study = open_study(config.study)
    imported = import_answers(study, config)
    sample = imported.sample
    for row in imported.annotators:
        total = row.num_answers + row.num_cannot_say + row.num_missing
        cannot_say = f", {row.num_cannot_say:,} cannot say" * bool(row.num_cannot_say)
        say(f"{row.annotator}: {row.num_answers:,} of {total:,} answers{cannot_say}")
        if row.always is not None:
            warn(f"{row.annotator} gave the same answer to every item: {row.always}")
    report = people_report(study, sample)
    rule_ids: Sequence[str] = sorted({row.rule_id for row in report.rules} - {ALL_RULES})
    for run_dir in list_runs(study.ratings_dir):
        if run_dir.name == sample.run_key:
            rule_ids = read_run(run_dir).rule_ids  # the numbers of the other tables
    rates = tuple(rates_of_study(study)) if sample.kind == "responses" else ()
    tables = (
        _win_rate_lines(report)
        if sample.kind == "rules"
        else (*_agreement_lines(report, sample, rule_ids), *rate_lines(rates, rule_ids))
    )
    record = {"sample": sample.key, "imported": imported.annotators, **dataclasses.asdict(report)}
    record["rates"] = rates
    show_result(record, tables, as_json=json)
    say_next("report", config.study)


def _agreement_lines(
    report: PeopleReport, sample: Sample, rule_ids: Sequence[str]
) -> Iterator[Renderable]:
    number_by_rule = {rule_id: number for number, rule_id in enumerate(rule_ids, start=1)}
    columns: TableColumns = {
        "#": lambda row: number_by_rule.get(row.rule_id, "all"),
        "people and": "who",
        "items": "num_items",
        "kappa (95 %)": estimate_of("kappa"),
        "alpha (95 %)": estimate_of("alpha"),
    }
    people = counted(len(report.annotators), "annotator")
    scale = ", ".join(sample.scale)
    rules = sorted(report.rules, key=lambda row: number_by_rule.get(row.rule_id, 0))
    yield record_table(rules, columns, title=f"Agreement of {people}, scale {scale}")
    yield rule_legend(rule_ids)
    rows = report.disagreements
    yield f"Disagreements: {counted(len(rows), 'item')}" + ", the largest first" * bool(rows)
    for row in rows[:_NUM_DISAGREEMENTS]:
        labels = ", ".join(f"{rater} {label:g}" for rater, label in row["said"].items())
        pair_id, _, response = row["response_id"].partition(":")
        yield f"  rule {number_by_rule[row['rule_id']]}, {pair_id[:8]}:{response}: {labels}"


def _win_rate_lines(report: PeopleReport) -> Iterator[Renderable]:
    columns: TableColumns = {
        "question": "question",
        "comparisons": "num_comparisons",
        "pairs of rules": "num_items",
        "lower entropy chosen (95 %)": estimate_of("win_rate", percent),
    }
    title = f"Rules of lower entropy, {counted(len(report.annotators), 'annotator')}"
    yield record_table(report.win_rates, columns, title=title)
    yield (
        f"To show the paper's 83%, {report.comparisons_needed} independent comparisons are needed "
        "(test against 50%, level 5%, power 0.8). Intervals resample pairs of rules: several "
        "annotators of one pair give less evidence than as many pairs."
    )
