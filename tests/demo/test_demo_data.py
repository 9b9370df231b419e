"""The synthetic world: splits that share nothing, data that can be made again byte for byte."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from itertools import combinations, product

from encore.benchmarks.definition import load_benchmark
from encore.benchmarks.pairs import read_benchmark_pairs
from encore.benchmarks.paper_tables import BENCHMARK
from encore.data.pairs import SYNTHETIC_LABEL
from encore.demo import benchmark_data_path, benchmark_path, data_paths
from examples.demo_judge.make_data import SCALES, SUBSETS, render_data, split_words


def test_splits_share_no_sentence_and_no_word_list_entry() -> None:
    for one, other in combinations(map(split_words, ("train", "demo", "test")), 2):
        for rule_id, kind in product(SCALES, ("bad", "good", "says", "words")):
            for name, entries in other[rule_id][kind].items():
                there = map(str.lower, one[rule_id][kind].get(name, ()))
                assert not {*map(str.lower, entries)} & {*there}


def test_the_shipped_data_are_what_the_script_writes() -> None:
    folder = benchmark_data_path().parent
    for name, lines in render_data().items():
        # Compared unpacked: zlib's builds compress the same text to different bytes.
        assert gzip.decompress((folder / name).read_bytes()).decode() == lines, name


def test_the_benchmark_is_whole_marked_as_synthetic_and_apart_from_the_pairs() -> None:
    pairs = read_benchmark_pairs(load_benchmark(benchmark_path()), data=benchmark_data_path())
    assert (pairs.is_partial, pairs.notes, pairs.num_pairs) == (False, (), 80)
    assert set(Counter(pairs.subset_P).values()) == {16}
    real = [subset.name for subset in load_benchmark(BENCHMARK).subsets]
    assert list(SUBSETS) == [f"{SYNTHETIC_LABEL}-{name}" for name in real]
    trained_on = b"".join(gzip.decompress(path.read_bytes()) for path in data_paths().values())
    for pair in pairs.pairs:
        assert json.dumps(pair.chosen)[1:-1].encode() not in trained_on
        assert json.dumps(pair.rejected)[1:-1].encode() not in trained_on
