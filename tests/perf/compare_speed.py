"""How fast is `encore weights --compare`? Prints a table; asserts nothing.

Run: python -m tests.perf.compare_speed [--pairs 70000] [--rules 20] [--random 1000]

Generates ratings of pairs with hashed ids (70,000 pairs under 20 rules: 2.8M ratings), then times,
in this process, the parts of a comparison of all schemes: opening the ratings and their statistics,
reading the pairs side by side, and the comparison itself with its random vectors and five folds.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from encore.weighting.comparison import compare
from encore.weighting.scheme import SchemeOptions
from encore.weighting.weigh import open_evidence

NUM_LEVELS = 11
PAIRS_PER_FILE = 1000


def write_ratings(folder: Path, *, num_pairs: int, num_rules: int) -> None:
    """Files of ratings in which chosen responses are rated higher, the less so the more they vary.

    Every rating is there: missing ones would only make the comparison smaller.
    """
    rng = np.random.default_rng(0)
    spread_R = np.linspace(0.1, 0.5, num_rules)
    rule_ids = np.array([f"rule-of-some-length-{k:02d}" for k in range(num_rules)])
    for start in range(0, num_pairs, PAIRS_PER_FILE):
        count = min(PAIRS_PER_FILE, num_pairs - start)
        raw = spread_R * rng.normal(size=(count, 2, num_rules))
        raw += np.array([0.65, 0.55])[:, None]
        rating = np.round(np.clip(raw, 0, 1) * (NUM_LEVELS - 1)) / (NUM_LEVELS - 1)
        pair_ids = np.array([rng.bytes(16).hex() for _ in range(count)])
        table = pa.table(
            {
                "pair_id": np.repeat(pair_ids, 2 * num_rules),
                "source": pa.array(["s"] * rating.size),
                "response": np.tile(np.repeat(["chosen", "rejected"], num_rules), count),
                "rule_id": np.tile(rule_ids, 2 * count),
                "rating": rating.ravel(),
            }
        )
        pq.write_table(table, folder / f"part-{start:08d}.parquet", compression="zstd")


def main() -> None:
    """Generate, time, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=70_000)
    parser.add_argument("--rules", type=int, default=20)
    parser.add_argument("--random", type=int, default=1000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        write_ratings(Path(name), num_pairs=options.pairs, num_rules=options.rules)
        times = [time.perf_counter()]
        with open_evidence(Path(name)) as evidence:
            times.append(time.perf_counter())
            evidence.read_pairs()
            times.append(time.perf_counter())
            compare(evidence, options=SchemeOptions(), num_random=options.random)
            times.append(time.perf_counter())
    print(f"{options.pairs:,} pairs, {options.rules} rules, {options.random} random vectors")
    labels = ("statistics of the rules", "pairs side by side", "all schemes")
    for label, start, end in zip(labels, times[:-1], times[1:], strict=True):
        print(f"{label:24} {end - start:6.2f} s")
    print(f"{'together':24} {times[-1] - times[0]:6.2f} s")
    peak_gib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"peak memory of this process: {peak_gib:.2f} GiB")


if __name__ == "__main__":
    main()
