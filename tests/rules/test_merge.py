"""Pools of three formats become one; every rule keeps where it comes from, nothing is silent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from encore.cli.rules import rules_merge
from encore.core.errors import InputError
from encore.rules.merge import merge
from encore.rules.pool import PoolRule, Provenance, read_pool
from encore.rules.rules_config import MergeConfig
from tests.cli.invoking import Command
from tests.rules.principles import write_in_any_format

command = Command(rules_merge)
FULL = {
    "title": "Kindness",
    "description": "Be kind.",
    "preference_rule": "Accept the kinder response.",
    "rating_rule": "The response should be kind.",
}


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def write_lines(path: Path, *records: object) -> Path:
    return write(path, "".join(json.dumps(one) + "\n" for one in records))


def merged(folder: Path, *pools: object, licence: tuple[str, ...] = ()):
    """What `merge` says, and the rules that it wrote."""
    output = folder / "pool.toml"
    said = merge(MergeConfig(pools=tuple(map(str, pools)), output=output, licence=licence))
    return said, read_pool(output).rules


@pytest.mark.parametrize("suffix", [".toml", ".csv", ".jsonl"])
def test_a_pool_is_read_as_it_was_written(tmp_path, suffix):
    copy = Provenance(rule_id="b", title="B", source="other", licence="MIT", origin="line 3")
    is_toml = suffix == ".toml"  # what a step writes
    rules = (
        PoolRule(**FULL, rule_id="kindness", source="mine", origin="kindness"),
        PoolRule(
            rule_id="rule-1",
            title='"Quotes", \\ and\ttabs',
            description="Two lines\r\nand 日本語, \x7f, ''' and \"\"\"\n=1+1",
            licence="CC BY-NC 4.0",
            merged_from=(copy,) * is_toml,
            is_draft=is_toml,
        ),
        PoolRule(rule_id="f", title="f", description="=HYPERLINK(1)", source="+1", origin="-"),
    )
    path = tmp_path / f"pool{suffix}"
    write_in_any_format(path, rules)
    # What a file does not say is said of it: the pool's name, and the id as the origin.
    filled = rules[1].model_copy(update={"source": "pool", "origin": "rule-1"})
    found = read_pool(path)
    assert found.rules == (rules[0], filled, rules[2])
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_a_rule_under_two_names_is_one_and_remembers_both(tmp_path):
    first = write(tmp_path / "a.csv", 'title,text,licence\nPrivacy,"Protect  users.",MIT\n')
    second = write_lines(tmp_path / "b.jsonl", {"title": "Secrecy", "text": "protect users."})
    licence = ("second=CC BY 4.0",)
    said, rules = merged(tmp_path, first, f"second={second}", licence=licence)
    [rule] = rules
    assert (rule.title, rule.source, rule.licence, rule.origin) == ("Privacy", "a", "MIT", "line 2")
    [copy] = rule.merged_from
    assert (copy.title, copy.source, copy.licence) == ("Secrecy", "second", "CC BY 4.0")
    expected = {"rule_id": "secrecy", "title": "Secrecy", "pool": "second", "kept": "privacy"}
    assert said["copies"] == [expected | {"origin": "line 1"}]
    # A merged pool keeps all of it when it is merged again, with the pool that it came from too.
    (tmp_path / "again").mkdir()
    pools = (tmp_path / "pool.toml", f"second={second}")
    assert merged(tmp_path / "again", *pools, licence=licence)[1] == rules


def test_an_id_with_two_texts_gets_a_suffix_and_is_said(tmp_path):
    texts = ("one", "two", "ONE", "three")
    pool = write_lines(tmp_path / "p.jsonl", *({"rule_id": "a", "text": text} for text in texts))
    taken = write_lines(tmp_path / "q.jsonl", {"rule_id": "a-2", "text": "four"})
    finished = command(pool, taken, "--output", tmp_path / "pool.toml")
    assert "2 rules have the id of an earlier rule with another text" in finished.stderr
    assert "a of p, a is a-3" in finished.stderr
    ids = {rule.description: rule.rule_id for rule in read_pool(tmp_path / "pool.toml").rules}
    assert ids == {"one": "a", "two": "a-3", "three": "a-4", "four": "a-2"}
    with pytest.raises(InputError, match=r"rule_id 'a' is used twice.*encore rules merge"):
        read_pool(pool)


def test_texts_of_any_language_and_length_get_a_title_and_an_id(tmp_path):
    texts = [
        "プライバシーを尊重する。" * 20,
        "Защищай личные данные.",
        "Éviter la violence.",
        "x " * 99,
    ]
    pool = write_lines(tmp_path / "p.jsonl", *({"text": text} for text in texts))
    _, rules = merged(tmp_path, pool)
    assert [rule.description for rule in rules] == [text.strip() for text in texts]
    assert all(len(rule.title) <= 80 for rule in rules)
    assert rules[2].rule_id == "eviter-la-violence"
    assert len({rule.rule_id for rule in rules}) == 4


def test_records_without_text_are_left_out_and_named(tmp_path):
    pool = write_lines(tmp_path / "p.jsonl", {"text": " "}, {"title": "Only a title"}, {})
    said, rules = merged(tmp_path, pool)
    assert [rule.description for rule in rules] == ["Only a title"]
    assert said["pools"][0]["num_empty"] == 2
    assert said["notes"][0] == "pool p: 2 records have no text, left out: line 1, line 3"
    assert "no licence is named for rules of p" in said["notes"][1]


def test_ten_thousand_rules_are_merged(tmp_path):
    records = ({"title": "Same", "text": f"Rule {number % 9_000}"} for number in range(10_000))
    said, rules = merged(tmp_path, write_lines(tmp_path / "p.jsonl", *records))
    assert (len(rules), len(said["copies"])) == (9_000, 1_000)
    assert said["notes"][0].startswith("8,999 rules have the id of an earlier rule")
    assert [rule.rule_id for rule in rules[:3]] == ["same", "same-2", "same-3"]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        (
            "p.csv",
            "titel,text\nA,B\n",
            "line 2, key 'titel': Extra inputs are not permitted; did you mean title?",
        ),
        ("p.csv", "text,text\nA,B\n", "line 1: column 'text' is there twice"),
        ("p.csv", 'text\n"A\nB"\nC,D\n', "line 4: more cells than the header has columns"),
        ("p.csv", 'text\n"A\n', "unexpected end of data (after line 0)"),
        ("p.jsonl", '\n{"text": 3}\n', "line 2, key 'description': Input should be a valid string"),
        ("p.jsonl", "[1]\n", "line 1: expected an object"),
        ("p.jsonl", '{"text": "\\ud800"}\n', "line 1, key 'title': Input should be a valid string"),
        ("p.jsonl", '{"text": "a", "description": "b"}\n', "line 1, key 'text': Extra inputs"),
        ("p.jsonl", '{"text": "a"}\n{', "line 2: not-json"),
        ("p.jsonl", '{"text": ""}\n', "no record has a text"),
        ("p.toml", 'nane = "x"\n', "unknown key 'nane'; did you mean name?"),
        ("p.toml", "rules = 3\n", "key 'rules': expected a [[rules]] table for each rule"),
        (
            "p.toml",
            '[[rules]]\ntext="a"\n\n[[rules]]\ntext="b"\nrule_id="B"',
            "rule 1, key 'rule_id': String should match",
        ),
        ("p.xlsx", "", "no such file, or none of records; expected .csv, .jsonl"),
    ],
)
def test_an_error_names_file_line_and_key_and_nothing_is_written(tmp_path, name, text, said):
    path = write(tmp_path / name, text)
    error = command.error_of(path, "--output", tmp_path / "out.toml")
    assert str(path) in error
    assert said in error
    assert [entry.name for entry in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize(
    ("arguments", "said"),
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
def test_a_call_that_cannot_be_meant_is_refused(tmp_path, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    write_lines(Path("p.jsonl"), {"text": "a"})
    assert said in command.error_of(*arguments)
    assert [entry.name for entry in tmp_path.iterdir()] == ["p.jsonl"]
