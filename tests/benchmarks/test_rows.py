"""Rows of a benchmark's table: what each is made from, against its definition in plain numpy."""

from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from encore.benchmarks.draws import mean_row
from encore.benchmarks.results import PairResults, write_pair_results
from encore.benchmarks.row_about import RowAbout
from encore.benchmarks.rows import TableRow, compared, credit_row, reward_row, stored_rows
from encore.benchmarks.scheme_table import ROWS, is_scheme_row
from encore.benchmarks.schemes import SchemeRowOptions, scheme_rows, weigh_rows
from encore.benchmarks.table import make_table
from encore.errors import EncoreError, InputError
from encore.weighting.random import random_weights
from encore.weighting.weigh import weights
from tests.benchmarks.table_world import (
    RULES,
    benchmark_pairs,
    random_margins,
    scores_of,
    training_ratings,
)

# Suffixes: P pairs, R heads, V weight vectors.

SUBSETS = {"refuse": 60, "respond": 40}
RATINGS = training_ratings()


@pytest.fixture(scope="module")
def pairs():
    return benchmark_pairs(SUBSETS)


@pytest.fixture(scope="module")
def margin_PR():
    # As head scores hold them, so that numpy sees the same numbers.
    return random_margins(100).astype(np.float32).astype(np.float64)


@pytest.fixture(scope="module")
def rows(pairs, margin_PR) -> dict[str, TableRow]:
    options = SchemeRowOptions(k=2, num_random=50, taus=(0.5, 2.0, 1e9))
    found = scheme_rows(scores_of(pairs, margin_PR), pairs, ratings=RATINGS, options=options)
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


def test_rewards_of_other_pairs_are_refused(pairs):
    with pytest.raises(InputError, match=r"row 'm': rewards of shape \(3, 2\) for 100 pairs"):
        reward_row("m", np.zeros((3, 2)), pairs=pairs)


def test_the_reference_is_uniform_and_the_first(rows, margin_PR):
    first = next(iter(rows.values()))
    assert first.name == "uniform"
    assert first.comparison is None
    assert first.score.headline.score == accuracy(margin_PR.mean(axis=1))


def test_a_single_rule_is_its_head_alone(rows, margin_PR):
    for place, rule in enumerate(RULES):
        assert rows[f"single: {rule}"].score.headline.score == accuracy(margin_PR[:, place])


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
def test_a_scheme_composes_with_the_weights_of_the_training_ratings(
    rows, margin_PR, name, scheme, options
):
    vector = weights(RATINGS, scheme=scheme, **options)
    row, weight_of = rows[name], dict(zip(vector.rule_ids, vector.weights, strict=True))
    weight_R = np.array([weight_of[rule] for rule in RULES])  # ratings are in order of the ids
    assert row.vector == vector
    assert row.score.headline.score == accuracy(margin_PR @ weight_R)
    assert row.uses_labels == (scheme == "bradley-terry")
    np.testing.assert_allclose(row.reward_P2[:, 0], margin_PR @ weight_R)


def test_a_temperature_without_end_is_uniform(rows):
    # Weights differ from 1/4 by some 1e-10: no margin here is that close to 0.
    assert (rows["encore (τ 1e+09)"].credit_P == rows["uniform"].credit_P).all()
    assert rows["encore (τ 1e+09)"].comparison.difference == 0


def test_the_row_of_random_weights_is_the_mean_of_three_seeds(rows, margin_PR):
    each = [accuracy(margin_PR @ random_weights(RULES, seed=seed)) for seed in (0, 1, 2)]
    row = rows["random (mean of 3)"]
    assert row.score.headline.score == pytest.approx(np.mean(each))
    assert row.draws.num_draws == 3
    assert row.method == "random"


def test_the_distribution_of_random_weights_is_that_of_its_draws(rows, margin_PR):
    each = [accuracy(margin_PR @ random_weights(RULES, seed=seed)) for seed in range(50)]
    row = rows["random (50 draws)"]
    assert row.draws.mean == pytest.approx(np.mean(each))
    assert (row.draws.low, row.draws.high) == pytest.approx(
        tuple(np.quantile(each, [0.025, 0.975]))
    )
    assert row.score.headline.score == pytest.approx(np.mean(each))


def test_the_mean_of_single_rules_is_the_mean_of_their_rows(rows):
    row = rows["single (mean of all 4)"]
    singles = [rows[f"single: {rule}"] for rule in RULES]
    assert row.score.headline.score == pytest.approx(
        np.mean([one.score.headline.score for one in singles])
    )
    for place, subset in enumerate(row.score.subsets):
        assert subset.accuracy == pytest.approx(
            np.mean([one.score.subsets[place].accuracy for one in singles])
        )
    np.testing.assert_allclose(row.credit_P, np.mean([one.credit_P for one in singles], axis=0))


def test_the_paper_s_rows_are_named_only_where_the_parameters_are_the_paper_s(pairs, margin_PR):
    scores = scores_of(pairs, margin_PR)

    def methods(**options: object) -> dict[str, str]:
        found = scheme_rows(
            scores, pairs, ratings=RATINGS, options=SchemeRowOptions(num_random=5, **options)
        )
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
    found = scheme_rows(
        scores,
        pairs,
        ratings=training_ratings(rules=rules),
        options=SchemeRowOptions(schemes=("top-k", "random-k"), num_random=5),
    )
    assert [(row.name, row.method) for row in found] == [
        ("uniform", "uniform"),
        ("top-5", "top-k"),
        ("random-5 (mean of 3)", "random-k"),
        ("random-5 (5 draws)", None),
    ]


def test_differences_are_those_of_the_scores(rows):
    reference = rows["uniform"].score.headline.score
    for row in list(rows.values())[1:]:
        gap = row.score.headline.score - reference
        assert row.comparison.difference == pytest.approx(gap)
        assert row.comparison.ci_low <= gap + 1e-12
        assert row.comparison.ci_high >= gap - 1e-12


@settings(max_examples=15)  # each opens the ratings twice
@given(seed=st.integers(0, 2**16))
def test_the_order_of_heads_changes_no_row(seed):
    pairs = benchmark_pairs({"a": 20})
    margin_PR = random_margins(20, seed=seed)
    order = np.random.default_rng(seed).permutation(len(RULES))
    options = SchemeRowOptions(num_random=4, taus=(1.0,))
    tables = [
        weigh_rows(scores, pairs, ratings=RATINGS, options=options).rows
        for scores in (
            scores_of(pairs, margin_PR),
            scores_of(pairs, margin_PR[:, order], head_ids=[RULES[place] for place in order]),
        )
    ]
    credit_of = [{row.name: row.credit_P.tolist() for row in table} for table in tables]
    assert credit_of[0] == credit_of[1]


def test_only_the_schemes_asked_for_stand_beside_uniform(pairs, margin_PR):
    options = SchemeRowOptions(schemes=("inverse-sd",))
    found = scheme_rows(scores_of(pairs, margin_PR), pairs, ratings=RATINGS, options=options)
    assert [row.name for row in found] == ["uniform", "inverse-sd"]


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


def test_a_mean_in_blocks_is_the_mean_at_once(pairs, margin_PR, monkeypatch):
    weight_VR = np.array([random_weights(RULES, seed=seed) for seed in range(7)])
    whole = mean_row("mean", margin_PR, weight_VR, pairs=pairs)
    monkeypatch.setattr("encore.benchmarks.draws._BLOCK_CELLS", 2 * pairs.num_pairs)
    blocks = mean_row("mean", margin_PR, weight_VR, pairs=pairs)
    np.testing.assert_allclose(blocks.credit_P, whole.credit_P)
    assert dataclasses.astuple(blocks.draws) == pytest.approx(dataclasses.astuple(whole.draws))


def test_where_every_subset_counts_alike_so_do_the_draws():
    pairs = benchmark_pairs({"a": 3, "b": 1}, weighting="subsets")
    margin_PR = np.array([[1.0], [1.0], [1.0], [-1.0]])
    row = mean_row("mean", margin_PR, np.ones((1, 1)), pairs=pairs)
    assert row.draws.mean == row.score.headline.score == 0.5  # (1 + 0) / 2, not 3/4


def test_rules_that_are_not_the_heads_are_refused(pairs, margin_PR):
    scores = scores_of(pairs, margin_PR, head_ids=("be-kind", "be-brief", "be-true", "be-loud"))
    with pytest.raises(InputError, match="be-calm among the weights but no head, be-loud"):
        scheme_rows(scores, pairs, ratings=RATINGS)


def test_scores_in_another_order_are_refused(pairs, margin_PR):
    turned = scores_of(pairs, margin_PR).take(np.arange(100)[::-1].copy())
    with pytest.raises(InputError, match="not those of the 100 pairs of made-up in their order"):
        scheme_rows(turned, pairs, ratings=RATINGS)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"schemes": ("best",)}, "weighting scheme 'best': there is none of this name"),
        ({"taus": ()}, "0 temperatures"),
        ({"taus": (0.0,)}, "--tau 0.0"),
        ({"num_random": 0}, "0 draws"),
    ],
)
def test_impossible_options_are_refused(options, problem):
    with pytest.raises(InputError, match=problem):
        SchemeRowOptions(**options)


def test_a_scheme_that_cannot_weigh_is_left_out_with_its_reason(pairs, margin_PR):
    # No pair has both responses rated: there is no label to learn from.
    table = RATINGS.filter(np.array(RATINGS["response"].to_pylist()) == "chosen")
    found = weigh_rows(
        scores_of(pairs, margin_PR),
        pairs,
        ratings=table,
        options=SchemeRowOptions(schemes=("encore", "bradley-terry")),
    )
    assert "bradley-terry weights" not in [row.name for row in found.rows]
    assert any(note.startswith("left out: scheme bradley-terry") for note in found.notes)
    with pytest.raises(InputError, match="no label to learn from"):
        weigh_rows(
            scores_of(pairs, margin_PR),
            pairs,
            ratings=table,
            options=SchemeRowOptions(schemes=("bradley-terry",)),
        )


def test_stored_results_become_a_row_again(tmp_path, pairs, rows):
    judge = credit_row("judge-gpt4o", rows["uniform"].credit_P / 2, pairs=pairs)
    path = tmp_path / "results.parquet"
    write_pair_results(path, [judge.pair_results], pairs=pairs)
    [row] = stored_rows(path, pairs=pairs)
    assert (row.name, row.kind, row.method) == ("judge-gpt4o", "judge", "judge-gpt4o")
    assert row.credit_P.tolist() == judge.credit_P.tolist()
    assert row.score == judge.score
    [renamed] = stored_rows(path, pairs=pairs, name="mine")
    assert (renamed.name, renamed.method) == ("mine", "mine")
    with pytest.raises(InputError, match="only results on the same pairs"):
        stored_rows(path, pairs=_with_digest(pairs, "1" * 64))


def test_stored_results_are_found_by_their_ids_not_by_their_place(tmp_path, pairs, rows):
    turned = dataclasses.replace(
        pairs,
        pairs=pairs.pairs[::-1],
        subset_P=pairs.subset_P[::-1],
        row_id_P=pairs.row_id_P[::-1],
    )
    path = tmp_path / "results.parquet"
    write_pair_results(path, [rows["uniform"].pair_results], pairs=pairs)
    [row] = stored_rows(path, pairs=turned)
    assert row.credit_P.tolist() == rows["uniform"].credit_P[::-1].tolist()
    np.testing.assert_array_equal(row.reward_P2, rows["uniform"].reward_P2[::-1])


def test_several_stored_rows_keep_their_names_behind_one_of_their_own(tmp_path, pairs, rows):
    path = tmp_path / "results.parquet"
    two = [rows[name].pair_results for name in ("uniform", "inverse-sd")]
    write_pair_results(path, two, pairs=pairs)
    found = stored_rows(path, pairs=pairs, name="other backbone")
    assert [row.name for row in found] == ["other backbone: uniform", "other backbone: inverse-sd"]
    # The paper's figures are this backbone's, not the other's.
    assert [row.method for row in found] == [None, None]


def test_a_stored_mean_over_draws_is_still_one(tmp_path, pairs, rows):
    """McNemar's p of a mean's credits is about nothing: its own table has none, nor has another."""
    path = tmp_path / "results.parquet"
    names = ("uniform", "random (50 draws)", "bradley-terry weights")
    write_pair_results(path, [rows[name].pair_results for name in names], pairs=pairs)
    found = compared(stored_rows(path, pairs=pairs, name="other"), pairs=pairs)
    _, drawn, learnt = found
    assert drawn.draws == rows["random (50 draws)"].draws
    assert (drawn.kind, drawn.p_value) == ("scheme", None)
    assert drawn.comparison is not None
    assert dict(learnt.params) == dict(rows["bradley-terry weights"].params)
    assert learnt.uses_labels
    table = make_table(found, pairs=pairs)
    assert any("other: bradley-terry weights: learnt from people" in one for one in table.notes)


def test_a_mean_in_a_file_that_does_not_say_so_has_no_p(tmp_path, pairs, rows):
    path = tmp_path / "results.parquet"
    old = [
        dataclasses.replace(rows[name].pair_results, about=None)
        for name in ("uniform", "random (50 draws)")
    ]
    write_pair_results(path, old, pairs=pairs)
    uniform, drawn = compared(stored_rows(path, pairs=pairs), pairs=pairs)
    assert (uniform.is_mean, drawn.is_mean, drawn.p_value) == (False, True, None)
    assert drawn.comparison is not None


def test_what_a_judge_s_file_says_of_it_stands_in_the_table(tmp_path, pairs, rows):
    about = RowAbout(
        kind="judge",
        synthetic=("judge", "benchmark made-up"),
        notes=("40 of 200 replies say none",),
    )
    judge = PairResults(
        name="demo", ties="half", credit_P=rows["uniform"].credit_P / 2, about=about
    )
    path = write_pair_results(tmp_path / "results.parquet", [judge], pairs=pairs)
    found = stored_rows(path, pairs=pairs, name="judge-gpt4o")
    table = make_table([rows["uniform"], *found], pairs=pairs)
    assert table.synthetic == ("judge-gpt4o: judge",)  # the benchmark's own mark is the table's
    assert "judge-gpt4o: 40 of 200 replies say none" in table.notes
    # And once more, from the table's own file.
    again = stored_rows(write_pair_results(path, [found[0].pair_results], pairs=pairs), pairs=pairs)
    assert again[0].synthetic == ("judge-gpt4o: judge",)


def test_results_of_another_weighting_are_refused(tmp_path, pairs, rows):
    path = tmp_path / "results.parquet"
    write_pair_results(path, [rows["uniform"].pair_results], pairs=pairs)
    other = benchmark_pairs(SUBSETS, weighting="subsets")
    with pytest.raises(InputError, match="count all examples of made-up alike, not all subsets"):
        stored_rows(path, pairs=other)


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


def test_in_a_mean_what_is_neither_right_nor_wrong_is_no_loss(rows):
    for subset in rows["random (50 draws)"].score.subsets:
        assert subset.num_wins + subset.num_losses < subset.num_pairs
    for subset in rows["uniform"].score.subsets:
        assert subset.num_wins + subset.num_ties + subset.num_losses == subset.num_pairs


def test_another_seed_draws_other_weights_throughout(pairs, margin_PR, rows):
    options = SchemeRowOptions(schemes=("random",), num_random=50, seed=1)
    [_, three, fifty] = scheme_rows(
        scores_of(pairs, margin_PR), pairs, ratings=RATINGS, options=options
    )
    seeds = range(1_000_000, 1_000_050)  # none of 0 to 49, which seed 0 draws
    each = [accuracy(margin_PR @ random_weights(RULES, seed=seed)) for seed in seeds]
    assert three.score.headline.score == pytest.approx(np.mean(each[:3]))
    assert fifty.draws.mean == pytest.approx(np.mean(each))
    assert fifty.draws != rows["random (50 draws)"].draws


def test_a_scheme_without_an_optimum_is_left_out_too(pairs, margin_PR, monkeypatch):
    def no_optimum(_table: object) -> tuple[TableRow, ...]:
        raise EncoreError("scheme bradley-terry: no optimum after 200 steps")

    monkeypatch.setitem(ROWS, "bradley-terry", no_optimum)
    options = SchemeRowOptions(schemes=("bradley-terry", "inverse-sd"))
    found = weigh_rows(scores_of(pairs, margin_PR), pairs, ratings=RATINGS, options=options)
    assert [row.name for row in found.rows] == ["uniform", "inverse-sd"]
    assert found.notes[0] == "left out: scheme bradley-terry: no optimum after 200 steps"


def test_labels_that_no_rule_agrees_with_are_named(pairs, margin_PR):
    responses = np.array(RATINGS["response"].to_pylist())
    turned = RATINGS.set_column(
        RATINGS.schema.get_field_index("response"),
        "response",
        pa.array(np.where(responses == "chosen", "rejected", "chosen")),
    )
    options = SchemeRowOptions(schemes=("bradley-terry",))
    found = weigh_rows(scores_of(pairs, margin_PR), pairs, ratings=turned, options=options)
    assert [note for note in found.notes if note.startswith("bradley-terry weights: no weighting")]


def test_every_row_of_a_scheme_is_known_by_its_name(rows):
    assert all(is_scheme_row(name) for name in rows)
    assert not any(map(is_scheme_row, ("initial model", "judge-gpt4o", "bradley-terry-model")))


def test_nothing_is_compared_where_there_is_nothing(pairs):
    assert compared((), pairs=pairs) == ()


def _with_digest(pairs, digest: str):
    return dataclasses.replace(pairs, digest=digest)
