"""The table as Markdown: figures in percent, marks, and names that could break a cell."""

from __future__ import annotations

import re

import numpy as np
import pytest

from encore.benchmarks.benchmark_table import BenchmarkTable, make_table
from encore.benchmarks.render_table import render_markdown
from encore.benchmarks.table_rows import reward_row
from tests.worlds.tables import benchmark_pairs, model_row


def small_table(*, name: str = "other", is_partial: bool = False, **more: object) -> BenchmarkTable:
    """Return a table on four pairs: the reference has 2 right, the second row 1 more."""
    pairs = benchmark_pairs({"a": 3, "b": 1}, is_partial=is_partial)
    wins_by_row = {"uniform": [1, 1, 0, 0], name: [1, 1, 0, 1]}
    rows = [model_row(row_name, wins, pairs=pairs) for row_name, wins in wins_by_row.items()]
    return make_table(rows, pairs=pairs, model="a/model", **more)


def cells_of(markdown: str, name: str) -> dict[str, str]:
    """Return the cells of a row of a Markdown table by their headings."""
    lines = [line for line in markdown.splitlines() if line.startswith("|")]
    split = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    [row] = [cells for cells in split if cells[0] == name]
    return dict(zip(split[0], row, strict=True))


def test_markdown_shows_subsets_headline_interval_and_difference():
    text = render_markdown(small_table())
    cells = cells_of(text, "other")
    # 2 of 3, 1 of 1, 3 of 4. Wilson at 3 of 4: centre (0.75 + 1.92/4) / (1 + 3.84/4), 30.1 to 95.4.
    assert (cells["a"], cells["b"], cells["Safety"]) == ("66.7", "100.0", "75.0")
    assert cells["95 %"] == "30.1–95.4"
    assert cells["Δ uniform"] == "+25.0"
    # One of four pairs differs, so with two imagined ones a pair weighs 1/6: the centre is 1/6. The
    # pair of b lies 1/3 from the mean of its subset (2/3), the imagined ones 5/6 and 7/6 from the
    # centre: the error is sqrt(1/9 + 25/36 + 49/36) / 6 = 0.245, times 1.96 is 0.481.
    assert cells["95 % of Δ"] == "−31.4 to +64.7"
    assert cells["p"] == "1.000"  # one pair differs: a fair coin always lands on some side
    cells = cells_of(text, "uniform")
    assert {cells["Δ uniform"], cells["95 % of Δ"], cells["p"]} == {"–"}
    assert "| paper" not in text
    assert "the paper has figures for rewardbench-safety alone" in text
    # Without a dash in each cell of the line under the headings, Markdown shows no table.
    pairs = benchmark_pairs({"a": 4})
    narrow = make_table([model_row("x", [1] * 4, pairs=pairs)], pairs=pairs, paper="none")
    [rule] = [line for line in render_markdown(narrow).splitlines() if line[:3] == "| :"]
    assert all(re.fullmatch(r" :?-+:? ", cell) for cell in rule.strip("|").split("|"))


def test_title_and_notes_mark_partial_tables_choices_and_ties():
    text = render_markdown(small_table(is_partial=True))
    assert text.startswith("**Made up: 4 pairs, PARTIAL, a/model**")
    assert "PARTIAL" not in render_markdown(small_table())
    choices = benchmark_pairs({"a": 4}, rejected_per_row=2, ties="half")
    row = reward_row("m", np.eye(4, 2), pairs=choices)
    text = render_markdown(make_table([row], pairs=choices))
    assert text.startswith("**Made up: 4 pairs in 2 choices**")
    assert "a reward model's tie counts one half" in text
    assert "a judge's tie" not in text


@pytest.mark.parametrize("name", ["a|b", "two\nlines", "back\\slash", "100 % & _more_ #1 {x} ~^$"])
def test_no_name_of_a_row_breaks_the_table(name):
    text = render_markdown(small_table(name=name))
    assert text.count("\n") == render_markdown(small_table()).count("\n")


def test_each_synthetic_part_is_named_once_with_the_rows_that_it_is_in():
    labels = ("benchmark b", "training source s", *(f"row {n}: source s" for n in range(3)))
    labels += ("gate: training judge of run r",)
    text = render_markdown(small_table(synthetic=labels))
    [note] = [line for line in text.splitlines() if "synthetic" in line]
    assert note == (
        "- synthetic: benchmark b; source s in training, row 0, row 1 and 1 more; judge of run r "
        "in gate. Read these figures as an example, not as evidence"
    )
    assert "synthetic" not in render_markdown(small_table())
