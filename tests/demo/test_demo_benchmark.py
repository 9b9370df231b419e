"""The demo's benchmark: synthetic, whole, and apart from what the demo trains on."""

from __future__ import annotations

import gzip
import json
import random
from collections import Counter

import pytest

from encore.benchmarks.definition import load_benchmark
from encore.benchmarks.pairs import BenchmarkPairs, read_benchmark_pairs
from encore.benchmarks.paper_tables import BENCHMARK
from encore.demo.benchmark import benchmark_data_path, benchmark_path
from encore.demo.make_benchmark import PAIRS_PER_SUBSET, SUBSETS, render_benchmark
from encore.demo.make_data import SEED, demo_pairs, hh_record, pku_record
from encore.synthetic import SYNTHETIC_LABEL


@pytest.fixture(scope="module")
def pairs() -> BenchmarkPairs:
    return read_benchmark_pairs(load_benchmark(benchmark_path()), data=benchmark_data_path())


def test_the_demos_benchmark_is_whole_and_says_that_it_is_synthetic(pairs: BenchmarkPairs) -> None:
    assert not pairs.is_partial
    assert pairs.notes == ()  # no pair twice, every row with an id
    assert pairs.num_pairs == 5 * PAIRS_PER_SUBSET == 80
    assert set(Counter(pairs.subset_P).values()) == {PAIRS_PER_SUBSET}
    for name in (pairs.benchmark.name, *pairs.subset_P):
        assert name.startswith(SYNTHETIC_LABEL)


def test_its_subsets_are_those_of_rewardbench_marked() -> None:
    real = [subset.name for subset in load_benchmark(BENCHMARK).subsets]
    assert [subset.name for subset in SUBSETS] == [f"{SYNTHETIC_LABEL}-{name}" for name in real]


def test_the_shipped_benchmark_is_what_the_script_writes() -> None:
    rendered = render_benchmark()
    assert rendered == render_benchmark()
    # Compared unpacked: zlib's builds compress the same text to different bytes.
    assert gzip.decompress(benchmark_data_path().read_bytes()) == gzip.decompress(rendered)


def test_no_response_of_the_benchmark_is_among_the_training_pairs(pairs: BenchmarkPairs) -> None:
    rng = random.Random(SEED)
    records = [hh_record(pair) for pair in demo_pairs(rng, multi_turn=True)]
    records += [pku_record(pair, rng) for pair in demo_pairs(rng, multi_turn=False)]
    trained_on = json.dumps(records)
    for pair in pairs.pairs:
        assert json.dumps(pair.chosen)[1:-1] not in trained_on
        assert json.dumps(pair.rejected)[1:-1] not in trained_on
