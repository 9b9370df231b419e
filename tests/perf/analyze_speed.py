"""How fast is `encore analyze`? Prints a table; asserts nothing.

Run: python -m tests.perf.analyze_speed [--pairs 70000] [--shards 70]

Generates ratings of pairs with hashed ids under ten rules (70,000 pairs: 1.4M ratings, the paper's
size) as a folder of shards, then times in one run:

- checks and queries: all SQL of an analysis, input checks included, in this process;
- the whole analysis: kernel densities, correlations and null bands on top;
- the command: a new process, imports included;
- pandas: entropy and the four accuracies only, without any check (what a notebook would do).
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from encore.analysis import analyze
from encore.ratings_input import ratings_input
from encore.warehouse import Warehouse

NUM_RULES = 10
NUM_LEVELS = 11
QUERIES = ("rule_statistics", "rule_density_cells")
PAIR_QUERIES = ("pair_patterns", "rule_ids")


def write_ratings(folder: Path, *, num_pairs: int, num_shards: int) -> int:
    """Shards of ratings in the order in which they are rated; the number of ratings."""
    rng = np.random.default_rng(0)
    num_rows = 0
    for index, pairs in enumerate(np.array_split(np.arange(num_pairs), num_shards)):
        table = shard(rng, num_pairs=len(pairs))
        pq.write_table(table, folder / f"shard-{index:05d}.parquet", compression="zstd")
        num_rows += table.num_rows
    return num_rows


def shard(rng: np.random.Generator, *, num_pairs: int) -> pa.Table:
    """All ratings of some pairs: 32 hex digits of id, rules of different spread, 1 % nulls."""
    spread = np.linspace(0.1, 0.5, NUM_RULES)
    raw = 0.6 + spread * rng.normal(size=(num_pairs, 2, NUM_RULES))
    rating = np.round(np.clip(raw, 0, 1) * (NUM_LEVELS - 1)) / (NUM_LEVELS - 1)
    per_pair = 2 * NUM_RULES
    pair_ids = np.array([rng.bytes(16).hex() for _ in range(num_pairs)])
    sources = np.where(rng.random(num_pairs) < 0.6, "hh", "pku")
    rule_ids = np.array([f"rule-of-some-length-{k}" for k in range(NUM_RULES)])
    return pa.table(
        {
            "pair_id": np.repeat(pair_ids, per_pair),
            "source": np.repeat(sources, per_pair),
            "response": np.tile(np.repeat(["chosen", "rejected"], NUM_RULES), num_pairs),
            "rule_id": np.tile(rule_ids, 2 * num_pairs),
            "rating": pa.array(rating.ravel(), mask=rng.random(rating.size) < 0.01),
        }
    )


def queries_only(folder: Path) -> None:
    """Every check and query of an analysis."""
    with Warehouse(ratings_input(folder)) as warehouse:
        for name in QUERIES:
            warehouse.query(name)
        for _ in warehouse.query_parts(*PAIR_QUERIES):
            pass


def command(folder: Path) -> None:
    """The command as a user runs it."""
    script = "from encore.cli.app import main; main()"
    arguments = [sys.executable, "-c", script, "analyze", str(folder), "--json"]
    subprocess.run(arguments, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def with_pandas(folder: Path) -> None:
    """Entropy and four accuracies, as in a notebook."""
    ratings = pd.read_parquet(folder)
    counts = ratings.dropna().groupby(["rule_id", "rating"]).size()
    mass = counts / counts.groupby("rule_id").transform("sum")
    (-mass * np.log(mass)).groupby("rule_id").sum()
    wide = ratings.pivot_table(
        index=["source", "pair_id", "rule_id"], columns="response", values="rating"
    ).dropna()
    margin = wide["chosen"] - wide["rejected"]
    outcomes = pd.DataFrame({"win": margin > 0, "tie": margin == 0, "loss": margin < 0})
    rates = outcomes.groupby("rule_id").mean()
    _ = rates["win"] + rates["tie"] / 2, rates["win"] / (rates["win"] + rates["loss"])


def seconds_of(act: Callable[[Path], None], folder: Path) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    act(folder)
    return time.perf_counter() - start


def main() -> None:
    """Generate, time, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=70_000)
    parser.add_argument("--shards", type=int, default=70)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--no-pandas", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        num_rows = write_ratings(folder, num_pairs=options.pairs, num_shards=options.shards)
        print(f"{num_rows:,} ratings, {options.shards} shards, median of {options.repeats}")
        cases: list[tuple[str, Callable[[Path], None]]] = [
            ("checks and queries", queries_only),
            ("whole analysis", lambda path: str(analyze(path))[:0]),
            ("command, new process", command),
        ]
        if not options.no_pandas:
            cases.append(("pandas, part of it", with_pandas))
        # In turns, so that a machine that is busy for a while is so for all of them; the first
        # round does not count.
        rounds = [
            {label: seconds_of(act, folder) for label, act in cases}
            for _ in range(options.repeats + 1)
        ][1:]
        seconds = {label: statistics.median(times[label] for times in rounds) for label, _ in cases}
        for label, median in seconds.items():
            print(f"{label:22} {median:7.2f} s {num_rows / median / 1e6:7.1f}M ratings/s")
        peak_gib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(f"peak memory of this process: {peak_gib:.2f} GiB")
        if "pandas, part of it" in seconds:
            ratio = seconds["pandas, part of it"] / seconds["checks and queries"]
            print(f"pandas takes {ratio:.1f} times as long as the queries")


if __name__ == "__main__":
    main()
