"""Several judges over the same pairs: each on its own, and how far they agree."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from encore.analysis.analyze import analyze
from encore.analysis.judge_comparison import JudgeAgreement, compare_judges
from encore.cli.app import app
from encore.errors import InputError
from tests.analysis.test_analysis import RULES, add_run
from tests.ratings_files import ratings_table


def invoke(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def judged(ratings: dict[str, list[tuple[float | None, float | None]]]) -> pa.Table:
    """One rule; per judge the (chosen, rejected) ratings of pairs p0, p1, …."""
    tables = []
    for judge, pairs in ratings.items():
        rows = [
            (f"p{i}", "s", response, "r", x)
            for i, pair in enumerate(pairs)
            for response, x in zip(("chosen", "rejected"), pair, strict=True)
        ]
        table = ratings_table(rows)
        tables.append(table.append_column("judge", pa.array([judge] * table.num_rows)))
    return pa.concat_tables(tables)


def the_agreement(ratings: dict[str, list[tuple[float | None, float | None]]]) -> JudgeAgreement:
    (row,) = compare_judges(judged(ratings)).agreement
    return row


def test_agreement_of_a_small_table_is_what_hand_gives() -> None:
    row = the_agreement(
        {
            "a": [(1.0, 0.0), (0.5, 0.5), (0.5, None)],
            "b": [(1.0, 0.5), (0.0, 0.5), (0.5, 1.0)],
        }
    )
    # Rated by both: 1 = 1, 0 and 0.5, 0.5 and 0, 0.5 = 0.5, 0.5 = 0.5; the null is left out.
    assert row.num_ratings == 5
    assert row.agreement == pytest.approx(3 / 5)
    assert row.mean_absolute_difference == pytest.approx((0.5 + 0.5) / 5)
    assert row.mean_difference == pytest.approx(0.0)
    # By chance: a has one 1, one 0, three 0.5; so has b: (1 + 1 + 9) / 25 = 0.44.
    assert row.kappa == pytest.approx((0.6 - 0.44) / 0.56)
    # Pairs rated by both: p0 (both prefer chosen), p1 (a ties, b prefers rejected).
    assert row.num_pairs == 2
    assert row.same_preference == pytest.approx(1 / 2)


def test_a_stricter_judge_agrees_in_order_and_not_in_ratings() -> None:
    row = the_agreement(
        {
            "lenient": [(1.0, 0.5), (0.9, 0.6), (0.8, 0.7)],
            "strict": [(0.6, 0.1), (0.5, 0.2), (0.4, 0.3)],
        }
    )
    assert row.same_preference == 1.0
    assert row.agreement == 0.0
    assert row.mean_difference == pytest.approx(-0.4)
    assert row.weighted_kappa is not None
    assert row.weighted_kappa < 0.5


def test_each_judge_has_the_analysis_of_its_ratings_alone() -> None:
    rng = np.random.default_rng(0)
    pairs = {
        judge: [tuple((rng.integers(0, 5, size=2) / 4).tolist()) for _ in range(30)]
        for judge in ("b", "a", "c")
    }
    table = judged(pairs)
    comparison = compare_judges(table)
    assert [one.judge for one in comparison.judges] == ["a", "b", "c"]
    for one in comparison.judges:
        assert one.analysis == analyze(table, judge=one.judge)
    compared = [(row.judge, row.other_judge) for row in comparison.agreement]
    assert compared == [("a", "b"), ("a", "c"), ("b", "c")]


def test_files_and_a_table_say_the_same(tmp_path: Path) -> None:
    table = judged({"a": [(0.1, 0.2), (0.3, 0.4)], "b": [(0.1, 0.3), (0.3, 0.3)]})
    pq.write_table(table.slice(0, 3), tmp_path / "1.parquet")
    pq.write_table(table.slice(3), tmp_path / "2.parquet")
    assert compare_judges(tmp_path) == compare_judges(table) == compare_judges(table.to_pandas())


def test_only_shared_pairs_and_rules_are_compared() -> None:
    first = judged({"a": [(0.1, 0.2), (0.3, 0.4)]})
    other = judged({"b": [(0.1, 0.2), (0.3, 0.4), (0.5, 0.6)]}).slice(2)
    extra = other.set_column(3, "rule_id", pa.array(["only b's"] * other.num_rows))
    (row,) = compare_judges(pa.concat_tables([first, other, extra])).agreement
    assert (row.rule_id, row.num_ratings, row.num_pairs) == ("r", 2, 1)


def test_nothing_in_common_is_said() -> None:
    first = judged({"a": [(0.1, 0.2)]})
    other = judged({"b": [(0.1, 0.2), (0.3, 0.4)]}).slice(2)
    comparison = compare_judges(pa.concat_tables([first, other]))
    (row,) = comparison.agreement
    assert (row.num_ratings, row.agreement, row.same_preference) == (0, None, None)
    assert "judges a and b rated no response in common" in comparison.notes[0]


# --- studies --------------------------------------------------------------------------------------


def test_runs_of_a_study_are_compared(tmp_path: Path) -> None:
    for place, judge in enumerate(("tiny", "big")):
        add_run(tmp_path, judge=judge, seed=place)
    comparison = compare_judges(tmp_path)
    assert {one.judge for one in comparison.judges} == {"tiny", "big"}
    for one in comparison.judges:
        assert one.analysis == analyze(tmp_path, judge=one.judge)
        assert [rule.rule_id for rule in one.analysis.rules] == list(RULES)
    assert {row.num_ratings for row in comparison.agreement} == {20}


def test_two_runs_of_one_judge_are_told_apart_by_their_keys(tmp_path: Path) -> None:
    runs = [add_run(tmp_path, seed=seed) for seed in (0, 1)]
    judges = {one.judge for one in compare_judges(tmp_path).judges}
    assert judges == {f"tiny ({run.name})" for run in runs}


def test_runs_in_one_table_are_told_apart_even_if_one_key_begins_the_other() -> None:
    table = judged({"a": [(0.1, 0.2), (0.3, 0.4)]})
    both = pa.concat_tables(
        [
            table.append_column("run_key", pa.array([key] * table.num_rows))
            for key in ("abc", "abcd")
        ]
    )
    comparison = compare_judges(both)
    assert [one.judge for one in comparison.judges] == ["a (abc)", "a (abcd)"]
    assert comparison.agreement[0].agreement == 1.0


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (judged({"a": [(0.1, 0.2)]}), "only one judge"),
        (judged({"a": [(0.1, 0.2)]}).drop_columns(["judge"]), "rows without a judge"),
        (
            pa.concat_tables([judged({"a": [(0.1, 0.2)]}), judged({"b": [(0.1, 0.2)]})]).set_column(
                5, "judge", pa.array(["a", "a", "b", None])
            ),
            "rows without a judge",
        ),
        (judged({"a": [(0.1, 0.2)]}).slice(0, 0), "0 rows"),
        (judged({"a": [(0.1, 0.2)]}).drop_columns(["rating"]), "rating is missing"),
    ],
)
def test_what_cannot_be_compared_is_one_clear_line(
    tmp_path: Path, table: pa.Table, message: str
) -> None:
    pq.write_table(table, tmp_path / "r.parquet")
    for ratings in (table, tmp_path):
        with pytest.raises(InputError, match=message) as caught:
            compare_judges(ratings)
        assert "\n" not in str(caught.value)


def test_a_study_of_one_run_is_refused(tmp_path: Path) -> None:
    add_run(tmp_path)
    with pytest.raises(InputError, match="only one judge"):
        compare_judges(tmp_path)


# --- the command ----------------------------------------------------------------------------------


def test_the_command_prints_tables_and_json(tmp_path: Path) -> None:
    for place, judge in enumerate(("tiny", "big")):
        add_run(tmp_path, judge=judge, seed=place)
    result = invoke("analyze", tmp_path, "--by-judge", "--by-source")
    assert result.exit_code == 0, result.stderr
    assert "by judge, source hh" in result.stdout
    assert "by judge, all sources" in result.stdout
    for text in ("tiny", "big", *RULES, "Agreement of judges", "same order"):
        assert text in result.stdout
    found = json.loads(invoke("analyze", tmp_path, "--by-judge", "--json").stdout)
    assert {one["judge"] for one in found["judges"]} == {"tiny", "big"}
    assert {"rules", "correlation", "intervals", "verdicts"} <= set(found["judges"][0])
    assert len(found["agreement"]) == 3


@pytest.mark.parametrize(
    "option", [("--run", "x"), ("--judge", "x"), ("--convergence",), ("--retest", "x")]
)
def test_options_of_one_judge_do_not_go_with_it(tmp_path: Path, option: tuple[str, ...]) -> None:
    result = invoke("analyze", tmp_path, "--by-judge", *option)
    assert result.exit_code == 2
    assert option[0] in result.stderr
