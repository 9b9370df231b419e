"""Answers are imported from every format, wrong files change nothing, agreement is reported."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from encore.analysis.rater_agreement import kappa_interval, nearest_level
from encore.core.errors import InputError
from encore.data.annotations import Sample, people_labels, read_answers, read_items
from encore.data.rating_runs import read_run
from encore.data.study import open_study
from encore.people.import_answers import import_answers
from encore.people.people_and_judges import ALL_RULES, PEOPLE, PeopleReport, people_report
from encore.people.people_options import AnnotateImportConfig
from tests.golden.command_line import encore
from tests.people.answering import export_tasks, fill_table, save_page, save_pages
from tests.people.conftest import exported, run_of

pytestmark = pytest.mark.services

annotate = partial(encore, "annotate", "import")


def import_files(study: Path, *files: Path) -> PeopleReport:
    """Import files of answers, and compare all annotators and judges."""
    opened = open_study(study)
    imported = import_answers(opened, AnnotateImportConfig(study=study, files=files))
    return people_report(opened, imported.sample)


def items_of(study: Path, sample: Sample) -> list[dict[str, Any]]:
    return list(read_items(open_study(study), sample).to_pylist())


def answers_of(study: Path, sample: Sample) -> list[dict[str, Any]]:
    return list(read_answers(open_study(study), sample).to_pylist())


def by_id(item_id: str, _question: str) -> str:
    """Return a label that depends on the item only."""
    return ("0", "0.5", "1")[int(item_id[-3:], 16) % 3]


def doubtful(item_id: str, question: str) -> str:
    """Return the label `by_id`, "cannot say" for every fifth item, or a comment on each item."""
    if question == "comment":
        return f"; {item_id}"
    return "cannot say" if int(item_id[-3:], 16) % 5 == 0 else by_id(item_id, question)


def by_id_otherwise(item_id: str, _question: str) -> str:
    """Return a label that often differs from `by_id`."""
    return ("0", "0.5", "1")[int(item_id[-3:], 16) % 7 % 3]


# --- formats --------------------------------------------------------------------------------------


def test_answers_are_the_same_from_every_format(study, tmp_path):
    page = exported(study, items=40)
    table = exported(study, items=40, format="csv")
    tasks = exported(study, items=40, format="label-studio")
    assert page.sample == table.sample == tasks.sample
    import_files(
        study,
        save_page(page.files[0], tmp_path / "page.json", doubtful, annotator="page"),
        fill_table(table.files[0], tmp_path / "comma.csv", doubtful),
        fill_table(table.files[0], tmp_path / "semicolon.csv", doubtful, separator=";"),
        export_tasks(tasks.files[0], tmp_path / "export.json", {7: doubtful}),
    )
    rows_by_annotator: dict[str, list[dict[str, Any]]] = {}
    for row in answers_of(study, page.sample):
        rows_by_annotator.setdefault(row.pop("annotator"), []).append(row)
    assert {*rows_by_annotator} == {"page", "comma", "semicolon", "7"}
    rows = rows_by_annotator["page"]
    assert all(annotator_rows == rows for annotator_rows in rows_by_annotator.values())
    assert len(rows) == 40
    for row in rows:
        label = doubtful(row["item_id"], "label")
        assert row["label"] == (None if label == "cannot say" else float(label))
        assert row["comment"] == f"; {row['item_id']}"
        pair_id, response = row["response_id"].split(":")
        assert (len(pair_id), response in ("chosen", "rejected")) == (32, True)


def test_skipped_tasks_are_missing_answers_and_constant_annotators_are_named(study, tmp_path):
    export = exported(study, items=20, format="label-studio")
    file = export_tasks(
        export.files[0],
        tmp_path / "export.json",
        {1: by_id, 2: lambda item_id, _: "1" if int(item_id[-1], 16) < 8 else ""},
    )
    user = json.dumps({"id": 3, "email": "ana@example.org"})
    file.write_text(file.read_text().replace('"completed_by": 1,', f'"completed_by": {user},'))
    messages = annotate(study, file).err
    assert messages.endswith(f"\nnext: encore report {study}\n")
    assert "ana@example.org: 20 of 20 answers\n" in messages
    num_answers = sum(row["annotator"] == "2" for row in answers_of(study, export.sample))
    assert 0 < num_answers < 20
    assert f"2: {num_answers} of 20 answers\n" in messages
    assert "warning: 2 gave the same answer to every item: 1.0" in messages


def test_importing_again_replaces_an_annotator_and_leaves_others(study, tmp_path):
    export = exported(study, items=30, annotators=2)
    files = save_pages(export.files, tmp_path, by_id, by_id_otherwise)
    import_files(study, *files)
    before = answers_of(study, export.sample)
    import_files(study, files[0])
    assert answers_of(study, export.sample) == before
    save_page(export.files[0], files[0], lambda item_id, _: "1" if item_id < "item-8" else "")
    import_files(study, files[0])
    after = answers_of(study, export.sample)
    assert [row for row in after if row["annotator"] == "annotator-2"] == before[30:]
    assert {row["label"] for row in after if row["annotator"] == "annotator-1"} == {1.0}


# --- refusals -------------------------------------------------------------------------------------


def _changed(change: Callable[[list[dict[str, str]]], object]) -> Callable[[Path], None]:
    def apply(file: Path) -> None:
        content = json.loads(file.read_text())
        change(content["answers"])
        file.write_text(json.dumps(content))

    return apply


def _replaced(old: str, new: str) -> Callable[[Path], object]:
    return lambda file: file.write_text(file.read_text().replace(old, new))


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (_changed(lambda a: a[3].update(value="0.7")), "label '0.7'; expected one of 0, 0.5, 1"),
        (_changed(lambda a: a[3].update(item_id="item-0")), "item 'item-0', question 'label' is"),
        (_changed(lambda a: a[3].update(question="x")), "question 'x' is not in sample"),
        (_changed(lambda a: a.append(a[0])), "is answered more than once"),
        (lambda file: file.write_text("{"), "Expecting property name"),
        (lambda file: file.write_text("[]"), "no answers, or some without"),
        (lambda file: file.write_bytes(b"\xff\xfe\x00"), "cannot be read"),
        (Path.unlink, "no such file; expected answers"),
        (_replaced("responses-", "responses-0"), "expected one that study"),
        (_replaced("annotator-2", "annotator-1"), "annotator 'annotator-1' is in"),
    ],
)
def test_a_wrong_file_is_named_and_changes_nothing(study, tmp_path, spoil, problem):
    export = exported(study, items=10, annotators=2)
    good, bad = save_pages(export.files, tmp_path, by_id, by_id)
    spoil(bad)
    with pytest.raises(InputError) as refusal:
        import_files(study, good, bad)
    assert problem in str(refusal.value)
    assert "annotator-2.json" in str(refusal.value)
    assert answers_of(study, export.sample) == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a,b\n1,2\n", "answers.csv: no answers.* questions label, clarity, reliability"),
        ("item_id,label\ni,1\n", r"answers.csv: .*KeyError\('sample'\)"),
    ],
)
def test_a_table_that_holds_no_answers_is_refused(study, tmp_path, text, problem):
    (tmp_path / "answers.csv").write_text(text)
    with pytest.raises(InputError, match=problem):
        import_files(study, tmp_path / "answers.csv")


def test_files_of_two_samples_are_refused(study, tmp_path):
    exports = [exported(study, items=num_items) for num_items in (10, 11)]
    files = [
        save_page(export.files[0], tmp_path / f"{export.sample.key}.json", by_id)
        for export in exports
    ]
    error = annotate(study, *files).error
    assert all(export.sample.key in error for export in exports)
    assert "import one sample at a time" in error
    assert people_report(open_study(study), exports[0].sample) == PeopleReport(annotators=())


# --- agreement ------------------------------------------------------------------------------------


def test_items_that_a_person_cannot_judge_are_counted_and_compared_with_nobody(study, tmp_path):
    export = exported(study, items=60, annotators=2)
    result = annotate(study, *save_pages(export.files, tmp_path, doubtful, by_id), "--json")
    doubts = [
        item for item in items_of(study, export.sample) if int(item["item_id"][-3:], 16) % 5 == 0
    ]
    num_doubts = len(doubts)
    assert 3 < num_doubts < 30
    assert f"annotator-1: {60 - num_doubts} of 60 answers, {num_doubts} cannot say" in result.err
    record = result.json
    counts = [(row["num_answers"], row["num_cannot_say"]) for row in record["imported"]]
    assert counts == [(60 - num_doubts, num_doubts), (60, 0)]
    assert record["num_cannot_say"] == num_doubts
    # The two agree wherever both judge. Judges are compared with the label of the other person.
    [people, *judges] = [row for row in record["rules"] if row["rule_id"] == ALL_RULES]
    assert (people["num_items"], people["kappa"]["value"]) == (60 - num_doubts, 1.0)
    assert max(row["num_items"] for row in judges) == 60
    import_files(study, save_page(export.files[1], tmp_path / "none.json", lambda *_: "cannot say"))
    [label_by_item] = [labels for _, labels in people_labels(open_study(study))]
    assert len(label_by_item) == 60 - num_doubts
    assert None not in label_by_item.values()


def test_people_are_compared_with_every_judge_by_their_lower_median_label(study, tmp_path):
    export = exported(study, items=150, annotators=2)
    items = items_of(study, export.sample)
    ratings = [item["rating"] for item in items]
    judge_I = nearest_level(np.array(ratings), (0, 0.5, 1))
    judge_labels = {item["item_id"]: label for item, label in zip(items, judge_I, strict=True)}

    def like_the_judge(item_id: str, _question: str) -> str:
        return f"{judge_labels[item_id]:g}"

    report = import_files(study, *save_pages(export.files, tmp_path, like_the_judge, by_id))
    rules_by_rater: dict[str, list[Any]] = {}
    for rule in report.rules:
        rules_by_rater.setdefault(rule.who, []).append(rule)
    people, judge = (
        rules_by_rater.pop(PEOPLE),
        rules_by_rater.pop(f"judge one ({run_of(study)[:8]})"),
    )
    assert [rule.rule_id for rule in judge] == [ALL_RULES, "calm", "fair", "kind-b-words-b"]
    assert [rule.num_items for rule in people] == [rule.num_items for rule in judge]
    other_I = np.array([float(by_id(item["item_id"], "")) for item in items])
    median_I = np.minimum(judge_I, other_I)  # the lower median of two
    assert judge[0].kappa.value == pytest.approx(kappa_interval(median_I, judge_I).value)
    assert people[0].kappa.value == pytest.approx(kappa_interval(judge_I, other_I).value)
    # The second run has other random ratings and lacks a shard; the third run is constant.
    second, third = sorted(rules_by_rater, key=lambda name: not name.startswith("judge two<i>"))
    assert rules_by_rater[second][0].num_items < 150
    assert all(abs(rule.kappa.value) < 0.6 for rule in rules_by_rater[second])
    assert [rule.kappa.value for rule in rules_by_rater[third]] == [None] * 4
    # Every item with different labels is a disagreement, the largest spread first.
    spreads = [np.ptp([*row["said"].values()]) for row in report.disagreements]
    assert spreads == sorted(spreads, reverse=True)
    assert min(spreads) > 0
    reported = {(row["response_id"], row["rule_id"]) for row in report.disagreements}
    for item, first, second_label in zip(items, judge_I, other_I, strict=True):
        response = (f"{item['pair_id']}:{item['response']}", item["rule_id"])
        assert first == second_label or response in reported
    # A person whose labels are the judge's ratings agrees fully.
    report = import_files(study, save_page(export.files[1], tmp_path / "b.json", like_the_judge))
    fully = [rule for rule in report.rules if rule.who in (PEOPLE, judge[0].who)]
    assert [(rule.kappa.value, rule.alpha.value) for rule in fully] == [(1.0, 1.0)] * 8


def test_agreement_is_between_all_people_and_their_label_the_lower_median(study, tmp_path):
    # Labels 0 and 1 of 40 items. The last two people agree, each label 20 times: kappa 1. The
    # first differs from them on two of every eight items, one of each label, so that each label is
    # again given 20 times: 2 · 3/4 - 1 = 1/2. The mean of three pairs is (1 + 1/2 + 1/2) / 3.
    export = exported(study, items=40, annotators=3, scale="0,1")
    index_of = {row["item_id"]: index for index, row in enumerate(items_of(study, export.sample))}

    def majority(item_id: str, _question: str) -> str:
        return str(index_of[item_id] % 2)

    def minority(item_id: str, _question: str) -> str:
        return str((index_of[item_id] + (index_of[item_id] % 8 >= 6)) % 2)

    report = import_files(study, *save_pages(export.files, tmp_path, minority, majority, majority))
    overall = next(rule for rule in report.rules if (rule.rule_id, rule.who) == (ALL_RULES, PEOPLE))
    assert overall.kappa.value == pytest.approx(2 / 3)
    # Krippendorff's alpha. Within items: 10 of 40 have two labels against one, so 4 of their 6
    # ordered pairs differ; each item has weight 3 of 120, and differs with 4/6: 10 · 3 · 4/6 / 120
    # = 1/6 is observed. Of 120 labels 60 are 0: 2 · 60 · 60 / (120 · 119) = 60/119 is expected.
    assert overall.alpha.value == pytest.approx(1 - 119 / 360)
    # The median of three people is the label of two of them; if four people are two against two,
    # it is the lower label.
    [labels] = [labels for _, labels in people_labels(open_study(study))]
    assert [*labels.values()].count(1.0) == 20
    import_files(study, save_page(export.files[0], tmp_path / "d.json", minority, annotator="dora"))
    [labels] = [labels for _, labels in people_labels(open_study(study))]
    for row in items_of(study, export.sample):
        labels_of_row = majority(row["item_id"], ""), minority(row["item_id"], "")
        key = row["source"], f"{row['pair_id']}:{row['response']}", row["rule_id"]
        assert labels[key] == min(map(float, labels_of_row))


def test_a_rating_counts_as_the_nearest_label_the_higher_of_two():
    rating_N = np.array([0.0, 0.2, 0.25, 0.26, 0.74, 0.75, 1.0, np.nan])
    level_N = nearest_level(rating_N, (0, 0.5, 1))
    assert level_N.tolist()[:-1] == [0, 0, 0.5, 0.5, 0.5, 1, 1]
    assert np.isnan(level_N[-1])
    fifths = np.linspace(0, 1, 6)
    assert nearest_level(fifths[:-1] + 0.1, fifths.tolist()).tolist() == fifths[1:].tolist()


def test_the_command_prints_agreement_disagreements_and_json(study, tmp_path):
    export = exported(study, items=30, annotators=2)
    files = save_pages(export.files, tmp_path, by_id, by_id_otherwise)
    printed = annotate(study, *files).out
    assert "Agreement of 2 annotators, scale 0, 0.5, 1" in printed
    assert len([line for line in printed.splitlines() if "annotator-1 " in line]) == 10
    record = annotate(study, *files, "--json").json
    assert [row["num_answers"] for row in record["imported"]] == [30, 30]
    assert len(record["disagreements"]) > 10
    # The numbers of rules are those of the rule set, not of the alphabet.
    rule_ids = read_run(study / "ratings" / run_of(study)).rule_ids
    for number, rule_id in enumerate(rule_ids, start=1):
        assert re.search(rf"(?m)(^| ){number} {rule_id}\b", printed)
    first = record["disagreements"][0]
    number = rule_ids.index(first["rule_id"]) + 1
    assert f"  rule {number}, {first['response_id'][:8]}:" in printed


def test_the_win_rate_of_lower_entropy_is_that_of_the_choices(study, tmp_path):
    export = exported(study, kind="rules", annotators=3)
    [item] = items_of(study, export.sample)
    lower = item["lower_entropy"]
    higher = {"first": "second", "second": "first"}[lower]

    def lower_is_clearer_only(_item_id: str, question: str) -> str:
        return lower if question == "clarity" else higher

    answers = (lambda *_: lower, lambda *_: lower, lower_is_clearer_only)
    result = annotate(study, *save_pages(export.files, tmp_path, *answers), "--json")
    record = result.json
    rates = {row["question"]: row for row in record["win_rates"]}
    # Three comparisons for each question, six in all; one of them is lost.
    assert rates["clarity"]["win_rate"]["value"] == 1
    assert rates["reliability"]["win_rate"]["value"] == pytest.approx(2 / 3)
    assert rates["both"]["win_rate"]["value"] == pytest.approx(5 / 6)
    assert (rates["both"]["num_comparisons"], rates["both"]["num_items"]) == (6, 1)
    assert rates["both"]["win_rate"]["low"] is None  # one pair of rules has no interval
    assert record["comparisons_needed"] == 20
    printed = annotate(study, tmp_path / "annotator-1.json").out
    assert "To show the paper's 83%, 20 independent comparisons are needed" in printed
