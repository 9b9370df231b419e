"""A pool is read as it was written, in three formats; an error names file, position and key."""

from __future__ import annotations

import re

import pytest

from encore.core.errors import InputError
from encore.rules.pool import PoolRule, Provenance, read_pool
from tests.rules.principles import write_in_any_format
from tests.worlds.studies import write_lines


@pytest.mark.parametrize("suffix", [".toml", ".csv", ".jsonl"])
def test_a_pool_is_read_as_it_was_written(tmp_path, suffix):
    copy = Provenance(rule_id="b", title="B", source="other", licence="MIT", origin="line 3")
    is_toml = suffix == ".toml"  # only TOML, which the commands write, has provenance and drafts
    rules = (
        PoolRule(
            rule_id="kindness",
            title="Kindness",
            description="Be kind.",
            preference_rule="Accept the kinder response.",
            rating_rule="The response should be kind.",
            source="mine",
            origin="kindness",
        ),
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
    # A missing source is the pool's name, and a missing origin the rule's id.
    filled = rules[1].model_copy(update={"source": "pool", "origin": "rule-1"})
    assert read_pool(path).rules == (rules[0], filled, rules[2])
    assert [*tmp_path.iterdir()] == [path]


def test_texts_of_any_language_and_length_get_a_title_and_an_id(tmp_path):
    texts = [
        "プライバシーを尊重する。" * 20,
        "Защищай личные данные.",
        "Éviter la violence.",
        "x " * 99,
    ]
    rules = read_pool(write_lines(tmp_path / "p.jsonl", ({"text": text} for text in texts))).rules
    assert [rule.description for rule in rules] == [text.strip() for text in texts]
    assert all(len(rule.title) <= 80 for rule in rules)
    assert rules[1].rule_id == "защищай-личные-данные"
    assert rules[2].rule_id == "eviter-la-violence"
    assert len({rule.rule_id for rule in rules}) == 4


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        (
            "p.csv",
            "titel,text\nA,B\n",
            "line 2, key 'titel': Extra inputs are not permitted; did you mean title?",
        ),
        ("p.csv", "text,text\nA,B\n", "line 1: column 'text' is there twice"),
        ("p.csv", 'text\n"A\nB"\nC,D\n', "line 4: more cells than the header has columns"),
        ("p.csv", 'text\n"A\n', "unexpected end of data (after line 0); expected a CSV file"),
        ("p.csv", b"text,\xff\n", "(after line 0); expected a CSV file in UTF-8"),
        ("p.jsonl", '\n{"text": 3}\n', "line 2, key 'description': Input should be a valid string"),
        ("p.jsonl", "[1]\n", "line 1: expected an object"),
        ("p.jsonl", '{"text": "\\ud800"}\n', "line 1, key 'title': Input should be a valid string"),
        ("p.jsonl", '{"text": "a", "description": "b"}\n', "line 1, key 'text': Extra inputs"),
        ("p.jsonl", '{"text": "a"}\n{', "line 2: not-json"),
        ("p.jsonl", '{"text": ""}\n', "no record has a text"),
        ("p.csv", "title,text\nA,\n", "no record has a text"),
        ("p.jsonl", '{"rule_id": "a", "text": "b"}\n' * 2, "rule_id 'a' is used twice; `encore"),
        ("p.toml", "= 1", "Invalid statement (at line 1, column 1); expected a pool in TOML"),
        ("p.toml", 'nane = "x"\n', "unknown key 'nane'; did you mean name?"),
        ("p.toml", "rules = 3\n", "key 'rules': expected a [[rules]] table for each rule"),
        ("p.toml", '[[rules]]\n[[rules]]\ntext="b"\nrule_id="B"', "rule 1, key 'rule_id': String"),
        ("p.xlsx", "", "no such file, or none of records; expected .csv, .jsonl"),
        ("none.csv", None, "no such file"),
    ],
)
def test_an_error_names_file_line_and_key(tmp_path, name, content, problem):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(InputError, match=re.escape(problem)) as refusal:
        read_pool(path)
    assert str(path) in str(refusal.value)
