"""Tables of several studies: put together by their pairs, compared only on the same ones."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from encore.benchmarks.stored_tables import read_tables

from encore.benchmarks.compare import compare_tables, compare_two, find_row, read_studies
from encore.benchmarks.rows import credit_row
from encore.errors import InputError
from tests.benchmarks.stored_world import every_row, model_row, real_pairs, write_run
from tests.studies import create_study

SMALL = {"refuse": 6, "respond": 4}


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """Two rows on ten pairs: one wins all, the other loses the first three."""
    path = create_study(tmp_path / "first").path
    pairs = real_pairs(SMALL)
    rows = [
        model_row("worse", [0, 0, 0, 1, 1, 1, 1, 1, 1, 1], pairs=pairs),
        model_row("better", [1] * 10, pairs=pairs),
    ]
    write_run(path, rows, pairs=pairs)
    return path


def test_rows_are_sorted_and_compared_with_the_first_of_their_table(study):
    [found] = compare_tables(read_studies([study]))
    assert [one.row.name for one in found.rows] == ["better", "worse"]
    better, worse = found.rows
    assert better.row.figures["Safety"][0] == 1.0
    assert worse.row.figures["Safety"][0] == pytest.approx(0.7)
    assert worse.comparison is None
    assert worse.row.row_id == found.reference
    assert better.comparison.difference == pytest.approx(0.3)
    assert (better.comparison.num_only_first, better.comparison.num_only_second) == (3, 0)
    assert better.p_value == pytest.approx(0.25)  # three of three: 2 · (1/2)³


def test_rows_can_be_sorted_by_a_subset_in_any_case(study):
    [found] = compare_tables(read_studies([study]), by="RESPOND")
    assert found.by == "respond"
    assert [one.row.name for one in found.rows] == ["worse", "better"]  # both win all four
    [found] = compare_tables(read_studies([study]), by="safety")
    assert found.by == "Safety"


def test_what_is_read_is_what_the_table_says(tmp_path):
    """Figures, comparisons and p-values of `encore benchmark`, from the files alone."""
    study, pairs = create_study(tmp_path / "study").path, real_pairs()
    made = write_run(study, every_row(pairs), pairs=pairs)
    [found] = compare_tables(read_studies([study]))
    by_name = {one.row.name: one for one in found.rows}
    rows = [line.row for line in made.table.lines if line.row is not None]
    assert len(by_name) == len(rows)
    for row in rows:
        one = by_name[row.name]
        assert one.row.figures["Safety"][0] == pytest.approx(row.score.headline.score)
        assert one.comparison == row.comparison
        assert one.p_value == row.p_value
        assert one.row.kind == row.kind
    scores = [one.row.figures["Safety"][0] for one in found.rows]
    assert scores == sorted(scores, reverse=True)


def test_studies_on_the_same_pairs_stand_in_one_table(study, tmp_path):
    other, pairs = create_study(tmp_path / "second").path, real_pairs(SMALL)
    write_run(other, [model_row("worse", [0] * 10, pairs=pairs)], pairs=pairs)
    tables = read_studies([study, other])
    [found] = compare_tables(tables)
    assert len(found.rows) == 3
    last = found.rows[-1]
    assert last.row.row_id == f"second/{'k' * 16}/worse"
    assert last.comparison.difference == pytest.approx(-0.7)  # with the first study's first row
    with pytest.raises(InputError, match="several tables have one; give one of: 'first/k"):
        compare_tables(tables, reference="worse")
    [found] = compare_tables(tables, reference=last.row.row_id)
    assert found.rows[-1].comparison is None


def test_other_pairs_are_another_table_and_comparing_across_is_refused(study, tmp_path):
    other, pairs = create_study(tmp_path / "second").path, real_pairs({"refuse": 5, "respond": 5})
    write_run(other, [model_row("best", [1] * 10, pairs=pairs)], pairs=pairs)
    tables = read_studies([study, other])
    assert [len(one.rows) for one in compare_tables(tables)] == [2, 1]
    with pytest.raises(InputError, match="only results on the same pairs can be compared"):
        compare_two(tables, "better", "best")
    with pytest.raises(InputError, match="these tables are on different pairs or by"):
        compare_tables(tables, reference="best")


@pytest.mark.parametrize(
    "other", [{"headline": "Harmlessness"}, {"version": "2"}, {"ties": "half"}]
)
def test_another_definition_on_the_same_pairs_is_another_table(study, tmp_path, other):
    second, pairs = create_study(tmp_path / "second").path, real_pairs(SMALL, **other)
    write_run(second, [model_row("best", [1] * 10, pairs=pairs)], pairs=pairs)
    tables = read_studies([study, second])
    assert [len(one.rows) for one in compare_tables(tables)] == [2, 1]
    with pytest.raises(InputError, match="two definitions of one benchmark"):
        compare_two(tables, "better", "best")
    with pytest.raises(InputError, match="by different definitions"):
        compare_tables(tables, reference="best")


def test_two_rows_are_compared_either_way_round(study):
    tables = read_studies([study])
    there = compare_two(tables, "better", "worse").comparison
    back = compare_two(tables, "worse", "better").comparison
    assert there.difference == pytest.approx(-back.difference)
    assert there.mcnemar_p == back.mcnemar_p
    with pytest.raises(InputError, match="one and the same"):
        compare_two(tables, "better", "better")


def test_a_judge_s_half_credits_have_no_p_either_way_round(tmp_path):
    study, pairs = create_study(tmp_path / "study").path, real_pairs(SMALL)
    judge = credit_row("judge", np.array([0.5] * 4 + [1.0] * 6), pairs=pairs)
    made = write_run(study, [model_row("model", [1] * 10, pairs=pairs), judge], pairs=pairs)
    tables = read_studies([study])
    for reference in ("model", "judge"):
        [found] = compare_tables(tables, reference=reference)
        [other] = [one for one in found.rows if one.comparison is not None]
        assert abs(other.comparison.difference) == pytest.approx(0.2)
        assert (other.p_value, other.comparison.mcnemar_p) == (None, None)
    assert found.as_dict()["rows"][0]["comparison"]["mcnemar_p"] is None
    assert compare_two(tables, "model", "judge").comparison.mcnemar_p is None
    line = next(line for line in made.markdown_path.read_text().splitlines() if "| judge" in line)
    # Score, interval, difference, its interval, p: the test has nothing to say here.
    assert line.split("|")[-2].strip() == "–"
    assert "no p where some credits lie between 0 and 1" in made.markdown_path.read_text()


def test_a_partial_table_is_marked(tmp_path):
    study, pairs = create_study(tmp_path / "study").path, real_pairs(SMALL, is_partial=True)
    write_run(study, [model_row("only", [1] * 10, pairs=pairs)], pairs=pairs)
    [found] = compare_tables(read_studies([study]))
    assert found.is_partial
    assert found.as_dict()["is_partial"]


def test_what_is_not_there_is_named(study, tmp_path):
    tables = read_studies([study])
    with pytest.raises(InputError, match="there are: 'worse', 'better'"):
        find_row(tables[0].rows, "best")
    with pytest.raises(InputError, match="there are: Safety, refuse, respond"):
        compare_tables(tables, by="kindness")
    with pytest.raises(InputError, match="there are: made-up"):
        compare_tables(tables, benchmark="rewardbench-safety")
    with pytest.raises(InputError, match="the same study is given twice"):
        read_studies([study, tmp_path / "first" / ".." / "first"])
    empty = create_study(tmp_path / "empty").path
    with pytest.raises(InputError, match=r"no benchmark table in it; make one with"):
        read_studies([empty])


def test_a_table_that_is_not_that_of_its_results_is_refused(study):
    [path] = study.glob("benchmarks/*/table.json")
    content = json.loads(path.read_text())
    content["rows"][0]["ours"]["headline"]["score"] = 0.9
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match="is not the table of"):
        read_tables(study)
    path.write_text("{}")
    with pytest.raises(InputError, match="no table of a benchmark"):
        read_tables(study)


def test_two_studies_of_one_name_are_called_by_their_paths(study, tmp_path):
    other, pairs = create_study(tmp_path / "elsewhere" / "first").path, real_pairs(SMALL)
    write_run(other, [model_row("best", [1] * 10, pairs=pairs)], pairs=pairs)
    assert {table.study for table in read_studies([study, other])} == {str(study), str(other)}


def test_a_mean_over_draws_of_choices_is_shown_but_not_compared(tmp_path):
    """Three rejected responses a row: a choice's mean does not follow from its pairs' means."""
    study = create_study(tmp_path / "study").path
    pairs = real_pairs({"only": 30}, rejected_per_row=3)
    write_run(study, every_row(pairs), pairs=pairs)
    tables = read_studies([study])
    [found] = compare_tables(tables)
    [mean] = [one for one in found.rows if one.row.name == "random (5 draws)"]
    assert mean.comparison is None
    assert mean.row.figures["Safety"][1].num_pairs == 10
    with pytest.raises(InputError, match="no results of its pairs"):
        compare_two(tables, "uniform", "random (5 draws)")
