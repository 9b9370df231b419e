"""Rows of a benchmark that share a prompt belong together, in scores and in differences."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from encore.benchmarks.benchmark_pairs import BenchmarkPairs
from encore.benchmarks.metrics import benchmark_score, units_of_pairs
from encore.benchmarks.pair_results import read_pair_results, write_pair_results
from encore.data.records import Message
from tests.worlds.tables import benchmark_pairs, model_row

NUM_PROMPTS, COPIES = 60, 4


def shared(pairs: BenchmarkPairs, *, num_prompts: int) -> BenchmarkPairs:
    """Return the pairs with so many prompts, one after the other."""
    with_prompts = tuple(
        dataclasses.replace(
            pair, prompt=(Message(role="user", content=f"Prompt {row % num_prompts}?"),)
        )
        for row, pair in enumerate(pairs.pairs)
    )
    return dataclasses.replace(pairs, pairs=with_prompts)


@pytest.mark.parametrize("weighting", ["examples", "subsets"])
def test_copies_of_a_prompt_narrow_no_score_and_no_difference(tmp_path, weighting):
    """Four subsets (or one) have the same prompts, and each model answers a prompt alike in all."""
    rng = np.random.default_rng(0)
    first_P, second_P = rng.integers(0, 2, (2, NUM_PROMPTS)).astype(np.float64)
    single = benchmark_pairs({"a": NUM_PROMPTS}, weighting=weighting)
    names = {f"part-{part}": NUM_PROMPTS for part in range(COPIES)}
    if weighting == "examples":
        names = {"a": COPIES * NUM_PROMPTS}
    apart = benchmark_pairs(names, weighting=weighting)
    together = shared(apart, num_prompts=NUM_PROMPTS)
    widths, differences = [], []
    for pairs, copies in ((single, 1), (together, COPIES), (apart, COPIES)):
        credit_2P = [np.tile(credit_P, copies) for credit_P in (first_P, second_P)]
        headline = benchmark_score(credit_2P[0], pairs=pairs, ties="loss").headline
        widths.append(headline.ci_high - headline.ci_low)
        rows = [
            model_row(name, wins, pairs=pairs) for name, wins in zip("xy", credit_2P, strict=True)
        ]
        difference = rows[0].compared_with(
            rows[1], units=units_of_pairs(pairs), weighting=weighting, seed=0
        )
        differences.append(difference.ci_high - difference.ci_low)
        stored = read_pair_results(write_pair_results(tmp_path / "r.parquet", rows, pairs=pairs))
        np.testing.assert_array_equal(stored.units.prompt_U, units_of_pairs(pairs).prompt_U)
    assert widths[1] == pytest.approx(widths[0], rel=0.06)
    assert widths[2] < 0.6 * widths[0]
    assert differences[1] == pytest.approx(differences[0], rel=0.06)
    assert differences[2] < 0.6 * differences[0]
