"""`encore labels`: any table of labels, RBR's gold data, a judge, and what refuses labels."""

from __future__ import annotations

import dataclasses
import gzip
import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import cohen_kappa_score

from encore.core.errors import InputError, StudyIncompleteError
from encore.data.schemas import LABELS
from encore.data.study import open_study
from encore.judges.judge_options import JudgeConfig
from encore.people.judge_labels import LabelManifest, judge_labels
from encore.people.people_options import LabelsConfig
from encore.people.rule_agreement import label_agreement
from encore.runs.shard_files import run_status
from encore.training.training_examples import read_examples
from encore.warehouse import open_ratings
from tests.golden.command_line import encore
from tests.reference import reference_alpha
from tests.run_identities import differing_parts
from tests.worlds.judges import ScriptedJudge
from tests.worlds.studies import write_lines, write_rules


def labels_config(folder: Path, *files: Path, **changes: object) -> LabelsConfig:
    """Return a config for the rules ``kind`` and ``short``, in shards of three responses."""
    rules = write_rules(folder / "rules.toml", ["Kind", "Short"])
    options = {"rules": str(rules), "shard_size": 3, **changes}
    return LabelsConfig(files=files, judge=JudgeConfig(model="scripted"), **options)


def label_row(number: int, rule: str = "kind", **changes: object) -> dict[str, object]:
    """Return a row: Answer 0 has label 0, Answer 1 has label 1, Answer 2 has label 0, …."""
    row = {"prompt": f"Question {number}?", "response": f"Answer {number}", "rule": rule}
    return {**row, "label": number % 2, **changes}


def write_eight(folder: Path) -> Path:
    """Write eight responses under two rules; the last one has no label under the second."""
    rows = [label_row(number, rule) for rule in ("kind", "short") for number in range(8)]
    return write_lines(folder / "mine.jsonl", rows[:-1])


def reply(prompt: str) -> str:
    """Reply under "kind" as people but for answer 2; under "short" refuse once, else say 0.7."""
    number = int(prompt.split("Answer ")[1][0])
    if "Rule Kind." in prompt:
        return "0.9" if number % 2 or number == 2 else "0.2"
    return "I cannot." if number == 3 else "0.7"


def judged(folder: Path, *files: Path, judge: ScriptedJudge | None = None, **changes: Any) -> Any:
    """Compare a scripted judge with the labels in files."""
    study = changes.pop("study", folder / "study")
    config = labels_config(folder, *files, **changes)
    return judge_labels(study, config, judge=judge or ScriptedJudge(reply))


def test_every_ingredient_changes_the_key_of_a_judging_of_labels(tmp_path):
    """Each change stands alone: a change of two parts would hide a part that the key lacks."""

    def identity(row: dict[str, object], **changes: Any) -> Any:
        path = write_lines(tmp_path / "two.jsonl", [row, label_row(1)])
        report = judged(tmp_path, path, **changes)
        return run_status(Path(str(report.table)).parent, LabelManifest).manifest.identity

    row = label_row(0)
    first = identity(row)
    assert first["responses"] == ["chosen"]  # a run of pairs has none, so no pair's key is the same
    rules = tmp_path / "others.toml"
    rules.write_text((tmp_path / "rules.toml").read_text().replace("Rule Kind.", "Be: Rule Kind."))
    for part, changed in {
        "rules_sha256": identity(row, rules=str(rules)),
        "judge.name": identity(row, judge=ScriptedJudge(reply, name="other")),
        "config.max_reply_tokens": identity(row, max_reply_tokens=17),
        "plan.shard_size": identity(row, shard_size=2),
        "plan.num_pairs": identity(row, limit=1),
    }.items():
        assert differing_parts(first, changed) == {part}
    for changed_row in (label_row(0, label=1), label_row(0, response="Answer 2")):
        assert differing_parts(first, identity(changed_row)) == {"data_sha256"}
    assert identity(row) == first


def test_a_judge_is_asked_once_for_each_response_and_rule(tmp_path):
    judge, path = ScriptedJudge(reply), write_eight(tmp_path)
    report = judged(tmp_path, path, judge=judge)
    kind, short = report.rules
    assert (kind.rule_id, kind.num_labels, kind.num_ratings) == ("kind", 8, 8)
    assert (short.rule_id, short.num_labels, short.num_ratings) == ("short", 7, 6)
    assert kind.agreement == 7 / 8
    # Observed 7/8; by chance 1/2 · 5/8 + 1/2 · 3/8 = 1/2.
    assert kind.kappa.value == pytest.approx((7 / 8 - 1 / 2) / (1 - 1 / 2))
    assert kind.kappa.low < kind.kappa.value < kind.kappa.high
    assert short.kappa.value is None
    assert judge.num_asked == 16
    assert pq.read_table(report.table).num_rows == 15
    assert pq.read_schema(report.table).equals(LABELS)
    assert judged(tmp_path, path, judge=judge) == report
    # Another set of labels of the same texts is a run of its own, and asks nothing.
    rows = [json.loads(line) | {"label": True} for line in path.read_text().splitlines()]
    relabelled = judged(tmp_path, write_lines(tmp_path / "other.jsonl", rows), judge=judge)
    assert Path(relabelled.table).parent != Path(report.table).parent
    assert judge.num_asked == 16


def test_the_command_reads_the_table_that_it_wrote_without_a_judge(tmp_path):
    report = judged(tmp_path, write_eight(tmp_path))
    finished = encore("labels", tmp_path / "copy", report.table, "--json", "--concurrency", 3)
    assert "a call without --judge has no use for --concurrency 3" in finished.err
    record = finished.json
    assert (record["judge"], pq.read_table(record["table"]).num_rows) == (None, 15)
    assert record["rules"] == json.loads(json.dumps(dataclasses.asdict(report)["rules"]))
    assert "paper's claim" in encore("labels", report.table).out


def test_kappa_and_alpha_are_those_of_other_packages(tmp_path):
    rng = np.random.default_rng(0)
    label_I = rng.random(60) < 0.4
    rating_I = np.clip(0.5 * label_I + 0.6 * rng.random(60), 0, 1).round(2)
    rows = [
        {
            "response_id": f"r{index}",
            "rule_id": "kind",
            "label": "Yes" if label else "no",
            "rating": rating,
        }
        for index, (label, rating) in enumerate(zip(label_I, rating_I, strict=True))
    ]
    # In CSV a rating is text; the command reads Parquet in the test of the table that it wrote.
    pyarrow.csv.write_csv(pa.Table.from_pylist(rows), tmp_path / "t.csv")
    [rule] = judge_labels(None, LabelsConfig(files=(tmp_path / "t.csv",))).rules
    judged_I = rating_I >= 0.5
    assert rule.kappa.value == pytest.approx(cohen_kappa_score(label_I, judged_I))
    alpha = reference_alpha(np.array([label_I, judged_I], dtype=float))
    assert rule.alpha.value == pytest.approx(alpha)
    assert rule.agreement == pytest.approx((label_I == judged_I).mean())


# --- Rule Based Rewards ---------------------------------------------------------------------------

PROPOSITIONS = """\
simple_propositions:
  is_short:
    prompt: |-
      Is it {short}? 100%.
  is_kind: {prompt: "Be kind.\\n\\n- yes: when kind"}
  other: {prompt: "Something else?"}
"""


def judged_gold(folder: Path, propositions: str, judge: ScriptedJudge) -> Any:
    """Judge five records of Rule Based Rewards, two of which are equal."""
    path = folder / "gold.jsonl.gz"
    with gzip.open(path, "wt") as file:
        for number in (0, 1, 2, 3, 0):
            record = {
                "prompt": [{"role": "user", "content": f"Question {number}?"}],
                "completion": [{"role": "assistant", "content": f"Answer {number}"}],
                "propositions": {"is_kind": number % 2 == 0, "is_short": True},
            }
            file.write(json.dumps(record) + "\n")
    (folder / "p.yaml").write_text(propositions)
    return judged(folder, path, judge=judge, rules=str(folder / "p.yaml"))


def test_gold_data_of_rule_based_rewards_are_read_with_their_propositions(tmp_path):
    judge = ScriptedJudge(lambda text: "1" if "Be kind." in text and "Answer 0" in text else "0")
    report = judged_gold(tmp_path, PROPOSITIONS, judge)
    kind, short = report.rules
    assert (kind.rule_id, kind.num_labels, kind.positive) == ("is_kind", 5, 3 / 5)
    assert (short.num_labels, short.agreement, short.kappa.value) == (5, 0.0, None)
    assert kind.agreement == 4 / 5
    assert judge.num_asked == 4 * 2
    assert len(set(pq.read_table(report.table)["response_id"].to_pylist())) == 4


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("simple_propositions: [", "ParserError"),
        ("!!python/object/apply:os.system ['true']", "ConstructorError"),
        ("other: 1", "KeyError"),
        ("- 1", "TypeError"),
        ("simple_propositions: {is_kind: {prompt: x}}", "no rule 'is_short'"),
    ],
)
def test_a_yaml_file_without_the_propositions_is_refused(tmp_path, text, problem):
    with pytest.raises(InputError, match=problem):
        judged_gold(tmp_path, text, ScriptedJudge())
    assert not (tmp_path / "study" / "labels").exists()


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (label_row(0, label=3), "line 1: label 3: expected true, false"),
        (label_row(0, label="nope"), "label 'nope': expected"),
        (label_row(0, rating=8), "rating 8: expected"),
        ({"response": "a", "rule": "kind"}, "column 'label' is missing"),
        ({"response": "a", "label": 1}, "column 'rule_id' is missing"),
        ({"rule": "kind", "label": 1}, "one is empty"),
        (label_row(0, response="\ud800"), "surrogate"),
        (label_row(0, label=None), "no labels; expected"),
        (label_row(0, label=" "), "no labels; expected"),
        ([1], "expected an object"),
        ({"propositions": {"a": 1}, "prompt": [], "completion": []}, "completion ends with"),
        ({"propositions": {"a": 1}, "prompt": []}, "column 'completion' is missing"),
        (
            {
                "propositions": [1],
                "prompt": [],
                "completion": [{"role": "assistant", "content": "a"}],
            },
            "propositions: expected an object of labels",
        ),
        (label_row(0), "no ratings in it; give --judge"),
    ],
)
def test_a_table_that_cannot_be_compared_is_refused(tmp_path, row, problem):
    with pytest.raises(InputError, match=problem):
        judge_labels(None, LabelsConfig(files=(write_lines(tmp_path / "t.jsonl", [row]),)))


def test_two_texts_with_one_response_id_are_refused_in_one_line(tmp_path):
    rows = [label_row(number, response_id="r1") for number in range(2)]
    finished = encore("labels", write_lines(tmp_path / "t.jsonl", rows))
    assert finished.code == 1
    assert "line 2: an earlier text has the same response_id 'r1'; give each" in finished.err
    assert finished.err.count("\n") == 1


def test_files_studies_and_rules_that_do_not_fit_are_refused(tmp_path):
    (tmp_path / "notes.txt").touch()
    for name in ("none.csv", "notes.txt"):
        with pytest.raises(InputError, match=f"{name}: no such file, or none of records"):
            judge_labels(None, LabelsConfig(files=(tmp_path / name,)))
    judge, path = ScriptedJudge(), write_eight(tmp_path)
    with pytest.raises(InputError, match="name the STUDY before the files"):
        judged(tmp_path, path, judge=judge, study=None)
    with pytest.raises(InputError, match=r"no rule 'kind'.*2 of 2"):
        judged(tmp_path, path, judge=judge, rules="encore-10")
    row = {"response_id": "a", "rule_id": "kind", "label": 1}
    with pytest.raises(InputError, match=r"response 'a' has no text to rate"):
        judged(tmp_path, write_lines(tmp_path / "ids.jsonl", [row]), judge=judge)
    assert judge.num_asked == 0


def test_a_shard_that_fails_is_rated_by_the_same_call_again(tmp_path):
    def reply_or_fail(prompt: str) -> str:
        if "Answer 5" in prompt:
            raise RuntimeError("no answer")
        return reply(prompt)

    path, judge = write_eight(tmp_path), ScriptedJudge(reply)
    with pytest.raises(StudyIncompleteError, match="1 of 3 shards failed"):
        judged(tmp_path, path, judge=ScriptedJudge(reply_or_fail))
    judged(tmp_path, path, judge=judge)
    assert 2 <= judge.num_asked <= 6


def test_labels_are_no_pairs_and_no_ratings_of_pairs(tmp_path):
    table = judged(tmp_path, write_eight(tmp_path)).table
    study = open_study(tmp_path / "study")
    for read in (open_ratings, partial(read_examples, tokenizer=None, objective="multi-head")):
        with pytest.raises(InputError, match="labels of single responses, and this needs pairs"):
            read(study)
    assert "needs ratings of pairs" in encore("analyze", table).err


# --- correlation with entropy ---------------------------------------------------------------------


def labels_of_rare_and_frequent_rules() -> pa.Table:
    """Return labels of twelve rules that are true of 2 to 46 %, by an equally good judge."""
    rng, rows = np.random.default_rng(1), []
    for number in range(12):
        label_I = rng.random(400) < 0.02 + 0.04 * number
        # The judge knows every second label, and else says yes as often as people do.
        rating_I = np.where(rng.random(400) < 0.5, label_I, rng.permutation(label_I))
        names = {"source": "s", "rule_id": f"rule-{number}"}
        rows += [
            {**names, "response_id": str(index), "label": float(label), "rating": float(rating)}
            for index, (label, rating) in enumerate(zip(label_I, rating_I, strict=True))
        ]
    return pa.Table.from_pylist(rows, schema=LABELS)


def test_a_correlation_that_rare_answers_cause_is_reported_as_one():
    report = label_agreement(labels_of_rare_and_frequent_rules())
    assert report.entropy_with["agreement"].high < -0.8
    assert report.entropy_with["kappa"].low < 0 < report.entropy_with["kappa"].high
    assert "share of equal labels: r = -0.9" in report.sentence
    assert report.sentence.count("over 12 rules") == 3
    assert any(note.startswith("if one answer to a rule is rare") for note in report.notes)
