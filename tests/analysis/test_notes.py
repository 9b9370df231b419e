"""Ratings with gaps are analyzed, and a note states the effect of each gap."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest

from encore.analysis.analyze import Analysis, analyze
from tests.reference import Row
from tests.worlds.ratings import ratings_table


def rows_of(num_pairs: int = 40, *, rules: tuple[str, ...] = ("a", "b", "c", "d")) -> list[Row]:
    rng = np.random.default_rng(0)
    return [
        (f"p{i}", "s", response, rule, float(rng.integers(0, k + 3)) / 10)
        for i in range(num_pairs)
        for response in ("chosen", "rejected")
        for k, rule in enumerate(rules)
    ]


def only_note(analysis: Analysis, part: str) -> str:
    (note,) = [note for note in analysis.notes if part in note]
    return note


def test_nan_of_a_data_frame_is_a_missing_rating():
    frame = ratings_table(rows_of()).to_pandas()
    frame.loc[0, "rating"] = math.nan
    analysis = analyze(frame)
    assert [rule.num_unparsed for rule in analysis.rules] == [1, 0, 0, 0]
    assert "1 of 4 rules rated only some pairs fully" in only_note(analysis, "39 of 40 pairs")


def test_constant_and_silent_rules_are_named_and_have_no_undefined_figures():
    """The notes use the singular where one rule is constant or has no rating."""
    rows = [(*row[:4], 0.5) if row[3] == "b" else row for row in rows_of(4)]
    rows += [(f"p{i}", "s", "chosen", "silent", None) for i in range(4)]
    analysis = analyze(ratings_table(rows))
    assert "rule b is constant: entropy 0, and it ranks nothing" in analysis.notes
    assert "rule silent without any rating" in only_note(analysis, "no entropy")
    constant = analysis.rules[1]
    assert (constant.entropy_nats, constant.differential_entropy_nats) == (0.0, None)
    assert (constant.top_level, constant.top_level_share) == (0.5, 1.0)
    assert (constant.accuracy.half, constant.accuracy.untied) == (0.5, None)
    used = {(c.entropy, c.accuracy): c.num_rules for c in analysis.correlation}
    assert used["discrete", "half"] == 4
    assert used["discrete", "untied"] == used["differential", "half"] == 3


def test_a_note_on_all_sources_appears_once_and_a_note_on_one_names_it():
    """Rule a is constant in both sources, rule b in source t alone."""
    rows = [(*row[:4], 0.5) if row[3] == "a" else row for row in rows_of()]
    rows_of_t = [(row[0], "t", *row[2:4], 0.5 if row[3] == "b" else row[4]) for row in rows]
    notes = analyze(ratings_table([*rows, *rows_of_t]), by_source=True).notes
    assert [note for note in notes if "constant" in note] == [
        "rule a is constant: entropy 0, and it ranks nothing"
    ]
    rows_of_t = [(row[0], "t", *row[2:4], 0.5) for row in rows]
    notes_of_t = analyze(ratings_table([*rows_of(), *rows_of_t]), by_source=True).notes
    assert [note for note in notes_of_t if "constant" in note] == [
        "source t: rules a, b, c and 1 more are constant: entropy 0, and they rank nothing"
    ]


def test_ratings_of_single_responses_have_entropy_but_no_accuracy():
    # Ratings of single responses: each stands alone, called chosen.
    rows = [(f"{row[0]}-{row[2]}", row[1], "chosen", *row[3:]) for row in rows_of()]
    analysis = analyze(ratings_table(rows))
    labelled = analyze(ratings_table(rows_of()))
    for rule, expected in zip(analysis.rules, labelled.rules, strict=True):
        assert rule.entropy_nats == expected.entropy_nats
        assert (rule.accuracy.half, rule.num_pairs) == (None, 0)
    assert "entropy only" in only_note(analysis, "no rule rated both responses")
    assert analysis.intervals[0].entropy.low is not None
    assert analysis.intervals[0].half.low is None


@pytest.mark.parametrize("num_ratings", [100_000, pytest.param(10_000_000, marks=pytest.mark.full)])
def test_ratings_that_all_differ_fit_in_memory_and_are_noted(num_ratings, monkeypatch):
    monkeypatch.setenv("ENCORE_DUCKDB_MEMORY_LIMIT", "1500MB")
    num_pairs = num_ratings // 2
    table = pa.table(
        {
            "pair_id": np.repeat(np.char.mod("p%08d", np.arange(num_pairs)), 2),
            "source": pa.repeat("s", num_ratings),
            "response": pa.array(["chosen", "rejected"]).take(
                pa.array(np.arange(num_ratings, dtype=np.int8) & 1)
            ),
            "rule_id": pa.repeat("r", num_ratings),
            "rating": np.random.default_rng(0).permutation(num_ratings) / num_ratings,
        }
    )
    analysis = analyze(table)
    (rule,), (interval,) = analysis.rules, analysis.intervals
    assert rule.num_levels == num_ratings
    assert rule.entropy_nats == pytest.approx(math.log(num_ratings), abs=1e-9)
    # Uniform on [0, 1]: the differential entropy is 0; the kernel blurs the two edges a little.
    assert rule.differential_entropy_nats == pytest.approx(0.0, abs=0.1)
    assert interval.entropy_method == "bound"
    assert interval.half.low < 0.5 < interval.half.high
    assert "measures their number: rule r;" in only_note(analysis, "hardly repeat")
    assert "rule r" in only_note(analysis, "an upper bound")
