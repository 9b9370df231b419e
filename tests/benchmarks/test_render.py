"""The table as text: figures in percent, hostile names, a form for each reader."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from encore.benchmarks.benchmark_table import BenchmarkTable, make_table
from encore.benchmarks.render_table import render
from encore.benchmarks.table_rows import reward_row
from tests.worlds.tables import benchmark_pairs


def hand_made(*, name: str = "other", is_partial: bool = False, **more: object) -> BenchmarkTable:
    """Return a table on four pairs: the reference has 2 right, the second row 1 more."""
    pairs = benchmark_pairs({"a": 3, "b": 1}, is_partial=is_partial)
    margins = {"uniform": [1, 1, -1, -1], name: [1, 1, -1, 1]}
    rows = [
        reward_row(row_name, np.array([[m, 0.0] for m in margin]), pairs=pairs)
        for row_name, margin in margins.items()
    ]
    return make_table(rows, pairs=pairs, model="a/model", **more)


def cells_of(markdown: str, name: str) -> dict[str, str]:
    """Return the cells of a row of a Markdown table by their headings."""
    lines = [line for line in markdown.splitlines() if line.startswith("|")]
    split = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    [row] = [cells for cells in split if cells[0] == name]
    return dict(zip(split[0], row, strict=True))


def test_markdown_shows_subsets_headline_interval_and_difference():
    text = render(hand_made(), form="markdown")
    cells = cells_of(text, "other")
    # 2 of 3, 1 of 1, 3 of 4. Wilson at 3 of 4: centre (0.75 + 1.92/4) / (1 + 3.84/4), 30.1 to 95.4.
    assert (cells["a"], cells["b"], cells["Safety"]) == ("66.7", "100.0", "75.0")
    assert cells["95 %"] == "30.1–95.4"
    assert cells["Δ uniform"] == "+25.0"
    # The pair of b is drawn within b: it always differs, so every draw gives 25 points.
    assert cells["95 % of Δ"] == "+25.0 to +25.0"
    assert cells["p"] == "1.000"  # one pair differs: a fair coin always lands on some side
    cells = cells_of(text, "uniform")
    assert {cells["Δ uniform"], cells["95 % of Δ"], cells["p"]} == {"–"}
    assert "| paper" not in text
    assert "the paper has figures for rewardbench-safety alone" in text
    # A rule without a dash makes the whole no table to a reader.
    pairs = benchmark_pairs({"a": 3, "b": 1})
    narrow = make_table([reward_row("x", np.ones((4, 2)), pairs=pairs)], pairs=pairs, paper="none")
    [rule] = [line for line in render(narrow, form="markdown").splitlines() if line[:3] == "| :"]
    assert all(re.fullmatch(r" :?-+:? ", cell) for cell in rule.strip("|").split("|"))


def test_title_and_notes_mark_partial_and_synthetic_tables_and_ties():
    part = hand_made(is_partial=True, synthetic=["model m: backbone (made up)"])
    text = render(part, form="markdown")
    assert text.startswith("**Made up: 4 pairs, PARTIAL, a/model**")
    assert "PARTIAL" not in render(hand_made(), form="markdown")
    choices = benchmark_pairs({"a": 4}, rejected_per_row=2, ties="half")
    row = reward_row("m", np.eye(4, 2), pairs=choices)
    text = render(make_table([row], pairs=choices), form="markdown")
    assert text.startswith("**Made up: 4 pairs in 2 choices**")
    assert "a reward model's tie counts one half" in text
    assert "a judge's tie" not in text


@pytest.mark.parametrize("form", ["markdown", "json"])
@pytest.mark.parametrize("name", ["a|b", "two\nlines", "back\\slash", "100 % & _more_ #1 {x} ~^$"])
def test_hostile_names_break_no_form(name, form):
    text = render(hand_made(name=name), form=form)
    usual = render(hand_made(), form=form)
    assert text.count("\n") == usual.count("\n")
    if form == "json":
        assert name in [row["name"] for row in json.loads(text)["rows"]]


def test_json_holds_every_figure_as_a_share():
    sign = "\x85\x7f\u202e\u2028"
    table = hand_made(name=f"a{sign}b")
    text = render(table, form="json")
    content = json.loads(text)
    first, second = content["rows"]
    assert second["name"] == f"a{sign}b"
    assert (first["ours"]["headline"]["score"], second["ours"]["comparison"]["difference"]) == (
        0.5,
        0.25,
    )
    assert "num_cut_pairs" not in first["ours"]
