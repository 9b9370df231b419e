"""Measure `encore analyze`, `encore weights --compare`, a benchmark's table and `rules dedupe`.

    python -m tests.perf.analysis_speed [--millions 1.4 7] [--table-pairs 740 70000] [--rules 10000]
        [--rounds 3]

Ratings have hashed ids (32 hex digits) under ten rules. They are read as a finished run, whose
shards have digests, and as files from elsewhere, ordered or shuffled, which need all checks.
DuckDB's queries over all ratings bound the speed.

The whole table is what `encore benchmark` makes once heads are scored: every row of every scheme
from the scores of 20 heads and ratings of as many pairs, with 1,000 random vectors, bootstrap and
McNemar of each row, rendered and with every pair's results. The bootstrap and late imports bound it
at 740 pairs; at 70,000 the weights, the comparison of rows and writing share the time.

De-duplication begins with embeddings and ends with a written pool: no rules are alike, every cosine
is about 0.8, or all are above every threshold.

Each call is a new process; imports before the call are not counted.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from encore.benchmarks.definition import load_benchmark
from encore.data.schemas import RATINGS_CONTRACT
from encore.rules.dedupe import dedupe
from encore.rules.pool import PoolRule, write_pool
from encore.rules.rules_options import DedupeConfig
from tests.perf import harness
from tests.worlds.studies import rules_of, write_rating_run
from tests.worlds.tables import benchmark_pairs, random_margins, rows_of, scores_of, write_run

NUM_RULES, NUM_HEADS, NUM_LEVELS, SHARD_PAIRS = 10, 20, 11, 1000
SHARDS_PER_FILE = 20
EMBEDDING_SIZE = 384
#: DuckDB's limit leaves room for the process itself within 2.5 GB.
LIMITS = {"ENCORE_DUCKDB_MEMORY_LIMIT": "1500MB", "OMP_NUM_THREADS": "1"}
ANALYZE = """
import sys, time
from encore.analysis.analyze import analyze
started = time.perf_counter()
analyze(sys.argv[1], by_source=True)
print(time.perf_counter() - started)
"""
COMPARE = """
import sys, time
from encore.weighting.scheme_comparison import compare_schemes
from encore.weighting.scheme_options import SchemeOptions
from encore.weighting.weigh import open_evidence
started = time.perf_counter()
with open_evidence(sys.argv[1]) as evidence:
    compare_schemes(evidence)
print(time.perf_counter() - started)
"""
DEDUPE = "import tests.perf.analysis_speed as speed; speed.dedupe_pool()"
TABLE = "import tests.perf.analysis_speed as speed; speed.make_whole_table()"


def main() -> None:
    """Measure and print the tables."""
    parser = harness.make_parser(__doc__)
    parser.add_argument("--millions", type=float, nargs="*", default=[1.4, 7.0])
    parser.add_argument("--table-pairs", type=int, nargs="*", default=[740, 70_000])
    parser.add_argument("--rules", type=int, nargs="*", default=[10_000])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    for millions in options.millions:
        with tempfile.TemporaryDirectory() as folder:
            num_pairs = round(millions * 1e6) // (2 * NUM_RULES)
            _measure_ratings(Path(folder), num_pairs, rounds=options.rounds)
    for num_pairs in options.table_pairs:
        with tempfile.TemporaryDirectory() as folder:
            study = write_study(Path(folder) / "study", num_pairs, num_rules=NUM_HEADS)
            title = f"benchmark of {num_pairs:,} pairs, {NUM_HEADS} heads"
            calls = {"whole table": (TABLE, study, num_pairs)}
            _compare(calls, title=title, rounds=options.rounds)
    spreads = {"none alike": 1.0, "about 0.8": 0.5, "all alike": 0.01}
    for num_rules in options.rules:
        with tempfile.TemporaryDirectory() as folder:
            calls = {name: (DEDUPE, folder, num_rules, spread) for name, spread in spreads.items()}
            _compare(calls, title=f"dedupe {num_rules:,} rules", rounds=options.rounds)


def _measure_ratings(folder: Path, num_pairs: int, *, rounds: int) -> None:
    study = write_study(folder / "study", num_pairs)
    for name in ("in order", "shuffled"):
        write_ratings_files(folder / name, study, is_shuffled=name == "shuffled")
    calls = {
        "analyze, finished run": (ANALYZE, study),
        "analyze, files": (ANALYZE, folder / "in order"),
        "analyze, files in any order": (ANALYZE, folder / "shuffled"),
        "weights --compare": (COMPARE, study),
    }
    _compare(calls, title=f"{2 * NUM_RULES * num_pairs:,} ratings", rounds=rounds)


def make_whole_table() -> None:
    """Make the whole table and print its seconds; called in a new process."""
    study, num_pairs = Path(sys.argv[1]), int(sys.argv[2])
    benchmark = load_benchmark("rewardbench-safety")
    subset_sizes = {subset.name: subset.num_pairs for subset in benchmark.subsets}
    scale = num_pairs / sum(subset_sizes.values())
    counts = {name: round(scale * size) for name, size in subset_sizes.items()}
    pairs = benchmark_pairs(counts, name=benchmark.name)
    margin_PR = random_margins(pairs.num_pairs, num_heads=NUM_HEADS)
    scores = scores_of(pairs, margin_PR, head_ids=_rule_ids(NUM_HEADS))
    started = time.perf_counter()
    rows, _ = rows_of(scores, pairs, ratings=study)
    write_run(study, rows, pairs=pairs)
    print(time.perf_counter() - started)


def dedupe_pool() -> None:
    """De-duplicate a pool after its embedding and print the seconds; called in a new process."""
    folder, num_rules, spread_of_rules = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    rng = np.random.default_rng(0)
    rows = rng.normal(size=EMBEDDING_SIZE) + spread_of_rules * rng.normal(
        size=(num_rules, EMBEDDING_SIZE)
    )
    rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    numbers = range(num_rules)
    rules = [PoolRule(rule_id=f"r-{n}", title=f"{n}", description=f"Rule {n}.") for n in numbers]
    pool = folder / f"pool-{spread_of_rules:g}.toml"
    write_pool(pool, rules)
    config = DedupeConfig(pool=str(pool), output=folder / "out.toml")
    with mock.patch("encore.rules.dedupe.embed", return_value=rows):
        started = time.perf_counter()
        dedupe(config)
        print(time.perf_counter() - started)


def _compare(calls: Mapping[str, Sequence[object]], *, title: str, rounds: int) -> None:
    def call(code: str, *arguments: object) -> tuple[float, float]:
        text, _, peak_mib = harness.run_python("-c", code, *arguments, **LIMITS)
        return float(text.split()[-1]), peak_mib  # under -c DuckDB prints its progress before it

    sides = {name: partial(call, *arguments) for name, arguments in calls.items()}
    rows = [
        {
            "call": name,
            "seconds": harness.median_and_range([seconds for seconds, _ in results]),
            "MiB": max(results)[1],
        }
        for name, results in harness.measure_in_turn(sides, rounds=rounds).items()
    ]
    harness.print_table(title, rows)


# --- ratings ------------------------------------------------------------------------------------


def write_study(study: Path, num_pairs: int, *, num_rules: int = NUM_RULES) -> Path:
    """Write a study with one finished run: rules of different spread and signal, 1 % nulls."""
    titles = [f"Rule {number}" for number in range(num_rules)]
    ratings = _ratings(num_pairs, rule_ids=_rule_ids(num_rules))
    write_rating_run(study, ratings, rules=rules_of(titles), shard_size=SHARD_PAIRS)
    return study


def write_ratings_files(folder: Path, study: Path, *, is_shuffled: bool) -> None:
    """Write the ratings of a study's run as files with the five columns of the contract."""
    folder.mkdir()
    shards = sorted(study.glob("ratings/*/shard-*.parquet"))
    rng = np.random.default_rng(1)
    for first in range(0, len(shards), SHARDS_PER_FILE):
        files = [pq.ParquetFile(path) for path in shards[first : first + SHARDS_PER_FILE]]
        table = pa.concat_tables([file.read(columns=RATINGS_CONTRACT.names) for file in files])
        if is_shuffled:
            table = table.take(pa.array(rng.permutation(table.num_rows)))
        pq.write_table(table, folder / f"part-{first:05d}.parquet", compression="zstd")


def _rule_ids(num_rules: int) -> list[str]:
    return [f"rule-{number}" for number in range(num_rules)]


def _ratings(num_pairs: int, *, rule_ids: list[str]) -> pa.Table:
    """Draw the ratings of pairs, in the order in which a judge gives them."""
    rng = np.random.default_rng(0)
    quality = rng.normal(size=(num_pairs, 2, 1)) + np.array([0.2, -0.2])[:, None]
    num_rules = len(rule_ids)
    noise = np.linspace(0.1, 0.5, num_rules) * rng.normal(size=(num_pairs, 2, num_rules))
    levels = np.round(np.clip(0.6 + 0.1 * quality + noise, 0, 1) * (NUM_LEVELS - 1))
    per_pair = 2 * num_rules
    columns = {
        "pair_id": np.repeat([rng.bytes(16).hex() for _ in range(num_pairs)], per_pair),
        "source": np.repeat(np.where(rng.random(num_pairs) < 0.6, "hh", "pku"), per_pair),
        "response": np.tile(np.repeat(["chosen", "rejected"], num_rules), num_pairs),
        "rule_id": np.tile(np.array(rule_ids), 2 * num_pairs),
        "rating": pa.array(levels.ravel() / (NUM_LEVELS - 1), mask=rng.random(levels.size) < 0.01),
    }
    return pa.table(columns)


if __name__ == "__main__":
    main()
