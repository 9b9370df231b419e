"""`encore sql` reads nothing but the study's tables and changes nothing: two walls, each tested.

The first wall looks at the query and speaks plainly. The second is the locked connection: what
gets past the first, because a new DuckDB has a new function, still opens no file.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from encore.errors import EncoreError
from encore.query.shell import StudyShell
from encore.shards import list_runs, shard_path
from tests.sql.studies import app, digest_of_tree

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

#: Nothing here opens a file; each would change the database, its settings, or tell of the machine.
OTHERS = [
    "set enable_external_access = true",
    "set lock_configuration = false",
    "set allowed_directories = ['/']",
    "set memory_limit = '100GB'",
    "set variable x = 1",
    "reset lock_configuration",
    "reset all",
    "pragma database_list",
    "pragma version",
    "select 1; select 2",
    "select 1; drop view pairs",
    "create table t as select 1",
    "create or replace view pairs as select 1",
    "create macro f(x) as x",
    "create or replace macro weights_at(tau) as table select 1",
    "insert into pairs select * from pairs",
    "update ratings set rating = 1",
    "delete from ratings",
    "truncate ratings",
    "merge into ratings using pairs on true when matched then delete",
    "with x as (delete from ratings returning *) select * from x",
    "with x as (insert into runs select * from runs returning *) from x",
    "alter table runs add column x int",
    "drop view pairs",
    "use memory",
    "detach memory",
    "begin transaction",
    "checkpoint",
    "force checkpoint",
    "vacuum",
    "call pragma_version()",
    "execute p",
    "comment on view pairs is 'x'",
    "select getenv('HOME')",
    "select current_setting('temp_directory')",
    "select * from duckdb_settings()",
    "select * from duckdb_secrets()",
    "select * from duckdb_functions()",
    "select * from duckdb_views",
    "select * from information_schema.tables",
    "select * from pg_catalog.pg_views",
    "select * from sqlite_master",
    "select * from query('select 1')",
    "select * from query_table('duckdb_settings')",
    "select * from pragma_database_list()",
    "select * from arrow_scan(1, 2, 3)",
    "select * from python_map_function(1)",
    "select * from sql_auto_complete('sel')",
    "select * from which_secret('a', 's3')",
    "select write_log('x')",
    "select nextval('s')",
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


@pytest.mark.parametrize("statement", [*FILES, *OTHERS])
def test_a_hostile_query_is_refused_in_one_line_and_changes_nothing(
    statement: str, world: Path
) -> None:
    before = digest_of_tree(world)
    runner = CliRunner()
    result = runner.invoke(
        app, ["sql", filled(statement, world), "--study", "study", "--format", "csv"]
    )
    assert isinstance(result.exception, EncoreError), result.stdout
    assert "\n" not in str(result.exception)
    assert result.stdout == ""
    assert SECRET not in f"{result.exception}{result.stderr}"
    assert digest_of_tree(world) == before


@pytest.mark.parametrize("statement", FILES)
def test_the_locked_connection_itself_opens_no_file(statement: str, world: Path) -> None:
    before = digest_of_tree(world)
    with StudyShell(world / "study") as shell:
        told = ""
        try:
            told = str(shell.database.fetch(filled(statement, world)).to_pylist())
        except (EncoreError, AttributeError) as error:  # a statement without rows has no table
            told = str(error)
    assert SECRET not in told
    assert digest_of_tree(world) == before


SETTINGS = [
    statement
    for statement in OTHERS
    if statement.startswith(("set ", "reset ")) and "variable" not in statement
]


@pytest.mark.parametrize("statement", SETTINGS)
def test_the_locked_connection_keeps_its_settings(statement: str, world: Path) -> None:
    with StudyShell(world / "study") as shell, pytest.raises(EncoreError):
        shell.database.execute(statement)


def test_the_walls_let_an_honest_query_through(world: Path) -> None:
    """Else all of the above would hold of a command that refuses everything."""
    before = digest_of_tree(world)
    result = CliRunner().invoke(app, ["sql", "from pairs", "--study", "study", "--format", "csv"])
    assert result.exit_code == 0
    assert "hh question 0?" in result.stdout
    assert digest_of_tree(world) == before
