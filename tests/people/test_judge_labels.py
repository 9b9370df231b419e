"""`encore labels`: any table of labels, RBR's gold data, a judge, and what refuses labels."""

from __future__ import annotations

import csv
import dataclasses
import gzip
import json
from pathlib import Path
from typing import Any

import krippendorff
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import cohen_kappa_score

from encore.core.errors import InputError, StudyIncompleteError
from encore.data.schemas import LABELS
from encore.judges.judge_config import JudgeConfig
from encore.people.judge_labels import LabelManifest, judge_labels
from encore.people.people_config import LabelsConfig
from encore.people.rule_agreement import label_agreement
from encore.runs.run_files import run_status
from tests.golden.command_line import encore
from tests.golden.tiny_llama import write_tiny_llama
from tests.run_identities import differing_parts
from tests.worlds.judges import ScriptedJudge

RULES = """\
name = "mine"
[[rules]]
title = "Kind"
description = "About kindness."
preference_rule = "Prefer the kind one."
rating_rule = "Be kind."
[[rules]]
title = "Short"
description = "About length."
preference_rule = "Prefer the short one."
rating_rule = "Be short."
"""


def config_of(folder: Path, *files: Path, **changes: object) -> LabelsConfig:
    (folder / "rules.toml").write_text(RULES)
    given = {"to": folder / "study", "rules": str(folder / "rules.toml"), "shard_size": 3}
    return LabelsConfig(files=files, judge=JudgeConfig(model="scripted"), **(given | changes))


def write_lines(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def eight(folder: Path) -> Path:
    """Eight responses under two rules; the last one is not labelled under the second."""
    return write_lines(
        folder / "mine.jsonl",
        *(
            {"prompt": f"Question {n}?", "response": f"Answer {n}", "rule": rule, "label": n % 2}
            for rule in ("kind", "short")
            for n in range(8 if rule == "kind" else 7)
        ),
    )


def replies(text: str) -> str:
    """Right under "kind" but for one answer; under "short" a refusal, or always the same."""
    number = int(text.split("Answer ")[1][0])
    if "Be kind." in text:
        return "0.9" if number % 2 or number == 2 else "0.2"
    return "I cannot." if number == 3 else "0.7"


def labelled(folder: Path, *, label: object = 1, answer: str = "Answer 0") -> Path:
    """Two labelled responses, of which the first can be told otherwise."""
    row = {"prompt": "Question?", "rule": "kind"}
    first = {**row, "response": answer, "label": label}
    return write_lines(folder / "two.jsonl", first, {**row, "response": "Answer 1", "label": 0})


def test_every_ingredient_changes_the_key_of_a_judging_of_labels(tmp_path):
    """Each alone: what changes two parts would hide that one of them is not in the key."""

    def identity(path: Path, judge: ScriptedJudge | None = None, **changes: object) -> Any:
        report = judge_labels(
            config_of(tmp_path, path, **changes), judge=judge or ScriptedJudge(replies)
        )
        return run_status(Path(str(report.table)).parent, LabelManifest).manifest.identity

    first = identity(labelled(tmp_path))
    assert first["responses"] == ["chosen"]  # a run of pairs has none, so no pair's key is the same
    rules = tmp_path / "others.toml"
    rules.write_text(RULES.replace("Be kind.", "Be kinder."))
    for part, changed in {
        "rules_sha256": identity(labelled(tmp_path), rules=str(rules)),
        "judge.name": identity(labelled(tmp_path), ScriptedJudge(replies, name="other")),
        "decoding.max_reply_tokens": identity(labelled(tmp_path), max_reply_tokens=17),
        "plan.shard_size": identity(labelled(tmp_path), shard_size=2),
        "plan.num_pairs": identity(labelled(tmp_path), limit=1),
    }.items():
        assert differing_parts(first, changed) == {part}
    # What people said, and of which text.
    for changes in ({"label": 0}, {"answer": "Answer 2"}):
        changed = identity(labelled(tmp_path, **changes))
        assert differing_parts(first, changed) == {"data_sha256"}
    assert identity(labelled(tmp_path)) == first


def test_a_judge_is_asked_once_for_each_response_and_rule(tmp_path):
    judge, config = ScriptedJudge(replies), config_of(tmp_path, eight(tmp_path))
    report = judge_labels(config, judge=judge)
    kind, short = report.rules
    assert (kind.rule_id, kind.num_labels, kind.num_ratings) == ("kind", 8, 8)
    assert (short.rule_id, short.num_labels, short.num_ratings) == ("short", 7, 6)
    assert kind.agreement == 7 / 8
    # Observed 7/8; by chance 1/2 · 5/8 + 1/2 · 3/8 = 1/2.
    assert kind.kappa.value == pytest.approx((7 / 8 - 1 / 2) / (1 - 1 / 2))
    assert kind.kappa.low < kind.kappa.value < kind.kappa.high
    assert short.kappa.value is None
    assert judge.num_asked == 16
    assert pq.read_schema(report.table).equals(LABELS)
    assert pq.read_table(report.table).num_rows == 15
    again = ScriptedJudge(replies)
    assert judge_labels(config, judge=again) == report
    assert again.num_asked == 0
    # Another set of labels of the same texts is a run of its own, and asks nothing.
    other = write_lines(
        tmp_path / "other.jsonl",
        *({**json.loads(line), "label": True} for line in eight(tmp_path).read_text().splitlines()),
    )
    found = judge_labels(config_of(tmp_path, other), judge=again)
    assert Path(found.table).parent != Path(report.table).parent
    assert again.num_asked == 0


def test_the_table_it_writes_is_one_that_it_reads(tmp_path):
    report = judge_labels(config_of(tmp_path, eight(tmp_path)), judge=ScriptedJudge(replies))
    finished = encore("labels", report.table, "--json")
    assert finished.code == 0
    found = json.loads(finished.out)
    assert found["judge"] is None
    mine = dataclasses.asdict(report)["rules"]
    assert found["rules"] == json.loads(json.dumps(mine))
    shown = encore("labels", report.table)
    assert "paper's claim" in shown.out


def test_figures_are_those_of_both_packages_whatever_the_file_format(tmp_path):
    rng = np.random.default_rng(0)
    label = rng.random(60) < 0.4
    rating = np.clip(0.5 * label + 0.6 * rng.random(60), 0, 1).round(2)
    rows = [
        {"response_id": f"r{n}", "rule_id": "kind", "label": bool(label[n]), "rating": rating[n]}
        for n in range(60)
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "t.parquet")
    write_lines(tmp_path / "t.jsonl", *rows)
    with (tmp_path / "t.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    names = ("t.parquet", "t.jsonl", "t.csv")
    found = [judge_labels(LabelsConfig(files=(tmp_path / name,))) for name in names]
    assert found[0] == found[1] == found[2]
    [rule] = found[0].rules
    judged = rating >= 0.5
    assert rule.kappa.value == pytest.approx(cohen_kappa_score(label, judged))
    alpha = krippendorff.alpha([label * 1, judged * 1], level_of_measurement="nominal")
    assert rule.alpha.value == pytest.approx(alpha)
    assert rule.agreement == pytest.approx((label == judged).mean())


def gold(folder: Path, count: int = 4) -> Path:
    """Records in the format of Rule Based Rewards; two are the same but for a label."""
    path = folder / "gold.jsonl.gz"
    with gzip.open(path, "wt") as file:
        for n in [*range(count), 0]:
            record = {
                "prompt": [{"role": "user", "content": f"Question {n}?"}],
                "completion": [{"role": "assistant", "content": f"Answer {n}"}],
                "propositions": {"is_kind": n % 2 == 0, "is_short": True},
            }
            file.write(json.dumps(record) + "\n")
    return path


PROPOSITIONS = """\
simple_propositions:
  is_short:
    prompt: |-
      Is it {short}? 100%.
  is_kind: {prompt: "Be kind.\\n\\n- yes: when kind"}
  other: {prompt: "Something else?"}
"""


def test_rbrs_gold_data_are_read_with_its_propositions(tmp_path):
    (tmp_path / "p.yaml").write_text(PROPOSITIONS)
    judge = ScriptedJudge(lambda text: "1" if "Be kind." in text and "Answer 0" in text else "0")
    config = config_of(tmp_path, gold(tmp_path), rules=str(tmp_path / "p.yaml"))
    report = judge_labels(config, judge=judge)
    kind, short = report.rules
    assert (kind.rule_id, kind.num_labels, kind.positive) == ("is_kind", 5, 3 / 5)
    assert (short.num_labels, short.agreement, short.kappa.value) == (5, 0.0, None)
    assert kind.agreement == 4 / 5
    assert judge.num_asked == 4 * 2
    table = pq.read_table(report.table)
    assert len(set(table["response_id"].to_pylist())) == 4


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("simple_propositions: [", "ParserError"),
        ("!!python/object/apply:os.system ['true']", "ConstructorError"),
        ("other: 1", "KeyError"),
        ("- 1", "TypeError"),
        ("simple_propositions: {is_kind: {prompt: x}}", "no rule 'is_short'"),
    ],
)
def test_a_yaml_file_that_is_none_is_refused(tmp_path, text, said):
    (tmp_path / "p.yaml").write_text(text)
    config = config_of(tmp_path, gold(tmp_path), rules=str(tmp_path / "p.yaml"))
    with pytest.raises(InputError, match=said):
        judge_labels(config, judge=ScriptedJudge())
    assert not (tmp_path / "study" / "labels").exists()


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"response": "a", "rule": "kind", "label": 3}, "line 1: label 3: expected true, false"),
        ({"response": "a", "rule": "kind", "label": "nope"}, "label 'nope': expected"),
        ({"response": "a", "rule": "kind", "label": 1, "rating": 8}, "rating 8: expected"),
        ({"response": "a", "rule": "kind"}, "column 'label' is missing"),
        ({"response": "a", "label": 1}, "column 'rule_id' is missing"),
        ({"rule": "kind", "label": 1}, "one is empty"),
        ({"response": "\ud800", "rule": "kind", "label": 1}, "surrogate"),
        ({"response": "a", "rule": "kind", "label": None}, "no labels; expected"),
        ([1], "expected an object"),
        (
            {"propositions": {"a": 1}, "prompt": [], "completion": []},
            "completion ends with nothing",
        ),
        ({"propositions": {"a": 1}, "prompt": []}, "column 'completion' is missing"),
        ({"response": "a", "rule": "kind", "label": 1}, "no ratings in it; give --judge"),
        (
            [
                {"response_id": "r1", "response": text, "rule": "kind", "label": 1}
                for text in ("a", "b")
            ],
            "line 2: an earlier text has the same response_id 'r1'; give each",
        ),
    ],
)
def test_a_table_that_cannot_be_compared_is_refused_in_one_line(tmp_path, row, said):
    rows = row if isinstance(row, list) and isinstance(row[0], dict) else [row]
    finished = encore("labels", write_lines(tmp_path / "t.jsonl", *rows))
    assert finished.code == 1
    assert said in " ".join(finished.err.split())
    assert "Traceback" not in finished.err


def test_files_studies_and_rules_that_do_not_fit_are_refused(tmp_path):
    (tmp_path / "notes.txt").touch()
    for name in ("none.csv", "notes.txt"):
        with pytest.raises(InputError, match=f"{name}: no such file, or none of records"):
            judge_labels(LabelsConfig(files=(tmp_path / name,)))
    judge = ScriptedJudge()
    with pytest.raises(InputError, match="give --to STUDY"):
        judge_labels(config_of(tmp_path, eight(tmp_path), to=None), judge=judge)
    with pytest.raises(InputError, match=r"no rule 'kind'.*2 of 2"):
        judge_labels(config_of(tmp_path, eight(tmp_path), rules="encore-10"), judge=judge)
    ids = write_lines(tmp_path / "ids.jsonl", {"response_id": "a", "rule_id": "kind", "label": 1})
    with pytest.raises(InputError, match=r"response 'a' has no text to rate"):
        judge_labels(config_of(tmp_path, ids), judge=judge)
    assert judge.num_asked == 0


def test_a_shard_that_fails_is_rated_by_the_same_call_again(tmp_path):
    def fails(text: str) -> str:
        if "Answer 5" in text:
            raise RuntimeError("no answer")
        return replies(text)

    config = config_of(tmp_path, eight(tmp_path))
    with pytest.raises(StudyIncompleteError, match="1 of 3 shards failed"):
        judge_labels(config, judge=ScriptedJudge(fails))
    judge = ScriptedJudge(replies)
    judge_labels(config, judge=judge)
    assert 2 <= judge.num_asked <= 6


@pytest.mark.parametrize("command", ["analyze", "weights", "train"])
def test_what_needs_pairs_says_so_of_labels_in_one_line(tmp_path, command):
    report = judge_labels(config_of(tmp_path, eight(tmp_path)), judge=ScriptedJudge(replies))
    backbone = write_tiny_llama(tmp_path / "llama")
    more = ("--backbone", backbone, "--out", tmp_path / "run") if command == "train" else ()
    finished = encore(command, tmp_path / "study", *more)
    assert finished.code == 1
    assert "labels of single responses, and this needs pairs" in finished.err
    assert "encore ingest SOURCE" in finished.err
    if command != "train":
        finished = encore(command, report.table)
        assert finished.code == 1
        assert "needs ratings of pairs" in finished.err


def labelled_world() -> pa.Table:
    """Twelve rules that are true of 2 to 46 %; a judge who knows every second label."""
    rng, rows = np.random.default_rng(1), []
    for place in range(12):
        label = rng.random(400) < 0.02 + 0.04 * place
        # Else it draws an answer as often yes as people say it.
        judged = np.where(rng.random(400) < 0.5, label, rng.permutation(label))
        rows += [
            {"response_id": f"{n}", "source": "s", "rule_id": f"rule-{place}", "label": float(x)}
            | {"rating": float(y)}
            for n, (x, y) in enumerate(zip(label, judged, strict=True))
        ]
    return pa.Table.from_pylist(rows, schema=LABELS)


def test_a_correlation_that_rare_answers_make_is_said_to_be_one():
    """All rules are judged equally well: only how often they are true differs."""
    found = label_agreement(labelled_world())
    assert found.entropy_with["agreement"].high < -0.8
    assert found.entropy_with["kappa"].low < 0 < found.entropy_with["kappa"].high
    assert "share of equal labels: r = -0.9" in found.sentence
    assert found.sentence.count("over 12 rules") == 3
    assert any(note.startswith("if one answer to a rule is rare") for note in found.notes)
