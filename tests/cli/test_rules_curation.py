"""From a pool to rules as a user calls it: rate-importance, select, draft, accept."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from encore.rules import dedupe, rule_questions
from tests.rules.principles import index_in, judge_of, rules_in, write_answers, write_principles
from tests.rules.test_draft import written
from tests.worlds.judges import ScriptedJudge

SCRIPT = Path(__file__).parents[2] / "examples" / "paper_rules.sh"


@pytest.fixture
def pool(tmp_path):
    return write_principles(tmp_path / "pool.toml", 4)


def test_a_judge_and_people_rate_and_the_first_rules_become_a_draft(
    encore, judge_folder, pool, tmp_path, monkeypatch
):
    importance, selected, rules = (tmp_path / one for one in ("rated", "two.toml", "rules.toml"))
    lines = ["rule_id,anna,ben", *(f"principle-{n},0.{n},0.{n + 1}" for n in range(4))]
    people = write_answers(tmp_path / "people.csv", lines)
    asked = ("--judge", judge_folder, "--backend", "transformers")
    rate = ("rules", "rate-importance", pool, "--output", importance)
    done = encore(*rate, *asked, "--people", people)
    assert "judge tiny: 4 of 4 rules rated; shards: 1 rated, 0 reused, 0 failed" in done.err
    assert "annotator ben: 4 of 4 rules rated" in done.err
    assert encore(*rate, *asked, "--json").json["summary"] == "0 rated, 1 reused, 0 failed"
    done = encore("rules", "select", importance, "--top", 2, "--output", selected)
    assert done.code == 0
    assert "people and judges" in done.out
    assert "0.71" in done.out
    # anna and ben differ by a constant: r = 1.
    assert json.loads((tmp_path / "two.json").read_text())["among_people"]["r"][
        "value"
    ] == pytest.approx(1)
    monkeypatch.setattr(rule_questions, "open_judge", lambda config: judge_of(written))
    done = encore("rules", "draft", selected, "--judge", "scripted", "--output", rules)
    assert "2 rules, 2 of them drafts" in done.err
    done = encore("rules", "draft", rules, "--accept", "ALL")
    assert done.err == f"{rules}: 2 drafts accepted\n"
    assert not any(rule.is_draft for rule in rules_in(rules))


def test_a_wrong_call_is_one_clear_line(encore, pool, tmp_path):
    rate = ("rules", "rate-importance", pool, "--output", tmp_path / "out")
    for more, said in (
        ((), "nobody rates: give --judge, --people, or both"),
        (("--backend", "transformers"), "--judge"),
        (("--people", tmp_path / "no.csv"), "No such file"),
    ):
        done = encore(*rate, *more)
        assert done.code in (1, 2)
        assert said in done.err
        assert done.err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_the_papers_script_goes_from_259_principles_to_87_20_and_10(encore, tmp_path, monkeypatch):
    # The script says what it would run; it is run here, with judges and embeddings that are known.
    show = "import json, sys", "print(json.dumps(sys.argv[1:]))"
    write_answers(tmp_path / "encore", ["#!/usr/bin/env python3", *show]).chmod(0o755)
    texts = [f"Principle {n % 87} says what is right{'!' * (n // 87)}." for n in range(259)]
    names = re.search(r"for name in (.*);", SCRIPT.read_text())[1].split()
    for place, name in enumerate(names):
        write_answers(tmp_path / f"{name}.csv", ["text", *texts[place :: len(names)]])
    judges: dict[str, ScriptedJudge] = {}

    def opened(config):
        return judges.setdefault(config.model, ScriptedJudge(name=config.model))

    monkeypatch.setattr(rule_questions, "open_judge", opened)
    monkeypatch.setattr(dedupe, "embed", lambda some, **_: np.eye(87)[[*map(index_in, some)]])
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def run():
        command = ["bash", SCRIPT, tmp_path, tmp_path / "out"]
        for line in subprocess.check_output(command).splitlines():
            assert encore(*json.loads(line)).code == 0
        assert [judge.num_asked for judge in judges.values()] == [87] * 4
        files = ("merged", "distinct", "top-20", "top-10")
        return [rules_in(tmp_path / "out" / f"{name}.toml") for name in files]

    people = [f"{rule.rule_id},0.{n % 10},0.{n % 7}" for n, rule in enumerate(run()[1])]
    write_answers(tmp_path / "people.csv", ["rule_id,anna,ben", *people])
    merged, distinct, twenty, ten = run()
    assert [len(rules) for rules in (merged, distinct, twenty, ten)] == [259, 87, 20, 10]
    assert twenty[:10] == ten
    # Each principle stands three times in the pools, but for two that stand twice.
    assert all(len(rule.merged_from) in (1, 2) for rule in twenty)
    table = json.loads((tmp_path / "out" / "top-20.json").read_text())
    assert {*table["rules"][0]["ratings"]} == {"anna", "ben", *judges}
