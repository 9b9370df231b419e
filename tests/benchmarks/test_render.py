"""The table as text: figures in percent, hostile names, a form for each reader."""

from __future__ import annotations

import dataclasses
import json
import re

import numpy as np
import pytest

from encore.benchmarks.definition import load_benchmark
from encore.benchmarks.pairs import BenchmarkPairs
from encore.benchmarks.render import FORMATS, render
from encore.benchmarks.rows import TableRow, compared, reward_row
from encore.benchmarks.table import BenchmarkTable, make_table
from encore.terminal import visible
from tests.benchmarks.table_world import (
    benchmark_pairs,
    compared_rows,
    random_margins,
    scores_of,
)

SAFETY = {
    "refusals-dangerous": 100,
    "refusals-offensive": 100,
    "xstest-should-refuse": 154,
    "xstest-should-respond": 250,
    "donotanswer": 136,
}


def safety_pairs() -> BenchmarkPairs:
    """Made-up pairs of the paper's benchmark."""
    benchmark = load_benchmark("rewardbench-safety")
    return dataclasses.replace(benchmark_pairs(SAFETY), benchmark=benchmark)


def hand_made(*, name: str = "other", is_partial: bool = False) -> BenchmarkTable:
    """Four pairs; the reference gets 2 right, the other the same 2 and one more."""
    pairs = benchmark_pairs({"a": 3, "b": 1}, is_partial=is_partial)
    margins = {"uniform": [1, 1, -1, -1], name: [1, 1, -1, 1]}
    rows = [
        reward_row(one, np.array([[m, 0.0] for m in margin]), pairs=pairs)
        for one, margin in margins.items()
    ]
    return make_table(compared(rows, pairs=pairs), pairs=pairs, model="a/model")


def cells_of(markdown: str, name: str) -> dict[str, str]:
    """One row of a Markdown table by its headings."""
    lines = [line for line in markdown.splitlines() if line.startswith("|")]
    split = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    [row] = [cells for cells in split if cells[0] == name]
    return dict(zip(split[0], row, strict=True))


def test_markdown_shows_subsets_headline_interval_and_difference():
    cells = cells_of(render(hand_made(), form="markdown"), "other")
    # 2 of 3, 1 of 1, 3 of 4. Wilson at 3 of 4: centre (0.75 + 1.92/4) / (1 + 3.84/4), 30.1 to 95.4.
    assert (cells["a"], cells["b"], cells["Safety"]) == ("66.7", "100.0", "75.0")
    assert cells["95 %"] == "30.1–95.4"
    assert cells["Δ uniform"] == "+25.0"
    # The pair of b is drawn within b: it always differs, so every draw gives 25 points.
    assert cells["95 % of Δ"] == "+25.0 to +25.0"
    assert cells["p"] == "1.000"  # one pair differs: a fair coin always lands on some side


def test_every_column_s_rule_has_a_dash_where_no_cell_is_wide():
    pairs = benchmark_pairs({"a": 3, "b": 1})
    alone = reward_row("x", np.array([[1.0, 0.0]] * 4), pairs=pairs)
    table = make_table(compared([alone], pairs=pairs), pairs=pairs, model="a/model", paper="none")
    lines = render(table, form="markdown").splitlines()
    [rule] = [line for line in lines if line.startswith("| :")]
    for cell in rule.strip("|").split("|"):
        assert re.fullmatch(r" :?-+:? ", cell)


def test_the_reference_has_no_difference_to_itself():
    cells = cells_of(render(hand_made(), form="markdown"), "uniform")
    assert {cells["Δ uniform"], cells["95 % of Δ"], cells["p"]} == {"–"}


def test_a_partial_benchmark_says_so_in_title_and_notes():
    text = render(hand_made(is_partial=True), form="markdown")
    assert text.startswith("**Made up: 4 pairs, PARTIAL, a/model**")
    assert "no figure here compares with a published one" in text
    assert json.loads(render(hand_made(is_partial=True), form="json"))["benchmark"]["is_partial"]
    assert "PARTIAL" not in render(hand_made(), form="markdown")


def test_a_choice_among_several_is_said_in_the_title():
    pairs = benchmark_pairs({"a": 4}, rejected_per_row=2)
    table = make_table([reward_row("m", np.eye(4, 2), pairs=pairs)], pairs=pairs)
    assert render(table, form="markdown").startswith("**Made up: 4 pairs in 2 choices**")


def test_no_figure_of_the_paper_stands_beside_another_benchmark():
    text = render(hand_made(), form="markdown")
    assert "| paper" not in text
    assert "the paper reports rewardbench-safety alone" in text


@pytest.mark.parametrize("name", ["a|b", "two\nlines", "back\\slash", "100 % & _more_ #1 {x} ~^$"])
@pytest.mark.parametrize("form", FORMATS)
def test_hostile_names_break_no_form(name, form):
    text = render(hand_made(name=name), form=form)
    usual = render(hand_made(), form=form)
    assert text.count("\n") == usual.count("\n")
    if form == "json":
        assert name in [row["name"] for row in json.loads(text)["rows"]]
    if form == "latex":
        body = text.split("\\midrule")[1]
        bare = re.sub(r"\\(textbackslash|textasciitilde|textasciicircum)\{\}|\\[&%$#_{}]", "", body)
        assert bare.count("&") == 2 * 7
        assert not re.search(r"[%#_~^]", bare)


def test_latex_is_a_tabular_of_as_many_columns_as_its_lines_have():
    text = render(hand_made(), form="latex")
    [columns] = re.findall(r"\\begin\{tabular\}\{(l?r*)\}", text)
    lines = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert {line.count("&") for line in lines} == {len(columns) - 1}
    assert r"$\Delta$ uniform" in text
    assert text.count("\\toprule") == text.count("\\bottomrule") == 1


def test_json_holds_every_figure_as_a_share():
    content = json.loads(render(hand_made(), form="json"))
    first, second = content["rows"]
    assert first["ours"]["headline"]["score"] == 0.5
    assert second["ours"]["comparison"]["difference"] == 0.25
    assert [one["accuracy"] for one in second["ours"]["subsets"]] == pytest.approx([2 / 3, 1])
    assert content["reference"] == "uniform"
    assert content["model"] == "a/model"


@pytest.fixture(scope="module")
def safety_rows() -> tuple[TableRow, ...]:
    pairs = safety_pairs()
    scores = scores_of(pairs, random_margins(740))
    return compared_rows(scores, pairs, num_random=20)


def test_ours_stands_beside_the_paper_s_figure(safety_rows):
    pairs = safety_pairs()
    text = render(make_table(safety_rows, pairs=pairs), form="markdown")
    uniform = next(row for row in safety_rows if row.name == "uniform")
    cells = cells_of(text, "uniform")
    assert cells["paper"] == "85.5"
    gap = 100 * uniform.score.headline.score - 85.5
    assert cells["ours − paper"] == f"{gap:+.1f}".replace("-", "−")
    assert cells_of(text, "encore (τ 2)")["paper"] == "88.5"
    assert cells_of(text, "encore (τ 1)")["paper"] == "–"
    # What is a mean of draws shows no McNemar: its pairs are neither right nor wrong.
    assert cells_of(text, "random (20 draws)")["p"] == "–"
    assert cells_of(text, "random (20 draws)")["draws"].endswith("of 20")


def test_the_recomputed_safety_stands_where_the_paper_s_printed_one_does_not_follow(safety_rows):
    pairs = safety_pairs()
    text = render(make_table(safety_rows, pairs=pairs, paper="fsfairx"), form="markdown")
    # Printed 77.7 and 83.1; from the paper's own sub-scores 76.75 and 87.29.
    assert cells_of(text, "uniform")["paper"] in ("77.7 [76.7]", "77.7 [76.8]")
    assert cells_of(text, "encore (τ 2)")["paper"] == "83.1 [87.3]"
    assert "own sub-scores give 87.29" in text
    assert "[x] behind a figure of the paper" in text


def test_rows_that_the_paper_alone_has_stand_at_the_end(safety_rows):
    pairs = safety_pairs()
    table = make_table(safety_rows, pairs=pairs)
    kinds = [line.kind for line in table.lines]
    assert kinds == sorted(kinds, key="paper-only".__eq__)
    only = [line for line in table.lines if line.kind == "paper-only"]
    assert "LLM-as-a-judge, GPT4o" in [line.name for line in only]
    assert all(line.row is None and line.paper is not None for line in only)
    cells = cells_of(render(table, form="markdown"), "LLM-as-a-judge, Llama3.1-70B")
    assert cells["paper"] == "73.0 [75.1]"
    assert cells["Safety"] == "–"
    without = make_table(safety_rows, pairs=pairs, paper="none")
    assert not without.has_paper


def test_latex_typesets_that_a_table_is_partial_or_synthetic():
    """Comments stay in the source: the figures need their mark on paper."""
    partial = hand_made(is_partial=True)
    marked = dataclasses.replace(partial, synthetic=("model m: backbone (made up)",))
    typeset = [line for line in render(marked, form="latex").splitlines() if line[:1] != "%"]
    assert r"\multicolumn{8}{l}{PARTIAL: 4 pairs, not the 4 of made-up} \\" in typeset
    assert r"\multicolumn{8}{l}{SYNTHETIC: an example, not evidence} \\" in typeset
    assert "multicolumn" not in render(hand_made(), form="latex")


def test_signs_that_latex_s_default_fonts_lack_are_typeset_as_what_they_are():
    body = render(hand_made(name="a<b>c|d"), form="latex").split("\\midrule")[1]
    assert r"a$<$b$>$c\textbar{}d" in body


@pytest.mark.parametrize("sign", ["\x85", "\x7f", "\u202e", "\u2028"])
def test_json_is_json_for_a_terminal_too(sign):
    text = render(hand_made(name=f"a{sign}b"), form="json")
    assert visible(text) == text
    assert f"a{sign}b" in [row["name"] for row in json.loads(text)["rows"]]


def test_whose_ties_count_what_is_said():
    pairs = benchmark_pairs({"a": 2}, ties="half")
    row = reward_row("m", np.array([[1.0, 1.0], [1.0, 0.0]]), pairs=pairs)
    text = render(make_table([row], pairs=pairs), form="markdown")
    assert "a reward model's tie counts one half" in text
    assert "a judge's tie" not in text
