"""The synthetic world: splits that share nothing, data that can be made again byte for byte."""

from __future__ import annotations

import gzip
from itertools import combinations, product

from encore.demo import BENCHMARK_DATA_PATH
from examples.demo_judge.make_data import render_data, split_words, world_facts


def test_splits_share_no_sentence_and_no_word_list_entry() -> None:
    for one, other in combinations(map(split_words, ("train", "demo", "test")), 2):
        for rule_id, kind in product(world_facts()["rules"], ("bad", "good", "says", "words")):
            for name, entries in other[rule_id][kind].items():
                there = map(str.lower, one[rule_id][kind].get(name, ()))
                assert not {*map(str.lower, entries)} & {*there}


def test_the_shipped_data_are_what_the_script_writes() -> None:
    folder = BENCHMARK_DATA_PATH.parent
    for name, lines in render_data().items():
        # Compared unpacked: zlib's builds compress the same text to different bytes.
        assert gzip.decompress((folder / name).read_bytes()).decode() == lines, name
