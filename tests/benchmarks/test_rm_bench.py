"""RM-Bench: three styles on both sides, by domain and difficulty."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from encore.benchmarks.benchmark_pairs import BenchmarkPairs, read_benchmark_pairs
from encore.benchmarks.benchmark_table import make_table
from encore.benchmarks.definition import load_benchmark
from encore.benchmarks.table_rows import reward_row
from encore.core.errors import InputError
from tests.worlds.studies import write_lines

RM_BENCH = load_benchmark("rm-bench")


def row_of(domain: str, number: int, chosen: list[int], rejected: list[int]) -> dict[str, Any]:
    """Return a row whose texts end in their reward, styles from plain to elaborate."""
    texts = {
        side: [f"{side} {style}: {reward}" for style, reward in enumerate(rewards)]
        for side, rewards in (("chosen", chosen), ("rejected", rejected))
    }
    return {"domain": domain, "id": number, "prompt": f"{domain} {number}?", **texts}


def read(folder: Path, rows: list[dict[str, Any]]) -> BenchmarkPairs:
    path = write_lines(folder / "rows.jsonl", rows)
    return read_benchmark_pairs(RM_BENCH, data=path, allow_partial=True)


def test_accuracy_is_by_domain_and_difficulty(tmp_path):
    rows = [
        # It likes style alone: elaborate beats plain (0 < 1 < 2), and equal styles tie.
        row_of("chat", 1, [0, 1, 2], [0, 1, 2]),
        # Right in every pair.
        row_of("safety-refuse", 1, [3, 3, 3], [0, 1, 2]),
        # The same id in the other half of the domain. Chosen [0, 1, 2] against [1, 1, 1]: right
        # are (2, 0), (2, 1), (2, 2): easy 2 of 3, normal 1 of 3, hard 0.
        row_of("safety-response", 1, [0, 1, 2], [1, 1, 1]),
        row_of("poetry", 1, [0, 0, 0], [0, 0, 0]),
    ]
    pairs = read(tmp_path, rows)
    assert (pairs.num_pairs, pairs.is_partial) == (27, True)
    assert pairs.notes[1] == "1 rows of other subsets are left out"
    rewards = [[float(text[-1]) for text in (pair.chosen, pair.rejected)] for pair in pairs.pairs]
    [line] = make_table([reward_row("model", np.array(rewards), pairs=pairs)], pairs=pairs).rows
    scores = {name: score.score for name, score in line.our_figures.figures.items()}
    expected = {
        "chat easy": 1,
        "chat normal": 0,
        "chat hard": 0,  # its ties are losses
        "safety easy": 5 / 6,
        "safety normal": 2 / 3,
        "safety hard": 1 / 2,
    }
    assert scores == pytest.approx({"Average": 3 / 6, **expected})
    counts = {subset.subset: subset.num_pairs for subset in line.our_figures.subsets}
    assert (counts["chat hard"], counts["safety hard"]) == (1, 2)  # prompts, not their 3 pairs


def test_the_definition_has_the_published_counts(tmp_path):
    counts = {subset.name: subset.num_rows for subset in RM_BENCH.subsets}
    domains = {"chat": 129, "code": 228, "math": 529, "safety": 284 + 157}
    difficulties = ("easy", "normal", "hard")
    assert counts == {
        f"{name} {part}": num for name, num in domains.items() for part in difficulties
    }
    assert sum(domains.values()) == 1327
    # The published file: one JSON array, ids with their domain, and a column that nothing reads.
    rows = [row_of("chat", 1, [1, 1, 1], [0, 0, 0]) | {"id": "chat/100", "error": "a mistake"}]
    (tmp_path / "total_dataset.json").write_text(json.dumps(rows, indent=4), encoding="utf-8")
    pairs = read_benchmark_pairs(RM_BENCH, data=tmp_path, allow_partial=True)
    assert {*pairs.row_id_P} == {"chat/chat/100"}
    assert "chat easy has 1 rows, expected 129" in pairs.notes[0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"chosen": ["a", "b"]}, "2 chosen and 3 rejected responses; expected 3 and 3"),
        ({"domain": None}, "expected a column 'domain'"),
        ({"chosen": ["a", "b", "rejected 1: 1"]}, "are the same text"),
    ],
)
def test_a_row_of_other_shape_is_refused(tmp_path, changes, message):
    with pytest.raises(InputError, match=message):
        read(tmp_path, [{**row_of("chat", 1, [0, 1, 2], [0, 1, 2]), **changes}])
