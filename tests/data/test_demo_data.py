"""The demo's data: splits share no text, and the script writes the shipped files again."""

from __future__ import annotations

import gzip
from itertools import combinations, product

from encore.demo import BENCHMARK_DATA_PATH
from examples.demo_judge.make_data import render_data, split_texts, world_facts


def test_splits_share_no_sentence_and_no_word_list_entry() -> None:
    for first, second in combinations(map(split_texts, ("train", "demo", "test")), 2):
        for rule_id, kind in product(world_facts()["rules"], ("bad", "good", "says", "words")):
            for name, entries in second[rule_id][kind].items():
                first_entries = map(str.lower, first[rule_id][kind].get(name, ()))
                assert not {*map(str.lower, entries)} & {*first_entries}


def test_the_script_writes_the_shipped_data() -> None:
    folder = BENCHMARK_DATA_PATH.parent
    for name, lines in render_data().items():
        # Compared unpacked: zlib's builds compress the same text to different bytes.
        assert gzip.decompress((folder / name).read_bytes()).decode() == lines, name
