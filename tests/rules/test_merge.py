"""Pools become one; every rule keeps its origins, and every dropped record is counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from encore.rules.merge import MergedPool, merge
from encore.rules.pool import PoolRule, read_pool
from encore.rules.rules_options import MergeConfig
from tests.golden.command_line import encore
from tests.rules.principles import rules_in
from tests.worlds.studies import write_lines


def merged(
    folder: Path, *pools: object, licence: tuple[str, ...] = ()
) -> tuple[MergedPool, tuple[PoolRule, ...]]:
    """Merge pools; return the result and the rules that were written."""
    output = folder / "pool.toml"
    config = MergeConfig(pools=tuple(map(str, pools)), output=output, licence=licence)
    return merge(config), rules_in(output)


def test_a_rule_under_two_names_is_one_and_records_both(tmp_path):
    first = tmp_path / "a.csv"
    first.write_text('title,text,licence\nPrivacy,"Protect  users.",MIT\n')
    second = write_lines(tmp_path / "b.jsonl", [{"title": "Secrecy", "text": "protect users."}])
    licence = ("second=CC BY 4.0",)
    report, rules = merged(tmp_path, first, f"second={second}", licence=licence)
    [rule] = rules
    assert (rule.title, rule.source, rule.licence, rule.origin) == ("Privacy", "a", "MIT", "line 2")
    [copy] = rule.merged_from
    assert (copy.title, copy.source, copy.licence) == ("Secrecy", "second", "CC BY 4.0")
    record = {"rule_id": "secrecy", "title": "Secrecy", "origin": "line 1"}
    assert report.copies == ({**record, "pool": "second", "kept": "privacy"},)
    # A merged pool keeps all of this when it is merged again with one of its pools.
    (tmp_path / "again").mkdir()
    pools = (tmp_path / "pool.toml", f"second={second}")
    assert merged(tmp_path / "again", *pools, licence=licence)[1] == rules


def test_an_id_with_two_texts_gets_a_suffix_and_is_reported(tmp_path):
    rows = ({"rule_id": "a", "text": text} for text in ("one", "two", "ONE", "three"))
    pool = write_lines(tmp_path / "p.jsonl", rows)
    second = write_lines(tmp_path / "q.jsonl", [{"rule_id": "a-2", "text": "four"}])
    finished = encore("rules", "merge", pool, second, "--output", tmp_path / "pool.toml")
    assert "2 rules have the id of an earlier rule with another text" in finished.err
    assert "a of p, a is a-3" in finished.err
    ids = {rule.description: rule.rule_id for rule in read_pool(tmp_path / "pool.toml").rules}
    assert ids == {"one": "a", "two": "a-3", "three": "a-4", "four": "a-2"}


def test_records_without_text_are_left_out_and_named_and_formulas_are_kept(tmp_path):
    rows = [{"text": " "}, {"title": "Only a title"}, {}, {"rule_id": "sum", "text": "=1+1"}]
    report, rules = merged(tmp_path, write_lines(tmp_path / "p.jsonl", rows))
    assert [rule.description for rule in rules] == ["Only a title", "=1+1"]
    assert report.pools[0]["num_empty"] == 2
    empty, formulas, licence = report.notes
    assert empty == "pool p: 2 records have no text, left out: line 1, line 3"
    assert formulas.startswith("1 rules have texts that begin like a spreadsheet formula")
    assert "no licence is named for rules of p" in licence


def test_ten_thousand_rules_are_merged(tmp_path):
    rows = ({"title": "Same", "text": f"Rule {number % 9_000}"} for number in range(10_000))
    report, rules = merged(tmp_path, write_lines(tmp_path / "p.jsonl", rows))
    assert (len(rules), len(report.copies)) == (9_000, 1_000)
    assert report.notes[0].startswith("8,999 rules have the id of an earlier rule")
    assert [rule.rule_id for rule in rules[:3]] == ["same", "same-2", "same-3"]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("p.jsonl", "--output", "p.jsonl"), "this file is read"),
        (("p.jsonl", "--output", "p.yaml"), "expected a name that ends in .toml"),
        (("p.jsonl", "--output", "no/p.toml"), "in an existing folder"),
        (("p.jsonl", "p.jsonl", "--output", "q.toml"), "two pools are called 'p'"),
        (("p.jsonl", "none.csv", "--output", "q.toml"), "none.csv: no such file"),
        (("p.jsonl", "--licence", "q=MIT", "--output", "q.toml"), "NAME is one of p"),
        (("p.jsonl", "--licence", "p", "--output", "q.toml"), "expected NAME=TEXT"),
    ],
)
def test_a_wrong_call_is_refused_and_writes_nothing(tmp_path, monkeypatch, arguments, problem):
    monkeypatch.chdir(tmp_path)
    write_lines(Path("p.jsonl"), [{"text": "a"}])
    assert problem in encore("rules", "merge", *arguments).error
    assert [path.name for path in tmp_path.iterdir()] == ["p.jsonl"]
