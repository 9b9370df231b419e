"""Splits of the demo's data share no text, and the script makes the shipped files again."""

from __future__ import annotations

import gzip
from itertools import combinations, product

from encore.data.rule_sets import load_rule_set
from encore.demo import BENCHMARK_DATA_PATH, RULES_PATH
from examples.demo_judge.answers import answer_of
from examples.demo_judge.make_data import render_data, split_texts, world_facts


def test_splits_share_no_sentence_and_no_word_list_entry():
    for texts, other_texts in combinations(map(split_texts, ("train", "demo", "test")), 2):
        for rule_id, kind in product(world_facts()["rules"], ("bad", "good", "says", "words")):
            for name, entries in other_texts[rule_id][kind].items():
                same_entries = map(str.lower, texts[rule_id][kind].get(name, ()))
                assert not {*map(str.lower, entries)} & {*same_entries}


def test_the_script_makes_the_shipped_data():
    folder = BENCHMARK_DATA_PATH.parent
    for name, lines in render_data().items():
        # Compared unpacked: zlib's builds compress the same text to different bytes.
        assert gzip.decompress((folder / name).read_bytes()).decode() == lines, name


def test_the_planted_answers_are_those_of_the_worlds_file():
    rule_ids = load_rule_set(RULES_PATH).rule_ids
    assert set(world_facts()["demo_rules"]) == {*rule_ids, "no-slurs"}

    def answers(stances: dict[str, str], *, asks_applies: bool = True) -> list[str]:
        return [answer_of(rule_id, stances, asks_applies=asks_applies) for rule_id in rule_ids]

    # violence, hate, insults, health, privacy, respect, harassment, lectures, sentences
    untouched = ["0.5", "0.8", "0.8", "0.5", "0.6", "0.5", "n/a", "0.2", "0.9"]
    assert answers({}) == untouched
    assert answers({}, asks_applies=False) == [*untouched[:6], "0.7", *untouched[7:]]
    hate = {"rejection-of-hate-speech": "severe", "safety-and-public-health": "mild"}
    # Two breaches of two stances are the majority, so the response does not lecture.
    assert answers(hate) == ["0.5", "0.0", "0.0", "0.3", "0.6", "0.5", "n/a", "0.8", "0.9"]
