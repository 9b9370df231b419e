"""From a pool to rules as a user calls it: rate-importance, select, draft, accept."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from encore.curation import dedupe, rule_questions
from tests.curation.principles import index_in, judge_of, rules_in, write_answers, write_principles
from tests.curation.test_draft import written
from tests.scripted_judge import ScriptedJudge

SCRIPT = Path(__file__).parents[2] / "examples" / "paper_rules.sh"
NUM_DISTINCT = 87


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


@pytest.fixture
def script(encore, tmp_path, monkeypatch):
    """Runs the paper's script over 259 principles, five people and four judges."""
    judges: dict[str, ScriptedJudge] = {}
    for name in ("encore", "pools"):
        (tmp_path / name).mkdir()
    stub = "#!/usr/bin/env python3\nimport json, sys\nprint(json.dumps(sys.argv[1:]))\n"
    (tmp_path / "encore" / "encore").write_text(stub)
    (tmp_path / "encore" / "encore").chmod(0o755)
    # 87 distinct ones, then near-duplicates of these that end otherwise.
    texts = [
        f"Principle {n % NUM_DISTINCT} says what is right{'!' * (n // NUM_DISTINCT)}."
        for n in range(259)
    ]
    pools = "constitutional-ai", "collective-constitutional-ai", "rule-adapter"
    for place, name in enumerate((*pools, "rule-based-rewards", "pku-saferlhf")):
        write_answers(tmp_path / "pools" / f"{name}.csv", ["text", *texts[place * 52 :][:52]])
    monkeypatch.setattr(
        dedupe,
        "embed",
        lambda texts, **_: np.eye(NUM_DISTINCT, dtype=np.float32)[[*map(index_in, texts)]],
    )
    monkeypatch.setattr(
        rule_questions,
        "open_judge",
        lambda config: judges.setdefault(config.model, ScriptedJudge(name=config.model)),
    )

    def run() -> dict[str, ScriptedJudge]:
        shown = subprocess.run(
            ["bash", SCRIPT, tmp_path / "pools", tmp_path / "out"],
            env={**os.environ, "PATH": f"{tmp_path / 'encore'}:{os.environ['PATH']}"},
            check=True,
            capture_output=True,
            text=True,
        )
        for line in shown.stdout.splitlines():
            done = encore(*json.loads(line))
            assert done.code == 0, done.err
        return judges

    return run


def test_the_papers_script_goes_from_259_principles_to_87_20_and_10(script, tmp_path):
    judges = script()
    merged, distinct, twenty, ten = (
        rules_in(tmp_path / "out" / f"{name}.toml")
        for name in ("merged", "distinct", "top-20", "top-10")
    )
    assert [len(rules) for rules in (merged, distinct, twenty, ten)] == [259, 87, 20, 10]
    assert twenty[:10] == ten
    # Each principle stands three times in the pools, but for two that stand twice.
    assert all(len(rule.merged_from) in (1, 2) for rule in twenty)
    assert [judge.num_asked for judge in judges.values()] == [NUM_DISTINCT] * 4
    answers = np.random.default_rng(0).random((NUM_DISTINCT, 5)).round(2).tolist()
    rows = [f"{r.rule_id},{','.join(map(str, a))}" for r, a in zip(distinct, answers, strict=True)]
    write_answers(tmp_path / "pools" / "people.csv", ["rule_id,a,b,c,d,e", *rows])
    script()
    assert [judge.num_asked for judge in judges.values()] == [NUM_DISTINCT] * 4
    table = json.loads((tmp_path / "out" / "top-20.json").read_text())
    assert {*table["rules"][0]["ratings"]} == {*"abcde", *judges}
