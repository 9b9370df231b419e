"""How fast is the whole table of one backbone from head scores? Prints a table; asserts nothing.

Run: python -m tests.perf.benchmark_speed [--pairs 740 70000] [--heads 20] [--random 1000]

Head scores of a benchmark (five subsets) and ratings of a training study of as many pairs are made
up; then every row is timed in this process: weights from the ratings, all schemes, every single
rule, the random vectors, bootstrap and McNemar of each row, the rendered table, and the file with
the result of every pair under every row. Models are not run: heads are scored once.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path

import numpy as np

from encore.benchmarks.render import render
from encore.benchmarks.results import write_pair_results
from encore.benchmarks.table import make_table
from tests.benchmarks.table_world import benchmark_pairs, random_margins, rows_of, scores_of
from tests.perf.compare_speed import write_ratings

#: Of RewardBench's 740 pairs.
SHARES = {
    "refusals-dangerous": 100 / 740,
    "refusals-offensive": 100 / 740,
    "xstest-should-refuse": 154 / 740,
    "xstest-should-respond": 250 / 740,
}
LAST_SUBSET = "donotanswer"


def subsets_of(num_pairs: int) -> dict[str, int]:
    """So many pairs, parted as RewardBench's are."""
    counts = {name: round(share * num_pairs) for name, share in SHARES.items()}
    return {**counts, LAST_SUBSET: num_pairs - sum(counts.values())}


def main() -> None:
    """Make up, time, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, nargs="+", default=[740, 70_000])
    parser.add_argument("--heads", type=int, default=20)
    parser.add_argument("--random", type=int, default=1000)
    options = parser.parse_args()
    for num_pairs in options.pairs:
        measure(num_pairs, num_heads=options.heads, num_random=options.random)
    peak_gib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"peak memory of this process: {peak_gib:.2f} GiB")


def measure(num_pairs: int, *, num_heads: int, num_random: int) -> None:
    """One size."""
    rules = [f"rule-of-some-length-{place:02d}" for place in range(num_heads)]
    pairs = benchmark_pairs(subsets_of(num_pairs), name="rewardbench-safety")
    scores = scores_of(pairs, random_margins(num_pairs, num_heads=num_heads), head_ids=rules)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "ratings").mkdir()
        write_ratings(folder / "ratings", num_pairs=num_pairs, num_rules=num_heads)
        times = [time.perf_counter()]
        rows, _ = rows_of(scores, pairs, ratings=folder / "ratings", num_random=num_random)
        times.append(time.perf_counter())
        table = make_table(rows, pairs=pairs, model="made up")
        times.append(time.perf_counter())
        text = render(table, form="markdown")
        times.append(time.perf_counter())
        path = write_pair_results(folder / "results.parquet", rows, pairs=pairs)
        times.append(time.perf_counter())
        num_bytes = path.stat().st_size
    print(
        f"{num_pairs:,} pairs, {num_heads} heads, {num_random:,} random vectors, {len(rows)} rows, "
        f"{len(text.splitlines())} lines"
    )
    labels = ("weights and rows", "bootstrap and McNemar", "Markdown", "results of every pair")
    for label, seconds in zip(labels, np.diff(times).tolist(), strict=True):
        print(f"{label:24} {seconds:6.2f} s")
    print(f"{'together':24} {times[-1] - times[0]:6.2f} s; results {num_bytes / 2**20:.1f} MiB\n")


if __name__ == "__main__":
    main()
