"""`encore rules …`: from a pool to rules, and which scores a planted sentence buys."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from encore.rules import dedupe, rule_questions
from tests.cli.conftest import NUM_PAIRS
from tests.rules.principles import index_in, judge_of, rules_in, write_principles, write_text_lines
from tests.rules.test_draft import draft_reply
from tests.worlds.judges import ScriptedJudge
from tests.worlds.studies import write_rules

SCRIPT = Path(__file__).parents[2] / "examples" / "paper_rules.sh"


@pytest.fixture
def pool(tmp_path: Path) -> Path:
    return write_principles(tmp_path / "pool.toml", 4)


def test_a_judge_and_people_rate_and_the_first_rules_become_drafts(
    encore, judge_folder, pool, tmp_path, monkeypatch
):
    importance, selected, rules = (tmp_path / name for name in ("out", "two.toml", "rules.toml"))
    lines = ["rule_id,anna,ben", *(f"principle-{n},0.{n},0.{n + 1}" for n in range(4))]
    people = write_text_lines(tmp_path / "people.csv", lines)
    rate = ("rules", "rate-importance", pool, "--output", importance, "--judge", judge_folder)
    finished = encore(*rate, "--backend", "transformers", "--people", people)
    assert "judge tiny: 4 of 4 rules rated; shards: 1 rated, 0 reused, 0 failed" in finished.err
    assert "annotator ben: 4 of 4 rules rated" in finished.err
    record = encore(*rate, "--backend", "transformers", "--json").json
    assert record["summary"] == "0 rated, 1 reused, 0 failed"
    finished = encore("rules", "select", importance, "--top", 2, "--output", selected)
    assert finished.code == 0
    assert "people and judges (the paper: 0.71)" in finished.out
    agreement = json.loads((tmp_path / "two.json").read_text())["among_people"]
    assert agreement["r"]["value"] == pytest.approx(1)  # anna and ben differ by a constant
    first, second = (rule.rule_id for rule in rules_in(selected))
    judge = judge_of(lambda index: draft_reply(index) if first.endswith(str(index)) else "no")
    monkeypatch.setattr(rule_questions, "open_judge", lambda *_: judge)
    draft = ("rules", "draft", selected, "--judge", "scripted", "--output", rules)
    finished = encore(*draft, "--json")
    assert (finished.json["drafted"], finished.json["num_drafts"]) == ([first], 1)
    assert f"rule {second} is still a principle: not the four texts as json" in finished.err
    assert "2 rules, 1 of them drafts" in finished.err
    finished = encore("rules", "draft", rules, "--accept", "ALL", "--json")
    assert finished.json == {"output": str(rules), "accepted": [first]}
    assert finished.err == f"{rules}: 1 draft accepted\n"


def test_people_alone_rate_and_the_record_has_no_fields_of_a_judge(encore, pool, tmp_path):
    people = write_text_lines(tmp_path / "people.csv", ["rule_id,anna", "principle-1,1"])
    rate = ("rules", "rate-importance", pool, "--output", tmp_path / "out")
    record = encore(*rate, "--people", people, "--json").json
    assert record == {"num_rules": 4, "num_answers": {"anna": 1}}


@pytest.mark.services
def test_the_papers_script_goes_from_259_principles_to_87_20_and_10(encore, tmp_path, monkeypatch):
    # A false `encore` prints its arguments; they are run here, with scripted judges and embeddings.
    lines = ["#!/usr/bin/env python3", "import json, sys", "print(json.dumps(sys.argv[1:]))"]
    write_text_lines(tmp_path / "encore", lines).chmod(0o755)
    texts = [f"Principle {n % 87} says what is right{'!' * (n // 87)}." for n in range(259)]
    names = re.search(r"for name in (.*);", SCRIPT.read_text())[1].split()
    for index, name in enumerate(names):
        write_text_lines(tmp_path / f"{name}.csv", ["text", *texts[index :: len(names)]])
    judges: dict[str, ScriptedJudge] = {}

    def open_judge(config, _how):
        return judges.setdefault(config.model, ScriptedJudge(name=config.model))

    monkeypatch.setattr(rule_questions, "open_judge", open_judge)
    monkeypatch.setattr(dedupe, "embed", lambda texts, **_: np.eye(87)[[*map(index_in, texts)]])
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def run_script():
        command = ["bash", SCRIPT, tmp_path, tmp_path / "out"]
        for line in subprocess.check_output(command).splitlines():
            assert encore(*json.loads(line)).code == 0
        assert [judge.num_asked for judge in judges.values()] == [87] * 4
        files = ("merged", "distinct", "top-20", "top-10")
        return [rules_in(tmp_path / "out" / f"{name}.toml") for name in files]

    _, distinct, *_ = run_script()
    people = [f"{rule.rule_id},0.{n % 10},0.{n % 7}" for n, rule in enumerate(distinct)]
    write_text_lines(tmp_path / "people.csv", ["rule_id,anna,ben", *people])
    merged, distinct, twenty, ten = run_script()
    assert [len(rules) for rules in (merged, distinct, twenty, ten)] == [259, 87, 20, 10]
    assert twenty[:10] == ten
    # Each principle is in the pools three times, but for two that are there twice.
    assert all(len(rule.merged_from) in (1, 2) for rule in twenty)
    table = json.loads((tmp_path / "out" / "top-20.json").read_text())
    assert {*table["rules"][0]["ratings"]} == {"anna", "ben", *judges}


@pytest.mark.services
def test_every_form_has_a_table_and_the_json_is_the_file_of_the_probe(
    encore, study, judge_folder, tmp_path
):
    rules = write_rules(tmp_path / "rules.toml", ["kind"])
    options = ("--judge", judge_folder, "--backend", "transformers", "--rules", rules)
    printed = encore("rules", "probe", study, *options, "--num-pairs", 5)
    assert printed.code == 0, printed.err
    assert "unchanged under rules: 10 ratings" in printed.err
    assert "headed, planted-order, planted-request, planted-claim under rules: 70" in printed.err
    for title in ("reframed: every rule as:", "padded: appended: This is where", "planted-claim:"):
        assert title in printed.out
    row = next(line for line in printed.out.splitlines() if line.split()[-1:] == ["unknown"])
    assert row.split()[0] == "1"
    assert "1 kind" in printed.out
    assert "unknown for kind: fewer than 30 prompts" in " ".join(printed.out.split())
    finished = encore("rules", "probe", study, *options, "--num-pairs", 20, "--json")
    assert f"note: the study has {NUM_PAIRS} pairs, fewer than 20: all" in finished.err
    record = finished.json
    [path] = study.glob(f"probes/*/probe-{record['key']}.json")
    assert json.loads(path.read_text()) == record
    assert record["variants"].keys() == record["rules"][0]["effects"].keys()
