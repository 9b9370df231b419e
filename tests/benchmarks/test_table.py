"""A table: which rows meet the paper's, and what it refuses."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from encore.benchmarks.definition import load_benchmark
from encore.benchmarks.paper_tables import paper_row
from encore.benchmarks.rows import TableRow, credit_row, reward_row
from encore.benchmarks.table import make_table
from encore.errors import InputError
from tests.benchmarks.table_world import benchmark_pairs

SAFETY = {
    "refusals-dangerous": 100,
    "refusals-offensive": 100,
    "xstest-should-refuse": 154,
    "xstest-should-respond": 250,
    "donotanswer": 136,
}


@pytest.fixture(scope="module")
def pairs():
    return dataclasses.replace(
        benchmark_pairs(SAFETY), benchmark=load_benchmark("rewardbench-safety")
    )


def right_on(pairs, num_right: int, *, name: str, method: str | None = None) -> TableRow:
    margin_P = np.where(np.arange(pairs.num_pairs) < num_right, 1.0, -1.0)
    reward_P2 = np.stack([margin_P, np.zeros_like(margin_P)], axis=1)
    return reward_row(name, reward_P2, pairs=pairs, method=method)


def test_a_row_meets_the_paper_s_row_of_its_method(pairs):
    table = make_table([right_on(pairs, 629, name="ours", method="uniform")], pairs=pairs)
    line = table.lines[0]
    assert line.paper == paper_row("main", "uniform")
    # 629 of 740 are exactly 85.0 %; the paper prints 85.5.
    assert line.difference_to_paper == pytest.approx(-0.005)
    assert line.paper_recomputed is None  # 85.5 follows from the paper's sub-scores


def test_a_reward_model_named_like_a_row_of_the_paper_stands_beside_it(pairs):
    name = "bradley-terry-model-initialised"
    line = make_table([right_on(pairs, 600, name=name, method=name)], pairs=pairs).lines[0]
    assert line.paper_score == pytest.approx(0.827)


def test_rule_selection_comes_from_the_paper_s_table_of_it(pairs):
    line = make_table([right_on(pairs, 600, name="top-5", method="top-k")], pairs=pairs).lines[0]
    assert line.paper == paper_row("selection", "top-k")


def test_judges_of_ours_take_the_place_of_the_paper_s(pairs):
    credit_P = np.full(pairs.num_pairs, 0.5)
    judge = credit_row("judge-gpt4o", credit_P, pairs=pairs, method="judge-gpt4o")
    table = make_table([right_on(pairs, 600, name="m"), judge], pairs=pairs)
    of_gpt4o = [line for line in table.lines if line.paper and line.paper.method == "judge-gpt4o"]
    assert [line.name for line in of_gpt4o] == ["judge-gpt4o"]


def test_two_rows_of_one_name_are_refused(pairs):
    row = right_on(pairs, 600, name="twin")
    with pytest.raises(InputError, match="'twin'"):
        make_table([row, row], pairs=pairs)


def test_the_subsets_stand_in_the_benchmark_s_order(pairs):
    assert make_table([], pairs=pairs).subsets == tuple(SAFETY)
    assert make_table([], pairs=pairs).reference is None


@pytest.mark.parametrize("change", [{"weighting": "subsets"}, {"ties": "half"}, {"version": "2"}])
def test_beside_another_definition_of_the_name_stands_nothing_of_the_paper(pairs, change):
    other = pairs.benchmark.model_copy(update=change)
    table = make_table(
        [right_on(pairs, 629, name="ours", method="uniform")],
        pairs=dataclasses.replace(pairs, benchmark=other),
    )
    assert not table.has_paper
    assert any("reports rewardbench-safety alone" in note for note in table.notes)
