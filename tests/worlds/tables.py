"""Builders of benchmarks, head scores, training ratings and the tables of `encore benchmark`."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pyarrow as pa

from encore.benchmarks.benchmark_options import RowsConfig
from encore.benchmarks.benchmark_pairs import BenchmarkPairs
from encore.benchmarks.benchmark_table import (
    BENCHMARKS_DIR,
    RESULTS_FILE,
    TABLE_JSON,
    TABLE_MARKDOWN,
    BenchmarkTable,
    make_table,
)
from encore.benchmarks.definition import Benchmark
from encore.benchmarks.pair_results import write_pair_results
from encore.benchmarks.render_table import render_markdown
from encore.benchmarks.scheme_rows import scheme_rows
from encore.benchmarks.table_rows import TableRow, reward_row
from encore.core.files import write_json
from encore.data.records import Message, PreferencePair
from encore.scoring.head_scores import HeadScores
from encore.weighting.weigh import open_evidence
from tests.worlds.ratings import table_of
from tests.worlds.scorings import head_scores, make_model
from tests.worlds.studies import write_lines
from tests.worlds.trainings import make_study, write_ratings

# Suffixes: P pairs, R heads, N pairs of the training study.

RULES = ("be-kind", "be-brief", "be-true", "be-calm")


def benchmark_pairs(
    num_pairs_of: Mapping[str, int] = MappingProxyType({"refuse": 30, "respond": 20}),
    *,
    rejected_per_row: int = 1,
    is_partial: bool = False,
    weighting: str = "examples",
    **definition: object,
) -> BenchmarkPairs:
    """Return pairs of these subsets in turn. The pairs of a row share their chosen response.

    Equal numbers of pairs have equal digests.
    """
    benchmark = Benchmark.model_validate(
        {
            "name": "made-up",
            "version": "1",
            "title": "Made up",
            "citation": "none",
            "headline": "Safety",
            "licence": "none",
            "weighting": weighting,
            "subsets": [{"name": name, "num_pairs": count} for name, count in num_pairs_of.items()],
            **definition,
        }
    )
    subset_P = [name for name, count in num_pairs_of.items() for _ in range(count)]
    row_id_P = [str(index // rejected_per_row) for index in range(len(subset_P))]
    pairs = [
        PreferencePair(
            pair_id=f"{index:032x}",
            source="made-up",
            prompt=(Message(role="user", content=f"Question {row_id}?"),),
            chosen=f"Answer {row_id}.",
            rejected=f"No {index}.",
        )
        for index, row_id in enumerate(row_id_P)
    ]
    return BenchmarkPairs(
        benchmark=benchmark,
        pairs=tuple(pairs),
        subset_P=tuple(subset_P),
        row_id_P=tuple(row_id_P),
        is_partial=is_partial,
        digest=hashlib.sha256(repr(dict(num_pairs_of)).encode()).hexdigest(),
        notes=(),
    )


def turned(pairs: BenchmarkPairs) -> BenchmarkPairs:
    """Return the pairs in reverse order."""
    return replace(
        pairs, pairs=pairs.pairs[::-1], subset_P=pairs.subset_P[::-1], row_id_P=pairs.row_id_P[::-1]
    )


def scores_of(
    pairs: BenchmarkPairs, margin_PR: np.ndarray, *, head_ids: Sequence[str] = RULES
) -> HeadScores:
    """Return head scores with these margins. Rejected responses score 0."""
    chosen_PR = np.asarray(margin_PR, dtype=np.float32)
    return head_scores(
        np.stack([chosen_PR, np.zeros_like(chosen_PR)], axis=1),
        head_ids=head_ids,
        pair_ids=[pair.pair_id for pair in pairs.pairs],
        sources=[pair.source for pair in pairs.pairs],
        subsets=pairs.subset_P,
    )


def random_margins(num_pairs: int, *, num_heads: int = len(RULES), seed: int = 0) -> np.ndarray:
    """Return random margins, about two thirds above 0."""
    return np.random.default_rng(seed).normal(0.4, 1.0, (num_pairs, num_heads))


def training_ratings(
    *, num_pairs: int = 200, rules: Sequence[str] = RULES, seed: int = 1
) -> pa.Table:
    """Return ratings with eleven levels: narrow for the first rule, wide for the last."""
    rng = np.random.default_rng(seed)
    spread_R = np.linspace(0.05, 0.4, len(rules))
    chosen_NR, rejected_NR = (
        np.round(
            np.clip(0.5 + shift + spread_R * rng.normal(size=(num_pairs, len(rules))), 0, 1), 1
        )
        for shift in (0.05, -0.05)
    )
    return table_of(chosen_NR, rejected_NR, rule_ids=rules)


def jsonl_rows(num_pairs: int, *, subsets: Sequence[str]) -> list[dict[str, str]]:
    """Return rows in RewardBench's columns, dealt over the subsets in turn."""
    return [
        {
            "id": f"row-{index}",
            "subset": subsets[index % len(subsets)],
            "prompt": f"Question {index}?",
            "chosen": f"Answer {index} of some length.",
            "rejected": f"No {index}, never.",
        }
        for index in range(num_pairs)
    ]


def make_world(folder: Path, *, num_rows: int, num_pairs: int = 12, **metadata: object) -> Path:
    """Make a folder with a rated study, two models and a benchmark's rows. Nothing is scored.

    Args:
        folder: Folder to fill.
        num_rows: Number of rows of the benchmark.
        num_pairs: Number of pairs of the study.
        metadata: Metadata of the multi-head model.
    """
    make_study(folder / "study", num_pairs=num_pairs)
    write_ratings(folder / "study", folder / "ratings.parquet")
    make_model(folder / "model", **metadata)
    make_model(folder / "initial", head_ids=("reward",), seed=1)
    write_lines(folder / "rows.jsonl", jsonl_rows(num_rows, subsets=("refuse", "respond")))
    return folder


def rows_of(
    scores: HeadScores, pairs: BenchmarkPairs, *, ratings: object = None, **config: object
) -> tuple[tuple[TableRow, ...], tuple[str, ...]]:
    """Return the rows of schemes over these heads, and their notes."""
    table = training_ratings() if ratings is None else ratings
    with open_evidence(table) as evidence:
        return scheme_rows(scores, pairs, evidence=evidence, config=RowsConfig(**config))


def model_row(name: str, wins_P: Sequence[float], *, pairs: BenchmarkPairs) -> TableRow:
    """Return the row of a reward model that is right on pairs with a 1."""
    reward_P2 = np.stack([np.asarray(wins_P, dtype=np.float64), np.full(len(wins_P), 0.5)], axis=1)
    return reward_row(name, reward_P2, pairs=pairs)


def every_row(pairs: BenchmarkPairs, *, seed: int = 0) -> tuple[TableRow, ...]:
    """Return rows of schemes over random heads, and of a model that is right on 3 of 4 pairs."""
    schemes = ("encore", "single", "random", "top-k")
    scores = scores_of(pairs, random_margins(pairs.num_pairs, seed=seed))
    wins_P = [float(index % 4 > 0) for index in range(pairs.num_pairs)]
    rows, _ = rows_of(scores, pairs, schemes=schemes, taus=(0.5, 2.0), num_random=5)
    return (*rows, model_row("initial", wins_P, pairs=pairs))


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
    write_json(folder / TABLE_JSON, table.model_dump(mode="json"))
    (folder / TABLE_MARKDOWN).write_text(render_markdown(table), encoding="utf-8")
    return table
