"""Rows of a benchmark's table: what each is made from, against its definition in plain numpy."""

from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from encore.benchmarks.benchmark_config import RowsConfig
from encore.benchmarks.results import PairResults, RowAbout, write_pair_results
from encore.benchmarks.rows import (
    TableRow,
    compared,
    credit_row,
    mean_row,
    reward_row,
    stored_rows,
    told_apart,
)
from encore.benchmarks.scheme_rows import is_scheme_row
from encore.benchmarks.table import make_table
from encore.errors import InputError
from encore.weighting.random import random_weights
from encore.weighting.weigh import weights
from tests.benchmarks.table_world import (
    RULES,
    benchmark_pairs,
    compared_rows,
    random_margins,
    rows_of,
    scores_of,
    training_ratings,
)

# Suffixes: P pairs, R heads, V weight vectors.

SUBSETS = {"refuse": 60, "respond": 40}
RATINGS = training_ratings()
PAIRS = benchmark_pairs(SUBSETS)
#: As head scores hold them, so that numpy sees the same numbers.
MARGIN_PR = random_margins(100).astype(np.float32).astype(np.float64)
SCORES = scores_of(PAIRS, MARGIN_PR)


@pytest.fixture(scope="module")
def rows() -> dict[str, TableRow]:
    found = compared_rows(SCORES, PAIRS, k=2, num_random=50, taus=(0.5, 2.0, 1e9))
    return {row.name: row for row in found}


def accuracy(margin_P: np.ndarray) -> float:
    """A tie is a loss."""
    return float((margin_P > 0).mean())


def test_a_tie_is_a_loss_for_a_reward_model():
    pairs = benchmark_pairs({"a": 3, "b": 1})
    # Right, tied, wrong; right. So 1/3 of a, all of b, 2/4 in all.
    reward_P2 = np.array([[2.0, 1.0], [1.0, 1.0], [0.0, 1.0], [5.0, -5.0]])
    row = reward_row("model", reward_P2, pairs=pairs)
    assert row.credit_P.tolist() == [1, 0, 0, 1]
    assert [one.accuracy for one in row.score.subsets] == pytest.approx([1 / 3, 1.0])
    assert row.score.subsets[0].num_ties == 1
    assert row.score.headline.score == 0.5
    with pytest.raises(InputError, match=r"row 'm': rewards of shape \(3, 2\) for 4 pairs"):
        reward_row("m", np.zeros((3, 2)), pairs=pairs)


def test_k_equal_best_responses_are_worth_one_in_k_where_the_benchmark_says_so():
    """RewardBench 2's rule. Two rows of three: the first is best with two others, then it loses."""
    reward_P2 = np.array([[1.0, 1.0], [1.0, 1.0], [1.0, 0.0], [1.0, 2.0], [1.0, 1.0], [1.0, 0.0]])
    half = benchmark_pairs({"a": 6}, rejected_per_row=3, ties="half")
    row = reward_row("m", reward_P2, pairs=half)
    assert row.credit_U.tolist() == pytest.approx([1 / 3, 0])
    margin_PR = reward_P2[:, :1] - reward_P2[:, 1:]
    mean = mean_row("mean", margin_PR, np.ones((2, 1)), pairs=half)
    assert mean.score.headline.score == mean.draws.mean == pytest.approx(1 / 6)
    assert mean.score.subsets[0].num_ties is None
    strict = benchmark_pairs({"a": 6}, rejected_per_row=3)
    assert reward_row("m", reward_P2, pairs=strict).credit_U.tolist() == [0, 0]


# --- schemes --------------------------------------------------------------------------------------


def test_the_reference_is_uniform_and_singles_are_their_heads(rows):
    first = next(iter(rows.values()))
    assert (first.name, first.comparison) == ("uniform", None)
    assert first.score.headline.score == accuracy(MARGIN_PR.mean(axis=1))
    for place, rule in enumerate(RULES):
        assert rows[f"single: {rule}"].score.headline.score == accuracy(MARGIN_PR[:, place])
    # Weights differ from 1/4 by some 1e-10: no margin here is that close to 0.
    assert (rows["encore (τ 1e+09)"].credit_P == first.credit_P).all()


@pytest.mark.parametrize(
    ("name", "scheme", "options"),
    [
        ("encore (τ 0.5)", "encore", {"tau": 0.5}),
        ("encore (τ 2)", "encore", {"tau": 2.0}),
        ("top-2", "top-k", {"k": 2}),
        ("inverse-sd", "inverse-sd", {}),
        ("bradley-terry weights", "bradley-terry", {}),
    ],
)
def test_a_scheme_composes_with_the_weights_of_the_training_ratings(rows, name, scheme, options):
    vector = weights(RATINGS, scheme=scheme, **options)
    row, weight_of = rows[name], dict(zip(vector.rule_ids, vector.weights, strict=True))
    weight_R = np.array([weight_of[rule] for rule in RULES])  # ratings are in order of the ids
    assert row.vector == vector
    assert row.score.headline.score == accuracy(MARGIN_PR @ weight_R)
    assert row.uses_labels == (scheme == "bradley-terry")
    np.testing.assert_allclose(row.reward_P2[:, 0], MARGIN_PR @ weight_R)


def test_rows_of_chance_are_means_over_their_seeds(rows):
    each = [accuracy(MARGIN_PR @ random_weights(RULES, seed=seed)) for seed in range(50)]
    three, fifty = rows["random (mean of 3)"], rows["random (50 draws)"]
    assert three.score.headline.score == pytest.approx(np.mean(each[:3]))
    assert (three.draws.num_draws, three.method, fifty.method) == (3, "random", None)
    assert fifty.draws.mean == fifty.score.headline.score == pytest.approx(np.mean(each))
    assert (fifty.draws.low, fifty.draws.high) == pytest.approx(np.quantile(each, [0.025, 0.975]))
    for subset in fifty.score.subsets:  # what is neither right nor wrong is no loss
        assert subset.num_wins + subset.num_losses < subset.num_pairs
    # Seeds 1,000,000 to 1,000,049: none that seed 0 draws.
    [_, _, other] = rows_of(SCORES, PAIRS, schemes=("random",), num_random=50, seed=1).rows
    seeds = range(1_000_000, 1_000_050)
    each = [accuracy(MARGIN_PR @ random_weights(RULES, seed=seed)) for seed in seeds]
    assert other.draws.mean == pytest.approx(np.mean(each))


def test_the_mean_of_single_rules_is_the_mean_of_their_rows(rows):
    row = rows["single (mean of all 4)"]
    singles = [rows[f"single: {rule}"] for rule in RULES]
    for place, subset in enumerate(row.score.subsets):
        found = np.mean([one.score.subsets[place].accuracy for one in singles])
        assert subset.accuracy == pytest.approx(found)
    np.testing.assert_allclose(row.credit_P, np.mean([one.credit_P for one in singles], axis=0))


def test_the_paper_s_rows_are_named_only_where_the_parameters_are_the_paper_s():
    def methods(**config: object) -> dict[str, str]:
        found = rows_of(SCORES, PAIRS, num_random=5, **config).rows
        return {row.name: row.method for row in found if row.method is not None}

    assert methods(k=2, taus=(0.5,)) == {
        "uniform": "uniform",
        "random (mean of 3)": "random",
        "single (mean of 3)": "single",
    }
    assert methods(taus=(2.0,))["encore (τ 2)"] == "encore"


def test_five_of_the_rules_are_the_paper_s_rule_selection():
    pairs, rules = benchmark_pairs({"a": 30}), tuple(f"rule-{place}" for place in range(7))
    scores = scores_of(pairs, random_margins(30, num_heads=7), head_ids=rules)
    table = training_ratings(rules=rules)
    found = rows_of(scores, pairs, ratings=table, schemes=("top-k", "random-k"), num_random=5)
    assert [(row.name, row.method) for row in found.rows] == [
        ("uniform", "uniform"),
        ("top-5", "top-k"),
        ("random-5 (mean of 3)", "random-k"),
        ("random-5 (5 draws)", None),
    ]


def test_which_rows_the_pairs_tell_apart_is_said():
    """A15. Right on 90, 90 and 40 of 100 pairs: the first two differ on two pairs, one each way."""
    right = {"a": range(90), "b": [*range(89), 95], "c": range(40)}
    wins = {name: np.isin(np.arange(100), list(places)) for name, places in right.items()}
    found = [
        reward_row(name, np.stack([one, np.full(100, 0.5)], axis=1), pairs=PAIRS)
        for name, one in wins.items()
    ]
    assert told_apart(found[:2], pairs=PAIRS) == "these 100 pairs tell apart no two of a and b"
    assert told_apart(found, pairs=PAIRS) == (
        "these 100 pairs tell apart 2 of 3 pairs of a, b and c: a from c; b from c"
    )


def test_differences_are_those_of_the_scores(rows):
    reference = rows["uniform"].score.headline.score
    for row in list(rows.values())[1:]:
        gap = row.score.headline.score - reference
        assert row.comparison.difference == pytest.approx(gap)
        assert row.comparison.ci_low - 1e-12 <= gap <= row.comparison.ci_high + 1e-12


@settings(max_examples=8)  # each opens the ratings twice
@given(seed=st.integers(0, 2**16))
def test_the_order_of_heads_changes_no_row(seed):
    pairs = benchmark_pairs({"a": 20})
    margin_PR = random_margins(20, seed=seed)
    order = np.random.default_rng(seed).permutation(len(RULES))
    turned = scores_of(pairs, margin_PR[:, order], head_ids=[RULES[place] for place in order])
    tables = [
        rows_of(scores, pairs, num_random=4, taus=(1.0,)).rows
        for scores in (scores_of(pairs, margin_PR), turned)
    ]
    credit_of = [{row.name: row.credit_P.tolist() for row in table} for table in tables]
    assert credit_of[0] == credit_of[1]


def test_a_choice_among_several_is_one_unit_also_in_means():
    """Two rows of two pairs: a draw is right only where both pairs of a row are."""
    pairs = benchmark_pairs({"a": 4}, rejected_per_row=2)
    margin_PR = np.array([[1.0, -1.0], [1.0, 1.0], [1.0, -1.0], [-1.0, 1.0]])
    row = mean_row("mean", margin_PR, np.eye(2), pairs=pairs)
    # Head 0: row 0 right, row 1 wrong. Head 1: row 0 wrong, row 1 wrong. Mean: (1/2 + 0) / 2.
    assert row.credit_U.tolist() == [0.5, 0.0]
    assert row.score.headline.score == 0.25
    assert row.score.headline.num_pairs == 2
    assert row.credit_P.tolist() == [0.5, 1.0, 0.5, 0.5]
    assert (row.draws.mean, row.draws.num_draws) == (0.25, 2)
    # From its pairs' means, 1/2 and 1/2, row 1 would be worth 1 / (1 + 1 + 1), not 0.
    assert row.pair_results is None


def test_a_mean_in_blocks_is_the_mean_at_once(monkeypatch):
    weight_VR = np.array([random_weights(RULES, seed=seed) for seed in range(7)])
    whole = mean_row("mean", MARGIN_PR, weight_VR, pairs=PAIRS)
    monkeypatch.setattr("encore.benchmarks.rows._BLOCK_CELLS", 2 * PAIRS.num_pairs)
    blocks = mean_row("mean", MARGIN_PR, weight_VR, pairs=PAIRS)
    np.testing.assert_allclose(blocks.credit_P, whole.credit_P)
    assert dataclasses.astuple(blocks.draws) == pytest.approx(dataclasses.astuple(whole.draws))


def test_where_every_subset_counts_alike_so_do_the_draws():
    pairs = benchmark_pairs({"a": 3, "b": 1}, weighting="subsets")
    margin_PR = np.array([[1.0], [1.0], [1.0], [-1.0]])
    row = mean_row("mean", margin_PR, np.ones((1, 1)), pairs=pairs)
    assert row.draws.mean == row.score.headline.score == 0.5  # (1 + 0) / 2, not 3/4


def test_scores_and_rules_that_do_not_fit_are_refused():
    other = scores_of(PAIRS, MARGIN_PR, head_ids=("be-kind", "be-brief", "be-true", "be-loud"))
    with pytest.raises(InputError, match="be-calm among the weights but no head, be-loud"):
        rows_of(other, PAIRS)
    turned = SCORES.take(np.arange(100)[::-1].copy())
    with pytest.raises(InputError, match="not those of the 100 pairs of made-up in their order"):
        rows_of(turned, PAIRS)


@pytest.mark.parametrize("config", [{"taus": ()}, {"taus": (0.0,)}, {"num_random": 0}])
def test_impossible_options_are_refused(config):
    with pytest.raises(ValueError, match="validation error"):
        RowsConfig(**config)
    with pytest.raises(InputError, match="weighting scheme 'best': there is none of this name"):
        RowsConfig(schemes=("best",)).check_schemes()


def test_a_scheme_that_cannot_weigh_is_left_out_with_its_reason():
    # No pair has both responses rated: there is no label to learn from.
    table = RATINGS.filter(np.array(RATINGS["response"].to_pylist()) == "chosen")
    found = rows_of(SCORES, PAIRS, ratings=table, schemes=("inverse-sd", "bradley-terry"))
    assert [row.name for row in found.rows] == ["uniform", "inverse-sd"]
    assert any(note.startswith("left out: scheme bradley-terry") for note in found.notes)
    with pytest.raises(InputError, match="no label to learn from"):
        rows_of(SCORES, PAIRS, ratings=table, schemes=("bradley-terry",))


def test_labels_that_no_rule_agrees_with_are_named():
    responses = np.array(RATINGS["response"].to_pylist())
    turned = RATINGS.set_column(
        RATINGS.schema.get_field_index("response"),
        "response",
        pa.array(np.where(responses == "chosen", "rejected", "chosen")),
    )
    found = rows_of(SCORES, PAIRS, ratings=turned, schemes=("bradley-terry",))
    assert [note for note in found.notes if note.startswith("bradley-terry weights: no weighting")]


def test_every_row_of_a_scheme_is_known_by_its_name(rows):
    assert all(is_scheme_row(name) for name in rows)
    assert not any(map(is_scheme_row, ("initial model", "judge-gpt4o", "bradley-terry-model")))


# --- rows of files --------------------------------------------------------------------------------


def test_stored_results_become_a_row_again(tmp_path, rows):
    judge = credit_row("judge-gpt4o", rows["uniform"].credit_P / 2, pairs=PAIRS)
    path = tmp_path / "results.parquet"
    write_pair_results(path, [judge.pair_results], pairs=PAIRS)
    [row] = stored_rows(path, pairs=PAIRS)
    assert (row.name, row.kind, row.method) == ("judge-gpt4o", "judge", "judge-gpt4o")
    assert row.credit_P.tolist() == judge.credit_P.tolist()
    assert row.score == judge.score
    [renamed] = stored_rows(path, pairs=PAIRS, name="mine")
    assert (renamed.name, renamed.method) == ("mine", "mine")
    with pytest.raises(InputError, match="only results on the same pairs"):
        stored_rows(path, pairs=dataclasses.replace(PAIRS, digest="1" * 64))
    other = benchmark_pairs(SUBSETS, weighting="subsets")
    with pytest.raises(InputError, match="count all examples of made-up alike, not all subsets"):
        stored_rows(path, pairs=other)


def test_stored_results_are_found_by_their_ids_not_by_their_place(tmp_path, rows):
    turned = dataclasses.replace(
        PAIRS,
        pairs=PAIRS.pairs[::-1],
        subset_P=PAIRS.subset_P[::-1],
        row_id_P=PAIRS.row_id_P[::-1],
    )
    path = tmp_path / "results.parquet"
    write_pair_results(path, [rows["uniform"].pair_results], pairs=PAIRS)
    [row] = stored_rows(path, pairs=turned)
    assert row.credit_P.tolist() == rows["uniform"].credit_P[::-1].tolist()
    np.testing.assert_array_equal(row.reward_P2, rows["uniform"].reward_P2[::-1])


def test_rows_of_another_table_keep_what_they_are(tmp_path, rows):
    """McNemar's p of a mean's credits is about nothing: its own table has none, nor has another."""
    path = tmp_path / "results.parquet"
    names = ("uniform", "random (50 draws)", "bradley-terry weights")
    write_pair_results(path, [rows[name].pair_results for name in names], pairs=PAIRS)
    found = compared(stored_rows(path, pairs=PAIRS, name="other"), pairs=PAIRS)
    assert [row.name for row in found] == [f"other: {name}" for name in names]
    assert [row.method for row in found] == [None, None, None]  # the paper's are this backbone's
    _, drawn, learnt = found
    assert drawn.draws == rows["random (50 draws)"].draws
    assert (drawn.kind, drawn.p_value) == ("scheme", None)
    assert drawn.comparison is not None
    assert dict(learnt.params) == dict(rows["bradley-terry weights"].params)
    table = make_table(found, pairs=PAIRS)
    assert any("other: bradley-terry weights: learnt from people" in one for one in table.notes)


def test_a_mean_in_a_file_that_does_not_say_so_has_no_p(tmp_path, rows):
    path = tmp_path / "results.parquet"
    names = ("uniform", "random (50 draws)")
    old = [dataclasses.replace(rows[name].pair_results, about=None) for name in names]
    write_pair_results(path, old, pairs=PAIRS)
    uniform, drawn = compared(stored_rows(path, pairs=PAIRS), pairs=PAIRS)
    assert (uniform.is_mean, drawn.is_mean, drawn.p_value) == (False, True, None)


def test_what_a_judge_s_file_says_of_it_stands_in_the_table(tmp_path, rows):
    about = RowAbout(
        kind="judge",
        synthetic=("judge", "benchmark made-up"),
        notes=("40 of 200 replies say none",),
    )
    judge = PairResults(
        name="demo", ties="half", credit_P=rows["uniform"].credit_P / 2, about=about
    )
    path = write_pair_results(tmp_path / "results.parquet", [judge], pairs=PAIRS)
    found = stored_rows(path, pairs=PAIRS, name="judge-gpt4o")
    table = make_table([rows["uniform"], *found], pairs=PAIRS)
    assert table.synthetic == ("judge-gpt4o: judge",)  # the benchmark's own mark is the table's
    assert "judge-gpt4o: 40 of 200 replies say none" in table.notes
    # And once more, from the table's own file.
    again = stored_rows(write_pair_results(path, [found[0].pair_results], pairs=PAIRS), pairs=PAIRS)
    assert again[0].synthetic == ("judge-gpt4o: judge",)
