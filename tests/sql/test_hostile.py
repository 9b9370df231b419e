"""The locked connection of `encore sql` reads the study's tables alone and changes nothing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from encore.data.study import open_study
from encore.errors import EncoreError, InputError
from encore.query.study_database import locked_database
from encore.query.study_tables import study_tables
from encore.rating_runs import list_runs
from encore.runs import shard_path
from tests.sql.studies import ask, digest_of_tree

SECRET = "the-secret-of-another-file"  # noqa: S105 - what must not be shown

#: {out}: a file beside the study with a secret in it. {own}: a shard of the study, which exists.
#: {new}: a file that must not come to be. {folder}: where all of it lies.
FILES = [
    "copy pairs to '{new}'",
    "copy (select 1) to '{new}' (format parquet)",
    "copy (select 1) to '{own}'",
    "copy pairs from '{out}'",
    "with x as (copy (select 1) to '{new}') select * from x",
    "export database '{new}'",
    "import database '{folder}'",
    "attach '{new}' as other",
    "attach '{new}'",
    "attach if not exists '{out}' as other (read_only)",
    "install httpfs",
    "load httpfs",
    "load '{out}'",
    "select * from read_csv('{out}')",
    "select * from read_csv_auto(['{out}'])",
    "select * from read_text('{out}')",
    "select * from read_blob('{out}')",
    "select * from read_json('{out}')",
    "select * from read_parquet('{own}')",
    "select * from parquet_scan('{own}')",
    "select * from parquet_metadata('{own}')",
    "select * from parquet_schema('{own}')",
    "select * from glob('{folder}/*')",
    "select * from sniff_csv('{out}')",
    "from '{out}'",
    "from '{own}'",
    'select * from "{own}"',
    "select * from '{folder}/*.parquet'",
    "describe '{own}'",
    "summarize '{own}'",
    "select * from query_table('{own}')",
    "select * from query_table(['pairs', '{own}'])",
    "select * from query('select * from read_text(''{out}'')')",
    "select * from (select * from (select * from read_text('{out}')))",
    "select (select content from read_text('{out}'))",
    "select 1 where exists (from read_text('{out}'))",
    "select * from pairs, lateral (select * from read_text('{out}'))",
    "with pairs as (from read_text('{out}')) from pairs",
    "with x as (select '{out}' as p) select * from x, read_text(x.p)",
    "select 1 union all (select size from read_text('{out}'))",
    "select 1 /* harmless */ ; copy pairs to '{new}'",
    "select 1 -- \n; copy pairs to '{new}'",
    "select /* */ * from /* */ read_text /* */ ('{out}')",
    "select * from READ_TEXT('{out}')",
    "select * from \"read_text\"('{out}')",
    "select * from main.read_text('{out}')",
    "select * from system.main.read_text('{out}')",
    "create table other as from pairs; copy other to '{new}'",
    "create secret s (type s3, key_id 'a', secret 'b')",
    "create persistent secret s (type http, bearer_token 'b')",
    "pragma enable_profiling='json'",
    "pragma profiling_output='{new}'",
    "explain analyze copy pairs to '{new}'",
    "prepare p as copy pairs to '{new}'",
    "select * from json_execute_serialized_sql(json_serialize_sql('from read_text(''{out}'')'))",
    "call enable_logging(storage = 'file', storage_path = '{new}')",
    "select * from enable_logging(storage = 'file', storage_path = '{new}')",
    "select * from 'https://example.org/x.parquet'",
    "pivot read_text('{out}') on size using count(*)",
]

#: Each would change the database or its settings: the first word says that it is no SELECT.
CHANGES = [
    "set enable_external_access = true",
    "set memory_limit = '100GB'",
    "reset lock_configuration",
    "create or replace view pairs as select 1",
    "insert into pairs select * from pairs",
    "update ratings set rating = 1",
    "drop view pairs",
    "detach memory",
    "select 1; drop view pairs",
    "",
]
#: Settings that would open the connection again.
UNLOCK = [
    "set enable_external_access = true",
    "set lock_configuration = false",
    "set allowed_directories = ['/']",
    "set memory_limit = '100GB'",
    "reset lock_configuration",
    "reset all",
]


@pytest.fixture
def world(one_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a study and a secret, which is also the working directory."""
    shutil.copytree(one_run, tmp_path / "study")
    (tmp_path / "secret.csv").write_text(f"a,b\n{SECRET},1\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def filled(statement: str, world: Path) -> str:
    [run_dir] = list_runs(world / "study" / "ratings")
    places = {
        "{out}": world / "secret.csv",
        "{own}": shard_path(run_dir, 0),
        "{new}": world / "made.by-a-query",
        "{folder}": world,
    }
    for mark, path in places.items():
        statement = statement.replace(mark, str(path))
    return statement


@pytest.mark.parametrize("statement", FILES)
def test_the_locked_connection_opens_no_file_and_writes_none(statement: str, world: Path) -> None:
    """Also where our look at the statement's kind is left out."""
    before = digest_of_tree(world)
    with locked_database(study_tables(open_study(world / "study"))) as database:
        for run in (database.select, database.fetch, database.execute):
            try:
                told = str(run(filled(statement, world)))
            except (EncoreError, AttributeError) as error:  # no rows, no table
                told = str(error)
                assert "\n" not in told
            assert SECRET not in told
    assert digest_of_tree(world) == before


@pytest.mark.parametrize("statement", CHANGES)
def test_only_one_statement_that_reads_is_run(statement: str, world: Path) -> None:
    with (
        locked_database(study_tables(open_study(world / "study"))) as database,
        pytest.raises(InputError, match="expected one SELECT"),
    ):
        database.select(statement)


@pytest.mark.parametrize("statement", UNLOCK)
def test_the_locked_connection_keeps_its_settings(statement: str, world: Path) -> None:
    with (
        locked_database(study_tables(open_study(world / "study"))) as database,
        pytest.raises(EncoreError),
    ):
        database.execute(statement)


def test_an_honest_query_is_answered(world: Path) -> None:
    """Else all of the above would hold of a connection that refuses everything."""
    assert any("hh question 0?" in str(row) for row in ask(world / "study", "from pairs"))
