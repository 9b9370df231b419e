"""Tables of made-up rows, in memory and as `encore benchmark` writes them to a study."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from encore.benchmarks.benchmark_pairs import BenchmarkPairs
from encore.benchmarks.benchmark_table import (
    BENCHMARKS_DIR,
    RESULTS_FILE,
    TABLE_JSON,
    TABLE_MARKDOWN,
    BenchmarkTable,
    make_table,
)
from encore.benchmarks.pair_results import write_pair_results
from encore.benchmarks.render_table import render
from encore.benchmarks.table_rows import TableRow, reward_row
from tests.worlds.tables import benchmark_pairs, random_margins, rows_of, scores_of

# Suffix: P pairs.

SUBSETS = {"refuse": 30, "respond": 20}
ROWS = {"schemes": ("encore", "single", "random", "top-k"), "taus": (0.5, 2.0), "num_random": 5}


def real_pairs(num_pairs_of: Mapping[str, int] = SUBSETS, **settings: object) -> BenchmarkPairs:
    """Return made-up pairs. Equal counts have equal digests."""
    pairs = benchmark_pairs(num_pairs_of, **settings)
    digest = hashlib.sha256(repr(dict(num_pairs_of)).encode()).hexdigest()
    return replace(pairs, digest=digest)


def model_row(name: str, wins_P: Sequence[float], *, pairs: BenchmarkPairs) -> TableRow:
    """Return the row of a reward model that is right on pairs with a 1."""
    reward_P2 = np.stack([np.asarray(wins_P, dtype=np.float64), np.full(len(wins_P), 0.5)], axis=1)
    return reward_row(name, reward_P2, pairs=pairs)


def every_row(pairs: BenchmarkPairs, *, seed: int = 0) -> tuple[TableRow, ...]:
    """Return rows of schemes over random heads, and of a model that is right on 3 of 4 pairs."""
    scores = scores_of(pairs, random_margins(pairs.num_pairs, seed=seed))
    wins_P = [float(index % 4 > 0) for index in range(pairs.num_pairs)]
    return (*rows_of(scores, pairs, **ROWS)[0], model_row("initial", wins_P, pairs=pairs))


def write_run(
    study: Path,
    rows: Sequence[TableRow],
    *,
    pairs: BenchmarkPairs,
    key: str = "k" * 16,
    synthetic: Sequence[str] = (),
) -> BenchmarkTable:
    """Write the table of rows, compared with the first, to a folder of a study, and return it."""
    folder = study / BENCHMARKS_DIR / key
    folder.mkdir(parents=True, exist_ok=True)
    table = make_table(rows, pairs=pairs, model="made", synthetic=synthetic)
    pair_rows = [row for row in rows if row.follows_from_pairs]
    write_pair_results(folder / RESULTS_FILE, pair_rows, pairs=pairs)
    (folder / TABLE_JSON).write_text(render(table, form="json"), encoding="utf-8")
    (folder / TABLE_MARKDOWN).write_text(render(table, form="markdown"), encoding="utf-8")
    return table
