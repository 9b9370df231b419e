"""Tables of the convergence curve and of a retest: every rule, every figure, every caveat."""

from __future__ import annotations

import dataclasses
import io

import numpy as np
from rich.console import Console, RenderableType

from encore.cli.evidence_tables import convergence_table, retest_table
from encore.evidence.convergence import convergence_of_pairs
from encore.evidence.retest import retest
from tests.evidence.data import drawn_pairs, skewed_masses, table_of


def shown(renderable: RenderableType, *, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width, markup=False, emoji=False)
    console.print(renderable)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def in_one_line(text: str) -> str:
    return " ".join(text.split())


def some_pairs(num_pairs: int):
    return drawn_pairs(skewed_masses(3), num_pairs=num_pairs, rng=np.random.default_rng(0))


def test_the_curve_has_a_row_for_each_size_and_its_sentences():
    curve = convergence_of_pairs(some_pairs(1000), num_draws=40)
    text = shown(convergence_table(curve))
    for point in curve.points:
        line = next(
            line for line in text.splitlines() if line.split()[:1] == [f"{point.num_pairs:,}"]
        )
        assert f"{point.error_95:.2%}" in line
        assert f"{point.error_95_population:.2%}" in line
    for found in curve.recommendations:
        assert found.sentence[1:] in in_one_line(text)
    assert "40 samples" in in_one_line(text)


def test_too_few_pairs_are_a_sentence_without_a_table():
    text = in_one_line(shown(convergence_table(convergence_of_pairs(some_pairs(20)))))
    assert text.count("20 pairs are too few") == 1
    assert "ratings a rule" not in text


def test_a_missing_error_is_a_dash():
    curve = convergence_of_pairs(some_pairs(200), num_draws=40)
    gap = dataclasses.replace(curve.points[0], error_95=None, error_95_population=None)
    text = shown(convergence_table(dataclasses.replace(curve, points=(gap,), notes=("a note",))))
    assert text.count("–") == 2
    assert "Note: a note." in text


def test_a_retest_shows_agreement_weights_and_what_is_not_compared():
    first, again = some_pairs(60), some_pairs(60)
    again.chosen_PR[:, 0] = np.roll(again.chosen_PR[:, 0], 1)
    found = retest(table_of(first), table_of(again.take(np.arange(50))), num_draws=100)
    text = shown(retest_table(found), width=100)
    assert "Two ratings of 100 responses" in text
    agreements = [line for line in text.splitlines() if line.split()[:1] == ["rule-0"]]
    assert len(agreements) == 2
    assert f"{found.rows[0].agreement:.1%}" in agreements[0]
    assert f"{found.rows[0].weight_repeated:.4f}" in agreements[1]
    assert "20 responses rated the first time only" in in_one_line(text)
    assert "100 responses rated twice" in in_one_line(text)


def test_control_characters_of_a_rule_s_name_do_not_reach_the_terminal():
    pairs = dataclasses.replace(some_pairs(60), rule_ids=("a\x1b[2J", "b", "c"))
    found = retest(table_of(pairs), table_of(pairs), num_draws=100)
    assert "\x1b" not in shown(retest_table(found))
