"""From a pool to rules as a user calls it: rate-importance, select, draft, accept."""

from __future__ import annotations

import json

import pytest

from encore.curation import rule_questions
from tests.curation.principles import judge_of, rules_in, write_answers, write_principles
from tests.curation.test_draft import written


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
    assert json.loads((tmp_path / "two.json").read_text())["among_people"]["r"]["value"] == 1
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
