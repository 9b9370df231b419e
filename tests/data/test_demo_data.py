"""Splits of the demo's data share no text, and the script makes the shipped files again."""

from __future__ import annotations

import gzip
from itertools import combinations, product

from encore.demo import BENCHMARK_DATA_PATH
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
