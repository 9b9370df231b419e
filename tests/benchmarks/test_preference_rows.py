"""A table of a model with head 0 compares its compositions with head 0 alone.

Suffixes: P pairs, 2 responses, R heads.
"""

from __future__ import annotations

import numpy as np
import pytest

from encore.benchmarks.preference_rows import preference_rows
from encore.benchmarks.table_rows import TableRow
from encore.weighting.head_mix import mix_heads
from encore.weighting.weigh import open_evidence, weights
from tests.worlds.scorings import held_out_scores
from tests.worlds.tables import RULES, benchmark_pairs, scores_of, training_ratings

HEADS = ("preference", *RULES)
PAIRS = benchmark_pairs({"refuse": 300, "respond": 200})
RATINGS = training_ratings()


def margins(num_pairs: int, *, rule_margin: float, seed: int) -> np.ndarray:
    """Return margins of head 0, which ranks 69 of 100 pairs right, and of the rules."""
    means = (0.5, *[rule_margin] * len(RULES))
    return np.random.default_rng(seed).normal(means, 1.0, (num_pairs, len(HEADS)))


def table_rows(
    *, rule_margin: float, **options: object
) -> tuple[dict[str, TableRow], tuple[str, ...]]:
    margin_PR = margins(500, rule_margin=rule_margin, seed=1)
    scores = scores_of(PAIRS, margin_PR, head_ids=HEADS)
    held_out_PR = margins(400, rule_margin=rule_margin, seed=2)
    held_out = held_out_scores(np.stack([held_out_PR, np.zeros_like(held_out_PR)], axis=1))
    with open_evidence(RATINGS) as evidence:
        rows, notes = preference_rows(scores, held_out, pairs=PAIRS, evidence=evidence, **options)
    mixes = []
    accuracy = {row.name: row.credit_P.mean() for row in rows}
    assert accuracy["head 0 alone"] == (margin_PR[:, 0] > 0).mean()
    for scheme in ("uniform", "encore"):
        vector = weights(RATINGS, scheme=scheme)
        rule_weights = dict(zip(vector.rule_ids, vector.weights, strict=True))
        mix = mix_heads(rule_weights, held_out, head_ids=HEADS, beta=options.get("beta"))
        right_P = margin_PR @ np.array([*mix.weights.values()]) > 0
        assert accuracy[f"head 0 + {scheme}"] == right_P.mean()
        mixes.append(mix_heads(rule_weights, held_out, head_ids=HEADS, beta="auto"))
    best_mix = min(mixes, key=lambda mix: mix.held_out_loss)
    assert rows[-1].weights == pytest.approx(best_mix.weights)
    return {row.name: row for row in rows}, notes


def test_helpful_rules_lift_the_rows_and_only_chosen_betas_are_marked():
    rows, notes = table_rows(rule_margin=0.3)
    names = ["head 0 alone", "head 0 + uniform", "head 0 + encore", "head 0 + best"]
    assert [*rows] == names
    assert [row.metadata.uses_labels for row in rows.values()] == [False, False, False, True]
    assert [rows[name].metadata.params["beta"] for name in names[1:3]] == [1, 1]
    best = rows["head 0 + best"]
    assert best.metadata.params["beta"] > 0
    assert best.credit_P.mean() > rows["head 0 alone"].credit_P.mean() + 0.02
    assert "held-out pairs of 400 prompts" in best.metadata.notes[0]
    assert notes[2].startswith("head 0 + best: +")
    assert "worse" not in "".join(notes)


def test_a_row_below_head_0_says_so_and_the_best_row_falls_back_to_head_0():
    """Rules that rank 69 of 100 pairs wrong: with beta 3 the rules decide, and best has none."""
    rows, notes = table_rows(rule_margin=-0.5, beta=3.0)
    assert rows["head 0 + uniform"].metadata.params["beta"] == 3
    assert "it is worse than the head that it starts from" in notes[0]
    best = rows["head 0 + best"]
    np.testing.assert_array_equal(best.credit_P, rows["head 0 alone"].credit_P)
    assert "the rules do not clearly help, so head 0 stands alone" in best.metadata.notes[0]


def test_without_held_out_pairs_head_0_alone_is_left_with_the_reason():
    with open_evidence(RATINGS) as evidence:
        scores = scores_of(PAIRS, margins(500, rule_margin=0, seed=1), head_ids=HEADS)
        rows, notes = preference_rows(scores, None, pairs=PAIRS, evidence=evidence)
    assert [row.name for row in rows] == ["head 0 alone"]
    assert "head 0 + rules left out: the model has no scores of held-out pairs" in notes[0]
