"""`encore check`: exit codes, records and what makes them stale, a run against an older one."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from encore.analysis.check_options import CheckConfig
from encore.analysis.check_study import StudyCheck, check_study, raise_if_failed
from encore.core.errors import CheckFailedError, EncoreError, InputError
from tests.golden.command_line import encore
from tests.worlds.ratings import rule_names, table_of
from tests.worlds.studies import rules_of, shard_path, write_rating_run

TITLES = rule_names(2)


def rated(study: Path, *wins: int, judge: str = "one", text: str = "Rule {}.") -> str:
    """Add a run of 200 pairs, of which each rule gets so many right; return its key."""
    is_win_PR = np.arange(200)[:, None] < np.array(wins)
    table = table_of(is_win_PR, ~is_win_PR, rule_ids=TITLES)
    rules = rules_of(TITLES, rating_rule=text)
    return write_rating_run(study, table, rules=rules, judge=judge).name


def check(study: Path, run: str, **options: object) -> StudyCheck:
    return check_study(CheckConfig(study=study, run=run, **options))


def test_the_exit_code_is_4_until_every_named_rule_is_above_the_floor(tmp_path):
    run = rated(study := tmp_path / "study", 190, 165)
    failed = encore("check", study, "--floor", 0.8)
    assert failed.code == 4
    assert failed.error == (
        f"run {run}: agreement of 1 of 2 rules is not shown to be above the floor of 0.8: "
        "rule-01 (undecided)"
    )
    assert "Floor 80.0% of untied pairs, 95 % bounds; 200 pairs" in failed.out
    passed = encore("check", study, "--floor", 0.8, "--rule", 1, "--json").json
    assert passed["passed"]
    assert [row["rule_id"] for row in passed["rules"]] == ["rule-00"]
    record = json.loads((study / "checks" / f"{run}.json").read_text())
    assert record["result"] == passed
    assert encore("check", study, "--floor", 0.8, "--rule", "other").code == 1
    assert encore("check", study).error.startswith("nothing to check: give --floor")


def test_a_record_of_another_judge_wording_or_limit_is_stale_and_fails_by_name(tmp_path):
    study, record = tmp_path / "study", tmp_path / "accepted.json"
    first = rated(study, 190, 190)
    options = {"floor": 0.8, "rule": ("1",), "record": record}
    assert check(study, first, **options).passed
    accepted = record.read_bytes()
    other_judge = rated(study, 190, 190, judge="two")
    other_words = rated(study, 190, 190, text="The rule {}.")
    for run, changes, parts in (
        (other_judge, {}, ('judge.name is "two", not "one"',)),
        (other_words, {}, ("rule rule-00 has another text",)),
        (first, {"rule": ("1", "2")}, ("rule rule-01 is new",)),
        (first, {"floor": 0.7}, ("limits.floor is 0.7, not 0.8",)),
    ):
        checked = check(study, run, **options | changes)
        assert checked.stale == parts
        with pytest.raises(CheckFailedError, match=r"accepted\.json: stale, for"):
            raise_if_failed(checked)
        assert record.read_bytes() == accepted
    assert check(study, first, **options).passed


def test_a_record_holds_for_further_pairs_and_not_if_it_was_changed(tmp_path):
    record = tmp_path / "accepted.json"
    run = rated(tmp_path / "study", 190, 190)
    options = {"floor": 0.8, "record": record}
    check(tmp_path / "study", run, **options)
    is_win = np.ones((300, 2), dtype=bool)
    table = table_of(is_win, ~is_win, rule_ids=TITLES)
    more = write_rating_run(tmp_path / "more", table, rules=rules_of(TITLES), judge="one").name
    assert check(tmp_path / "more", more, **options).passed
    assert json.loads(record.read_text())["run_key"] == more
    record.write_text(record.read_text().replace('"floor": 0.8', '"floor": 0.7'))
    with pytest.raises(EncoreError, match="changed by hand"):
        check(tmp_path / "study", run, **options)


def test_an_incomplete_run_never_passes_and_leaves_no_record(tmp_path):
    is_win = np.ones((200, 2), dtype=bool)
    table = table_of(is_win, ~is_win, rule_ids=TITLES)
    run_dir = write_rating_run(tmp_path / "study", table, rules=rules_of(TITLES))
    shard_path(run_dir, 1).unlink()
    assert encore("check", tmp_path / "study", "--floor", 0.5).code == 3
    assert not (tmp_path / "study" / "checks").exists()


def test_a_new_judge_is_compared_with_the_old_one_rule_by_rule(tmp_path):
    """The new judge loses 20 of 200 pairs under rule 2: 10 points, more than the margin of 2."""
    old = rated(study := tmp_path / "study", 190, 190, judge="old")
    new = rated(study, 190, 170, judge="new")
    failed = encore("check", study, "--run", new, "--against", old)
    assert failed.code == 4
    assert f"not shown to be within 0.02 of run {old}: rule-01 (below)" in failed.error
    assert "The new run agrees with people less under rule-01." in failed.out
    assert encore("check", study, "--run", new, "--against", old, "--rule", 1).code == 0
    assert encore("check", study, "--run", old, "--against", "new").code == 0
    table = table_of([[1.0]], [[0.0]], rule_ids=["other"])
    write_rating_run(tmp_path / "foreign", table, rules=rules_of(["other"]))
    with pytest.raises(InputError, match="no rule in common"):
        check(study, new, against=str(tmp_path / "foreign"))
