"""Benchmark tables in SQL: what `encore benchmark` left, row by row and pair by pair."""

from __future__ import annotations

from pathlib import Path

import pytest

from encore.benchmarks.stored_tables import read_tables
from encore.errors import InputError
from encore.publish.database import publish_database
from tests.benchmarks.stored_world import every_row, real_pairs, write_run
from tests.sql.studies import ask, make_pairs, rate_study
from tests.studies import create_study

KEYS = ("a" * 16, "b" * 16)


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """Two tables whose rows have the same names; the second is synthetic."""
    pairs = real_pairs()
    study = create_study(tmp_path / "study").path
    write_run(study, every_row(pairs), pairs=pairs, key=KEYS[0])
    write_run(study, every_row(pairs, seed=1), pairs=pairs, key=KEYS[1], synthetic=["all of it"])
    return study


def test_every_row_stands_there_with_its_figures(study: Path) -> None:
    sql = """
        select
            table_key, row, kind, score, ci_low, ci_high, difference, mcnemar_p, is_synthetic
        from benchmark_rows
        order by table_key, place
    """
    expected = []
    for table in read_tables(study):
        for row in table.rows:
            score, figure = row.figures[table.headline]
            found = row.difference
            compared = (None, None) if found is None else (found.difference, found.mcnemar_p)
            own = (table.folder.name, row.name, row.kind, score, figure.ci_low, figure.ci_high)
            expected.append((*own, *compared, table.folder.name == KEYS[1]))
    assert ask(study, sql) == expected
    assert len({row[1] for row in expected}) * 2 == len(expected)


def test_a_temperature_is_a_number(study: Path) -> None:
    found = ask(
        study, "select distinct row, tau from benchmark_rows where tau is not null order by tau"
    )
    assert found == [("encore (τ 0.5)", 0.5), ("encore (τ 2)", 2.0)]


def test_the_reference_is_compared_with_nothing(study: Path) -> None:
    sql = "select distinct row, reference from benchmark_rows where difference is null"
    assert ask(study, sql) == [("uniform", "uniform")]


def test_scores_follow_from_the_pairs_and_tables_do_not_mix(study: Path) -> None:
    sql = """
        select count(*), max(abs(score - mean_credit)) < 1e-9
        from benchmark_rows
        join (
            select table_key, row, avg(credit) as mean_credit, count(*) as num_pairs
            from benchmark_pairs
            group by all
        ) using (table_key, row)
        where num_pairs = num_units
    """
    # As many rows as the tables have: no row lacks its pairs, none has those of both tables.
    [(num_rows, follows)] = ask(study, sql)
    assert (num_rows,) == ask(study, "select count(*) from benchmark_rows")[0]
    assert follows


def test_one_table_is_read_by_its_key(study: Path) -> None:
    sql = "select distinct table_key from benchmark_pairs where table_key like 'b%'"
    assert ask(study, sql) == [(KEYS[1],)]


def test_a_study_without_benchmarks_has_both_tables_empty(tmp_path: Path) -> None:
    study = create_study(tmp_path / "study").path
    assert ask(study, "from benchmark_rows") == ask(study, "from benchmark_pairs") == []


def test_what_is_no_table_is_named(study: Path) -> None:
    (study / "benchmarks" / KEYS[0] / "table.json").write_text("{}", encoding="utf-8")
    with pytest.raises(InputError, match=r"table\.json: no table of a benchmark"):
        ask(study, "from pairs")


def test_a_published_database_has_them_too(tmp_path: Path) -> None:
    study = make_pairs(tmp_path)
    rate_study(study)
    pairs = real_pairs()
    rows = every_row(pairs)
    write_run(study, rows, pairs=pairs)
    published = publish_database(study, out=tmp_path / "study.duckdb")
    assert published.tables["benchmark_rows"] == len(rows)
    assert published.tables["benchmark_pairs"] == len(rows) * pairs.num_pairs
