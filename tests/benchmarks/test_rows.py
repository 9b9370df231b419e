"""Rows of a table against their definition in plain numpy, in memory and back from Parquet."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from encore.benchmarks.benchmark_pairs import BenchmarkPairs
from encore.benchmarks.benchmark_table import RowFigures, make_table, significant_differences
from encore.benchmarks.definition import load_benchmark
from encore.benchmarks.pair_results import (
    PAIR_RESULTS,
    read_pair_results,
    stored_rows,
    write_pair_results,
)
from encore.benchmarks.paper_tables import paper_rows
from encore.benchmarks.render_table import render_markdown
from encore.benchmarks.table_rows import RowMetadata, TableRow, mean_row
from encore.core.errors import InputError
from encore.weighting.schemes.random import random_weights
from tests.worlds.refusals import assert_refused
from tests.worlds.tables import (
    RULES,
    benchmark_pairs,
    model_row,
    random_margins,
    rows_of,
    scores_of,
    training_ratings,
    turned,
)

# Suffixes: P pairs, U units, R heads, V weight vectors, 2 responses.

SUBSETS = {"refuse": 60, "respond": 40}
RATINGS = training_ratings()
PAIRS = benchmark_pairs(SUBSETS)
#: As head scores hold them, so that numpy sees the same numbers.
MARGIN_PR = random_margins(100).astype(np.float32).astype(np.float64)
SCORES = scores_of(PAIRS, MARGIN_PR)


@pytest.fixture(scope="module")
def rows() -> dict[str, TableRow]:
    scheme_rows, _ = rows_of(SCORES, PAIRS, k=2, num_random=50, taus=(0.5, 2.0, 1e9))
    return {row.name: row for row in scheme_rows}


def figures_of(row: TableRow, pairs: BenchmarkPairs) -> RowFigures:
    return make_table([row], pairs=pairs).rows_with_figures[0].our_figures


# --- what a row is made from ----------------------------------------------------------------------


def test_random_rows_are_means_over_their_seeds(rows):
    def accuracies(seeds: range) -> list[float]:
        return [(MARGIN_PR @ random_weights(RULES, seed=seed) > 0).mean() for seed in seeds]

    accuracy_by_draw = accuracies(range(50))
    names = ("random (mean of 3)", "random (50 draws)")
    three, fifty = (figures_of(rows[name], PAIRS) for name in names)
    assert three.headline.score == pytest.approx(np.mean(accuracy_by_draw[:3]))
    assert (three.draws.num_draws, three.method, fifty.method) == (3, "random", None)
    expected = pytest.approx(np.mean(accuracy_by_draw))
    assert fifty.draws.mean == expected == fifty.headline.score
    assert (fifty.draws.low, fifty.draws.high) == pytest.approx(
        np.quantile(accuracy_by_draw, [0.025, 0.975])
    )
    for subset in fifty.subsets:  # what is neither right nor wrong is no loss
        assert subset.num_wins + subset.num_losses < subset.num_pairs
    # Seeds 1,000,000 to 1,000,049: none that seed 0 draws.
    [_, _, other_seed_row], _ = rows_of(SCORES, PAIRS, schemes=("random",), num_random=50, seed=1)
    expected = pytest.approx(np.mean(accuracies(range(1_000_000, 1_000_050))))
    assert other_seed_row.metadata.draws.mean == expected


def test_only_rows_with_the_paper_s_parameters_have_its_method(rows):
    assert {row.name: row.method for row in rows.values() if row.method is not None} == {
        "uniform": "uniform",
        "encore (τ 2)": "encore",
        "random (mean of 3)": "random",
        "single (mean of 3)": "single",
    }
    # Five of the rules are the paper's rule selection.
    pairs, rules = benchmark_pairs({"a": 30}), tuple(f"rule-{index}" for index in range(7))
    scores = scores_of(pairs, random_margins(30, num_heads=7), head_ids=rules)
    table = training_ratings(rules=rules)
    selection_rows, _ = rows_of(
        scores, pairs, ratings=table, schemes=("top-k", "random-k"), num_random=5
    )
    names = ["uniform", "top-5", "random-5 (mean of 3)", "random-5 (5 draws)"]
    assert [row.name for row in selection_rows] == names
    assert [row.method for row in selection_rows] == ["uniform", "top-k", "random-k", None]


def test_a_row_of_weights_from_few_labels_names_their_number():
    _, row = rows_of(SCORES, PAIRS, schemes=("shrunk",), labels=5)[0]
    assert (row.name, row.metadata.params["num_pairs"]) == ("shrunk (5 labels)", 5)
    _, row = rows_of(SCORES, PAIRS, schemes=("shrunk",))[0]
    assert (row.name, row.metadata.params["num_pairs"] > 5) == ("shrunk", True)


def test_a_mean_counts_a_row_of_several_pairs_once():
    """Two rows of two pairs: a draw is right only where both pairs of a row are."""
    pairs = benchmark_pairs({"a": 4}, rejected_per_row=2)
    margin_PR = np.array([[1.0, -1.0], [1.0, 1.0], [1.0, -1.0], [-1.0, 1.0]])
    score_P2R = np.stack([margin_PR, np.zeros_like(margin_PR)], axis=1)
    row = mean_row("mean", np.eye(2), score_P2R=score_P2R, pairs=pairs)
    # Head 0: row 0 right, row 1 wrong. Head 1: row 0 wrong, row 1 wrong. Mean: (1/2 + 0) / 2.
    figures = figures_of(row, pairs)
    assert figures.headline.score == figures.draws.mean == 0.25
    assert figures.headline.num_pairs == 2
    assert row.credit_P.tolist() == [0.5, 1.0, 0.5, 0.5]
    # From its pairs' means, 1/2 and 1/2, row 1 would be worth 1 / (1 + 1 + 1), not 0.
    assert not row.follows_from_pairs
    equal_subsets = benchmark_pairs({"a": 3, "b": 1}, weighting="subsets")
    margin_PR = np.array([[1.0], [1.0], [1.0], [-1.0]])
    score_P2R = np.stack([margin_PR, np.zeros_like(margin_PR)], axis=1)
    row = mean_row("mean", np.ones((1, 1)), score_P2R=score_P2R, pairs=equal_subsets)
    score = figures_of(row, equal_subsets).headline.score
    assert score == row.metadata.draws.mean == 0.5  # (1 + 0) / 2, not 3/4


def test_schemes_that_cannot_weigh_the_rules_are_refused_or_left_out():
    head_ids = ("be-kind", "be-brief", "be-true", "be-loud")
    with pytest.raises(InputError, match="be-calm among the weights but no head, be-loud"):
        rows_of(scores_of(PAIRS, MARGIN_PR, head_ids=head_ids), PAIRS)
    # No pair has both responses rated: there is no label to learn from.
    table = RATINGS.filter(np.array(RATINGS["response"].to_pylist()) == "chosen")
    scheme_rows, notes = rows_of(
        SCORES, PAIRS, ratings=table, schemes=("inverse-sd", "bradley-terry")
    )
    assert [row.name for row in scheme_rows] == ["uniform", "inverse-sd"]
    assert any(note.startswith("left out: scheme bradley-terry") for note in notes)
    with pytest.raises(InputError, match="no label to learn from"):
        rows_of(SCORES, PAIRS, ratings=table, schemes=("bradley-terry",))
    # Labels that no rule agrees with.
    responses = np.array(RATINGS["response"].to_pylist())
    column = RATINGS.schema.get_field_index("response")
    swapped = pa.array(np.where(responses == "chosen", "rejected", "chosen"))
    against = RATINGS.set_column(column, "response", swapped)
    _, notes = rows_of(SCORES, PAIRS, ratings=against, schemes=("bradley-terry",))
    assert [note for note in notes if note.startswith("bradley-terry weights: no weighting")]


def test_significant_differences_of_rows_are_named():
    """Right on 90, 89 and 40 of 100 pairs: the first two differ on three pairs, two to one."""
    right = {"a": range(90), "b": [*range(88), 95], "c": range(40)}
    rows = [
        model_row(name, np.isin(np.arange(100), list(indices)), pairs=PAIRS)
        for name, indices in right.items()
    ]
    assert (
        significant_differences(rows[:2], pairs=PAIRS)
        == "on these 100 pairs no two of a and b differ significantly"
    )
    assert significant_differences(rows, pairs=PAIRS) == (
        "on these 100 pairs 2 of 3 comparisons of a, b and c differ significantly: a and c; b and c"
    )


# --- beside the paper -----------------------------------------------------------------------------


def test_the_paper_s_row_of_the_same_method_stands_beside_a_row():
    benchmark = load_benchmark("rewardbench-safety")
    counts = {subset.name: subset.num_pairs for subset in benchmark.subsets}
    pairs = dataclasses.replace(benchmark_pairs(counts), benchmark=benchmark)

    def row(num_right: int, name: str, method: str, pairs: BenchmarkPairs = pairs) -> TableRow:
        wins_P = np.arange(pairs.num_pairs) < num_right
        return dataclasses.replace(model_row(name, wins_P, pairs=pairs), method=method)

    our_rows = [
        row(629, "ours", "uniform"),
        row(600, "top-5", "top-k"),  # the paper has it in another table: its rule selection
        row(600, "judge", "judge-gpt4o"),
    ]
    table = make_table(our_rows, pairs=pairs)
    uniform, top, judge, *paper_only = table.rows
    # 629 of 740 are exactly 85.0 %; the paper prints 85.5, which follows from its sub-scores.
    assert uniform.difference_to_paper == pytest.approx(-0.005)
    assert (uniform.paper.score, uniform.paper.follows) == (0.855, True)
    assert "73.0 [75.1]" in render_markdown(table)  # printed, and what its sub-scores give
    assert top.paper.label == next(row.label for row in paper_rows() if row.method == "top-k")
    assert judge.paper.method not in {line.paper.method for line in paper_only}
    assert {line.kind for line in paper_only} == {"paper-only"}
    for change in ({"weighting": "subsets"}, {"ties": "half"}, {"version": "2"}):
        redefined = dataclasses.replace(pairs, benchmark=benchmark.model_copy(update=change))
        table = make_table([row(629, "ours", "uniform", redefined)], pairs=redefined)
        assert [line.paper for line in table.rows] == [None]
        assert any("figures for rewardbench-safety alone" in note for note in table.notes)
    assert_refused("several rows 'ours'", make_table, our_rows[:1] * 2, pairs=pairs)


# --- Parquet --------------------------------------------------------------------------------------


def test_results_are_read_as_they_were_written(tmp_path, rows):
    params = {"k": 5, "tau": 0.5, "rule": "be-kind"}
    metadata = RowMetadata(
        kind="judge", params=params, notes=("two",), num_cut_pairs=3, judge="big"
    )
    credit_P = np.full(100, 0.5)
    judge = TableRow(name="a judge", ties="half", credit_P=credit_P, metadata=metadata)
    written_rows = [rows["uniform"], rows["random (50 draws)"], judge]
    path = write_pair_results(tmp_path / "results.parquet", written_rows, pairs=PAIRS)
    results = read_pair_results(path)
    assert [row.name for row in results.rows] == [row.name for row in written_rows]
    assert [row.ties for row in results.rows] == ["loss", "loss", "half"]
    assert [row.metadata for row in results.rows] == [row.metadata for row in written_rows]
    for stored_row, row in zip(results.rows, written_rows, strict=True):
        np.testing.assert_array_equal(stored_row.credit_P, row.credit_P)
    np.testing.assert_array_equal(results.rows[0].reward_P2, rows["uniform"].reward_P2)
    assert results.rows[2].reward_P2 is None
    assert results.keys == PAIRS.keys
    definition = (results.benchmark, results.data_digest, results.weighting)
    assert definition == ("made-up", PAIRS.digest, "examples")
    table = pq.read_table(path)  # by another reader of Parquet
    assert table.schema.equals(PAIR_RESULTS)
    assert table.slice(200)["reward_chosen"].null_count == 100


def test_damaged_files_of_results_are_refused(tmp_path, rows):
    path = tmp_path / "results.parquet"
    write_pair_results(path, [rows["uniform"], rows["top-2"]], pairs=PAIRS)
    table = pq.read_table(path)
    shuffled = table.take(pa.array([1, 0, *range(2, 200)]))
    for changed in (table.slice(0, 198), table.slice(2), table.slice(0, 100), shuffled):
        pq.write_table(changed, path)
        assert_refused(r"results.parquet: damaged.*run `encore benchmark`", read_pair_results, path)
    pq.write_table(pa.table({"x": [1]}), path)
    (tmp_path / "text.parquet").write_text("no Parquet")
    for name in ("results", "text", "missing"):
        with pytest.raises(InputError, match=rf"{name}.parquet: not a file of benchmark results"):
            read_pair_results(tmp_path / f"{name}.parquet")


def stored(path: Path, *rows: TableRow, name: str | None = None, pairs: Any = PAIRS) -> Any:
    """Write rows to a file and read them as another table does."""
    return stored_rows(write_pair_results(path, rows, pairs=PAIRS), pairs=pairs, name=name)


def test_a_stored_row_is_matched_by_ids_and_only_on_the_same_pairs(tmp_path, rows):
    path, uniform = tmp_path / "results.parquet", rows["uniform"]
    [row] = stored(path, uniform, pairs=turned(PAIRS))
    assert (row.name, row.metadata.kind, row.method) == ("uniform", "scheme", "uniform")
    assert row.credit_P.tolist() == uniform.credit_P[::-1].tolist()
    np.testing.assert_array_equal(row.reward_P2, uniform.reward_P2[::-1])
    [renamed] = stored(path, uniform, name="mine")
    assert (renamed.name, renamed.method) == ("mine", "mine")
    with pytest.raises(InputError, match="only results on the same pairs"):
        stored(path, uniform, pairs=dataclasses.replace(PAIRS, digest="1" * 64))
    with pytest.raises(InputError, match=r"all examples alike, not on .* all subsets alike"):
        stored(path, uniform, pairs=benchmark_pairs(SUBSETS, weighting="subsets"))


def test_rows_of_another_table_keep_their_kind_draws_and_parameters(tmp_path, rows):
    """Credits of a mean have no McNemar's p: neither in their own table nor in another one."""
    names = ("uniform", "random (50 draws)", "bradley-terry weights")
    path = tmp_path / "results.parquet"
    stored_table_rows = stored(path, *(rows[name] for name in names), name="other")
    assert [row.name for row in stored_table_rows] == [f"other: {name}" for name in names]
    # The paper's figures are those of this table's backbone.
    assert [row.method for row in stored_table_rows] == [None] * 3
    table = make_table(stored_table_rows, pairs=PAIRS)
    _, mean, learnt = (line.our_figures for line in table.rows_with_figures)
    assert (mean.is_mean, mean.comparison.mcnemar_p) == (True, None)
    assert mean.draws == rows["random (50 draws)"].metadata.draws
    assert learnt.params == rows["bradley-terry weights"].metadata.params
    assert any("other: bradley-terry weights: learnt from people" in note for note in table.notes)


def test_a_table_repeats_the_notes_and_labels_of_a_judge_s_file(tmp_path, rows):
    metadata = RowMetadata(
        kind="judge", synthetic=("judge", "benchmark made-up"), notes=("40 say none",)
    )
    judge = dataclasses.replace(rows["uniform"], name="demo", ties="half", metadata=metadata)
    path = tmp_path / "results.parquet"
    judge_rows = stored(path, judge, name="judge-gpt4o")
    table = make_table([rows["uniform"], *judge_rows], pairs=PAIRS)
    assert table.synthetic == ("judge-gpt4o: judge",)  # the benchmark's own mark is the table's
    assert "judge-gpt4o: 40 say none" in table.notes
    [again] = stored(path, judge_rows[0])  # and once more, from the table's own file
    assert again.metadata.synthetic == ("judge-gpt4o: judge",)
