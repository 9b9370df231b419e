"""A published database has the whole study and its provenance, and is written completely or not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import duckdb
import pytest

from encore.core.errors import InputError
from encore.data.rating_runs import list_runs
from encore.tables.publish import publish
from encore.tables.query_files import query_files
from encore.tables.study_tables import table_docs
from tests.golden.command_line import encore
from tests.tables.sql.studies import NUM_PAIRS, NUM_RULES, comparable, make_pairs, rate_study
from tests.tables.sql.studies import ask as ask_in_study
from tests.worlds.studies import shard_path

pytestmark = pytest.mark.services

NUM_RATINGS = sum(NUM_PAIRS.values()) * 2 * NUM_RULES


def ask(path: Path, sql: str) -> list[tuple[Any, ...]]:
    with duckdb.connect(path, read_only=True) as connection:
        return connection.execute(sql).fetchall()


@pytest.fixture(scope="module")
def published(one_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("published") / "study.duckdb"
    publish(one_run, out)
    return out


def test_the_database_has_tables_with_the_rows_of_the_study(published, one_run):
    kinds = dict(ask(published, "select table_name, table_type from information_schema.tables"))
    tables = {name for name, kind in kinds.items() if kind == "BASE TABLE"}
    assert tables == {*table_docs(), "other_ratings", "provenance"} - {"all_ratings"}
    for name in table_docs():
        expected = comparable(ask_in_study(one_run, f"from {name}"))
        assert comparable(ask(published, f"from {name}")) == expected, name


def test_every_query_gives_the_rows_that_it_gives_in_the_study(published, one_run):
    for file in query_files():
        arguments = {"macro": "(2)", "function": "(2, 1, 1)", "query": ""}[file.kind]
        verb = "select" if file.kind == "function" else "from"
        text = f"{verb} {file.name}{arguments}"
        expected = comparable(ask_in_study(one_run, text))
        assert comparable(ask(published, text)) == expected, file.name
        if not file.call:
            assert comparable(ask(published, file.text)) == expected, file.name


@pytest.mark.parametrize("name", ["it's.duckdb", 'a "b" né;--.db'])
def test_a_database_of_any_name_can_be_renamed_and_attached(one_run, tmp_path, name):
    publish(one_run, tmp_path / name, is_dataset=False)
    moved = (tmp_path / name).rename(tmp_path / "else where.db")
    with duckdb.connect() as connection:
        connection.execute(f"attach '{moved}' as published (read_only)")
        connection.execute("set enable_external_access = false")
        rows = connection.execute("from published.rule_statistics").fetchall()
        assert len(rows) == NUM_RULES * 3  # two sources and all
        connection.execute("use published")
        assert len(connection.execute("from weights_at(2)").fetchall()) == NUM_RULES


def test_the_storage_is_of_duckdb_1_4_and_tables_have_comments(published):
    [(tags,)] = ask(published, "select tags from duckdb_databases() where database_name = 'study'")
    assert tags["storage_version"].startswith("v1.4")
    comments = dict(ask(published, "select table_name, comment from duckdb_tables()"))
    assert comments["pairs"] == table_docs()["pairs"].description
    views = dict(ask(published, "select view_name, comment from duckdb_views() where not internal"))
    assert "one row per (source, rule_id)" in views["rule_accuracy"]


def test_provenance_has_keys_digests_versions_and_synthetic_parts(published, one_run, tmp_path):
    rows = ask(published, "select about, name, value from provenance")
    facts = {(subject, name): value for subject, name, value in rows}
    [run_dir] = list_runs(one_run / "ratings")
    identity = json.loads((run_dir / "run.json").read_text())["identity"]
    assert facts["publication", "run_of_ratings"] == run_dir.name
    assert facts["publication", "is_synthetic"] == "false"
    assert facts["publication", "version of duckdb"] == duckdb.__version__
    assert facts["publication", "data_sha256"] == identity["data_sha256"]
    assert facts[f"run {run_dir.name}", "rules_sha256"] == identity["rules_sha256"]
    manifest = json.loads((one_run / "pairs" / "hh.manifest.json").read_text())
    assert facts["source hh", "parquet_sha256"] == manifest["parquet_sha256"]
    study = make_pairs(tmp_path, prefix="synthetic-")
    rate_study(study)
    result = publish(study, tmp_path / "s.duckdb")
    assert result.is_synthetic
    rows = ask(tmp_path / "s.duckdb", "select value from provenance where name = 'is_synthetic'")
    assert rows == [("true",)]


def test_the_chosen_run_and_all_other_runs_are_published(two_runs, tmp_path):
    out = tmp_path / "two.duckdb"
    with pytest.raises(InputError, match="choose one with --run"):
        publish(two_runs, out)
    assert not out.exists()
    publish(two_runs, out, judge="two")
    count = "select count(*), count(distinct judge), max(judge) from "
    assert ask(out, count + "ratings") == [(NUM_RATINGS, 1, "two")]
    assert ask(out, count + "other_ratings") == [(NUM_RATINGS, 1, "one")]
    assert ask(out, count + "all_ratings") == [(2 * NUM_RATINGS, 2, "two")]
    assert len(ask(out, "from judge_comparison")) == NUM_RULES


def test_the_command_publishes_an_incomplete_run_as_study_duckdb_with_code_3(
    one_run, tmp_path, monkeypatch
):
    study = Path(shutil.copytree(one_run, tmp_path / "study"))
    shard_path(list_runs(study / "ratings")[0], 1).unlink()
    monkeypatch.chdir(tmp_path)
    result = encore("publish", study, "--json")
    assert result.code == 3
    assert "1 of 3 shards missing" in result.error
    database = Path("study.duckdb")
    assert ask(database, "select num_missing from shard_status") == [(1,)]
    report = json.loads(result.out)
    assert report["dataset"] is None
    assert report["database"]["path"] == "study.duckdb"
    assert [(report["database"]["tables"]["ratings"],)] == ask(
        database, "select count(*) from ratings"
    )
    assert report["database"]["num_bytes"] == database.stat().st_size
    assert not report["database"]["is_synthetic"]
