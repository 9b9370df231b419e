"""The tables of a study hold everything that its files say, and nothing that does not validate."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from encore.data.study import open_study
from encore.errors import EncoreError, InputError
from encore.query.study_tables import TABLE_DOCS, StudyTables, study_tables
from encore.rating_runs import list_runs
from encore.runs import shard_path
from tests.sql.studies import NUM_PAIRS, NUM_RULES, SHARD_SIZE, make_pairs, rate_study
from tests.studies import create_study

ALL_PAIRS = sum(NUM_PAIRS.values())
NUM_RATINGS = ALL_PAIRS * 2 * NUM_RULES


def tables_of(study: Path, **choice: Any) -> StudyTables:
    return study_tables(open_study(study), **choice)


def rows(found: StudyTables, name: str) -> list[dict[str, Any]]:
    table = found.tables[name]
    return (table if isinstance(table, pa.Table) else table.to_table()).to_pylist()


@pytest.fixture
def copied(one_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(one_run, tmp_path / "copied"))


def test_every_documented_table_is_there_with_its_columns(one_run: Path) -> None:
    found = tables_of(one_run)
    assert found.tables.keys() == TABLE_DOCS.keys()
    for name, doc in TABLE_DOCS.items():
        assert found.tables[name].schema.names == doc.schema.names


def test_the_counts_add_up(one_run: Path) -> None:
    found = tables_of(one_run)
    assert len(rows(found, "pairs")) == ALL_PAIRS
    assert len(rows(found, "ratings")) == len(rows(found, "all_ratings")) == NUM_RATINGS
    assert len(rows(found, "rules")) == NUM_RULES
    shards = rows(found, "shards")
    assert [row["num_pairs"] for row in shards] == [SHARD_SIZE, SHARD_SIZE, ALL_PAIRS % SHARD_SIZE]
    assert sum(row["num_ratings"] + row["num_nulls"] for row in shards) == NUM_RATINGS
    assert all(len(row["sha256"]) == 64 for row in shards)


def test_what_was_set_aside_is_there_with_its_reason(one_run: Path) -> None:
    found = tables_of(one_run)
    [row] = rows(found, "set_aside")
    assert (row["source"], row["record"]) == ("pku", 3)
    assert row["reason"]
    sources = {row["source"]: row for row in rows(found, "sources")}
    assert {name: row["num_kept"] for name, row in sources.items()} == NUM_PAIRS
    assert sources["pku"]["num_set_aside"] == 1
    assert json.loads(sources["hh"]["origins"])[0]["name"] == "hh.jsonl"


def test_a_run_is_described_by_its_identity(one_run: Path) -> None:
    [row] = rows(tables_of(one_run), "runs")
    identity = json.loads(row["identity"])
    assert (row["judge"], row["judge_backend"]) == ("one", "scripted")
    assert row["rules_sha256"] == identity["rules_sha256"]
    assert (row["num_shards"], row["num_done"], row["is_complete"]) == (3, 3, True)


def test_a_damaged_shard_is_listed_and_not_read(copied: Path) -> None:
    [run_dir] = list_runs(copied / "ratings")
    path = shard_path(run_dir, 1)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    found = tables_of(copied)
    states = {row["shard"]: row for row in rows(found, "shards")}
    assert [states[index]["state"] for index in range(3)] == ["done", "damaged", "done"]
    assert states[1]["num_ratings"] is states[1]["sha256"] is None
    assert len(rows(found, "ratings")) == NUM_RATINGS - SHARD_SIZE * 2 * NUM_RULES


def test_files_that_only_look_like_shards_are_not_read(copied: Path) -> None:
    [run_dir] = list_runs(copied / "ratings")
    shutil.copy(shard_path(run_dir, 0), run_dir / "shard-00099.parquet")
    shutil.copy(shard_path(run_dir, 0), run_dir / "_tmp.parquet")
    assert len(rows(tables_of(copied), "all_ratings")) == NUM_RATINGS


def test_a_changed_pairs_file_is_refused(copied: Path) -> None:
    path = copied / "pairs" / "hh.parquet"
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(InputError, match="changed since it was ingested"):
        tables_of(copied)


def test_a_line_that_was_not_set_aside_is_named(copied: Path) -> None:
    path = copied / "pairs" / "pku.set-aside.jsonl"
    path.write_text(path.read_text() + '{"source": "pku"}\n')
    with pytest.raises(InputError, match="line 2"):
        tables_of(copied)


def test_half_a_surrogate_pair_in_an_excerpt_is_shown_as_an_escape(copied: Path) -> None:
    path = copied / "pairs" / "pku.set-aside.jsonl"
    record = json.loads(path.read_text())
    path.write_text(json.dumps(record | {"excerpt": "\ud83d"}) + "\n")
    [row] = rows(tables_of(copied), "set_aside")
    assert row["excerpt"] == "\\ud83d"


def test_of_several_runs_ratings_are_those_of_the_chosen_one(two_runs: Path) -> None:
    undecided = tables_of(two_runs)
    assert "ratings" not in undecided.tables
    assert len(rows(undecided, "all_ratings")) == 2 * NUM_RATINGS
    with pytest.raises(InputError, match=r"2 runs; choose one with --run .*judge one.*judge two"):
        undecided.the_run()
    chosen = tables_of(two_runs, judge="two")
    assert {row["judge"] for row in rows(chosen, "ratings")} == {"two"}
    key = chosen.the_run().manifest.run_key
    assert tables_of(two_runs, run=key[:10]).the_run().manifest.run_key == key


@pytest.mark.parametrize("choice", [{"run": "zzz"}, {"judge": "three"}, {"run": ""}])
def test_a_choice_that_names_no_single_run_is_refused(two_runs: Path, choice: Any) -> None:
    with pytest.raises(InputError, match=r"(no|2) runs match --.*judge one"):
        tables_of(two_runs, **choice)


def test_a_study_without_ratings_has_empty_tables(tmp_path: Path) -> None:
    found = tables_of(make_pairs(tmp_path))
    assert rows(found, "ratings") == rows(found, "runs") == []
    with pytest.raises(InputError, match="no ratings yet; run `encore rate`"):
        found.the_run()
    empty = tables_of(create_study(tmp_path / "empty").path)
    assert all(rows(empty, name) == [] for name in TABLE_DOCS)


def test_a_run_that_cannot_be_believed_is_named(copied: Path) -> None:
    [run_dir] = list_runs(copied / "ratings")
    (run_dir / "run.json").write_text("{}")
    with pytest.raises(EncoreError, match=r"run\.json is damaged"):
        tables_of(copied)


def test_the_demos_sources_and_whatever_is_labelled_so_are_synthetic(
    tmp_path: Path, one_run: Path
) -> None:
    study = make_pairs(tmp_path, prefix="synthetic-")
    rate_study(study)
    assert tables_of(study).synthetic_parts == ("source synthetic-hh", "source synthetic-pku")
    assert tables_of(one_run).synthetic_parts == ()
