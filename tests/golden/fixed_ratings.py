"""A ratings table for golden tests: six rules, two sources, null ratings and missing rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from tests.worlds.ratings import ratings_table

NUM_PAIRS = 300
#: By rule: by how much the chosen response is rated higher, the noise's standard deviation, the
#: number of rating levels, the share of null ratings.
RULES = {
    "avoid-harm": (0.30, 0.20, 11, 0.02),
    "be-honest": (0.10, 0.30, 11, 0.00),
    "be-brief": (-0.05, 0.10, 5, 0.10),
    "be-kind": (0.20, 0.15, 3, 0.00),
    "no-crime": (0.05, 0.40, 101, 0.01),
    "be-constant": (0.00, 0.00, 2, 0.00),
}


def write_fixed_ratings(path: Path) -> Path:
    """Write the table to ``path`` and return it."""
    generator = np.random.default_rng(20240517)
    rows = []
    for number in range(NUM_PAIRS):
        pair_id, source = f"{number:032x}", "hh" if number % 3 else "pku"
        quality = generator.normal(scale=0.3)
        for rule_id, (gain, noise, num_levels, null_share) in RULES.items():
            if rule_id == "be-kind" and number % 10 == 0:
                continue
            for response, sign in (("chosen", 0.5), ("rejected", -0.5)):
                raw = 0.6 + sign * (gain + 0.2 * quality * (gain > 0)) + generator.normal() * noise
                rating = round(min(max(raw, 0.0), 1.0) * (num_levels - 1)) / (num_levels - 1)
                is_null = generator.random() < null_share
                rows.append((pair_id, source, response, rule_id, None if is_null else rating))
    pq.write_table(ratings_table(rows), path)
    return path
