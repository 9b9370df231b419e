"""Tables of several studies: grouped by their pairs, compared only on the same pairs."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from encore.benchmarks.compare_tables import compare_tables, find_row, read_studies
from encore.core.errors import InputError
from encore.demo import BENCHMARK_DATA_PATH, BENCHMARK_PATH
from tests.golden.command_line import encore
from tests.worlds.refusals import assert_refused
from tests.worlds.studies import create_study
from tests.worlds.tables import benchmark_pairs, every_row, model_row, turned, write_run

SMALL = {"refuse": 6, "respond": 4}


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """Return a study with two rows on ten pairs: all right, and all but the first three."""
    path = create_study(tmp_path / "first").path
    pairs = benchmark_pairs(SMALL)
    rows = [
        model_row("worse", [0, 0, 0, 1, 1, 1, 1, 1, 1, 1], pairs=pairs),
        model_row("better", [1] * 10, pairs=pairs),
    ]
    write_run(path, rows, pairs=pairs)
    return path


def test_rows_are_sorted_and_compared_with_the_first_of_their_table(study):
    [table] = compare_tables(read_studies([study]))
    better, worse = table.rows
    assert (better.name, worse.name) == ("better", "worse")
    assert better.figures["Safety"].score == 1.0
    assert (worse.comparison, worse.row_id) == (None, table.reference)
    comparison = better.comparison
    assert comparison.difference == pytest.approx(0.3)
    assert (comparison.num_only_first, comparison.num_only_second) == (3, 0)
    assert comparison.mcnemar_p == pytest.approx(0.25)  # three of three: 2 · (1/2)³
    [table] = compare_tables(read_studies([study]), by="RESPOND")
    assert table.by == "respond"
    assert [row.name for row in table.rows] == ["worse", "better"]  # both win all four


def test_studies_on_the_same_pairs_share_a_table(study, tmp_path):
    second, pairs = create_study(tmp_path / "second").path, benchmark_pairs(SMALL)
    write_run(second, [model_row("worse", [0] * 10, pairs=pairs)], pairs=pairs)
    rows = read_studies([study, second])
    [table] = compare_tables(rows)
    assert len(table.rows) == 3
    last = table.rows[-1]
    assert last.row_id == f"second/{'k' * 16}/worse"
    assert last.comparison.difference == pytest.approx(-0.7)  # with the first's first row
    with pytest.raises(InputError, match="several tables have one; give one of: 'first/k"):
        compare_tables(rows, reference="worse")
    [table] = compare_tables(rows, reference=last.row_id)
    assert table.rows[-1].comparison is None
    # A row that two tables of a study share is read once.
    write_run(second, [model_row("worse", [0] * 10, pairs=pairs)], pairs=pairs, key="m" * 16)
    assert len(compare_tables(read_studies([study, second]))[0].rows) == 3


@pytest.mark.parametrize(
    ("counts", "definition"),
    [
        ({"refuse": 5, "respond": 5}, {}),
        (SMALL, {"headline": "Harmlessness"}),
        (SMALL, {"version": "2"}),
        (SMALL, {"ties": "half"}),
    ],
)
def test_other_pairs_and_other_definitions_are_another_table(study, tmp_path, counts, definition):
    second, pairs = create_study(tmp_path / "second").path, benchmark_pairs(counts, **definition)
    write_run(second, [model_row("best", [1] * 10, pairs=pairs)], pairs=pairs)
    rows = read_studies([study, second])
    assert [len(table.rows) for table in compare_tables(rows)] == [2, 1]
    with pytest.raises(InputError, match="on different pairs or by different definitions"):
        compare_tables(rows, reference="best")


def test_files_of_the_same_data_in_another_order_are_compared_pair_by_pair(study, tmp_path):
    second, pairs = create_study(tmp_path / "second").path, benchmark_pairs(SMALL)
    back = turned(pairs)
    write_run(second, [model_row("turned", [1] * 7 + [0] * 3, pairs=back)], pairs=back)
    [table] = compare_tables(read_studies([study, second]), reference="turned")
    [comparison] = [row.comparison for row in table.rows if row.name == "worse"]
    assert (comparison.num_only_first, comparison.num_only_second) == (0, 0)


def test_a_mean_over_draws_of_choices_is_not_compared(tmp_path):
    """Three rejected responses a row: a choice's mean does not follow from its pairs' means."""
    study = create_study(tmp_path / "study").path
    pairs = benchmark_pairs({"only": 30}, rejected_per_row=3)
    write_run(study, every_row(pairs), pairs=pairs)
    rows = read_studies([study])
    [table] = compare_tables(rows)
    [mean] = [row for row in table.rows if row.name == "random (5 draws)"]
    assert (mean.comparison, mean.figures["Safety"].num_pairs) == (None, 10)
    [single] = [row for row in table.rows if row.name == "single: be-kind"]
    assert single.comparison.num_pairs == 10  # choices, not pairs


def test_missing_rows_figures_and_tables_are_named(study, tmp_path):
    rows = read_studies([study])
    assert_refused("give one of: 'worse', 'better'", find_row, rows, "best")
    assert_refused("there are: Safety, refuse, respond", compare_tables, rows, by="kindness")
    with pytest.raises(InputError, match=r"the studies have tables of made-up only"):
        read_studies([study], benchmark="other")
    second = create_study(tmp_path / "elsewhere" / "first").path
    assert_refused(r"no benchmark table yet; make one with", read_studies, [second])


def test_a_study_is_read_once_and_studies_of_one_name_are_called_by_their_paths(study, tmp_path):
    assert len(read_studies([study, study / ".." / "first"])) == 2
    second = create_study(tmp_path / "elsewhere" / "first").path
    pairs = benchmark_pairs(SMALL)
    write_run(second, [model_row("best", [1] * 10, pairs=pairs)], pairs=pairs)
    assert {row.study for row in read_studies([study, second])} == {str(study), str(second)}


def test_a_table_that_does_not_match_its_results_is_refused(study):
    [path] = study.glob("benchmarks/*/table.json")
    whole = path.read_text()
    for old, new in (('"score": 0.7', '"score": 0.9'), ('"name": "better"', '"name": "best"')):
        assert old in whole
        path.write_text(whole.replace(old, new))
        assert_refused("does not match results", read_studies, [study])
    path.write_text("{}")
    assert_refused("no table of a benchmark", read_studies, [study])


# --- the command ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def printed_study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = create_study(tmp_path_factory.mktemp("compare") / "study").path
    pairs = benchmark_pairs()
    write_run(path, every_row(pairs), pairs=pairs, synthetic=["model made (made up)"])
    return path


def test_the_rows_are_printed_best_first_with_their_intervals(printed_study):
    result = encore("compare", printed_study, "--by", "safety")
    assert result.code == 0, result.err
    lines = result.out.splitlines()
    assert lines[0].startswith("made-up 1 (")
    assert "Safety on 50 pairs; Δ to uniform, in points" in lines[0]
    rows = [line for line in lines if "…" in line]
    assert len(rows) == len(encore("compare", printed_study, "--json").json["datasets"][0]["rows"])
    [uniform] = [row for row in rows if row.split()[0] == "uniform"]
    assert uniform.split()[-3:] == ["–", "–", "–"]
    assert "synthetic: model made (made up)" in result.err
    assert (
        "there is none of this name"
        in encore("compare", printed_study, "--reference", "best").error
    )


def test_the_documented_table_is_on_the_same_pairs_as_the_demo_s():
    """Rows on other pairs cannot be compared with those of the demo's study."""
    text = (
        (Path(__file__).parents[2] / "docs" / "benchmarks.md")
        .read_text(encoding="utf-8")
        .replace("\\\n", " ")
    )
    [line] = re.findall(r"^ *(python -m flows\.evaluate .*)$", text, re.MULTILINE)
    arguments = shlex.split(line)
    assert arguments[3] == "demo-study"
    shipped = {"--benchmark": BENCHMARK_PATH, "--data": BENCHMARK_DATA_PATH}
    for option, path in shipped.items():
        assert Path(__file__).parents[2] / arguments[arguments.index(option) + 1] == path


def test_rules_are_numbered_and_named_under_the_rows(printed_study):
    """The numbers are those of the heads, from 1, as in the other tables."""
    output = encore("compare", printed_study).out
    [dataset] = encore("compare", printed_study, "--json").json["datasets"]
    for position, rule_id in enumerate(dataset["rule_ids"], start=1):
        assert f"single: {rule_id}" in [row["name"] for row in dataset["rows"]]
        assert f" single: rule {position} " in output
        assert f"{position} {rule_id}" in output
