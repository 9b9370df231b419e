"""The locked connection of `encore sql` reads only the study's tables and changes nothing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from encore.core.errors import EncoreError, InputError
from encore.data.rating_runs import list_runs
from encore.data.study import open_study
from encore.tables.study_tables import StudyTables, study_tables
from tests.tables.sql.studies import digest_of_tree, locked
from tests.worlds.studies import shard_path

SECRET = "the-secret-of-another-file"  # noqa: S105 - no query may return it

#: {out} is a file beside the study with a secret, {own} a shard of the study, {new} a path that no
#: statement may create, {folder} the folder of all of them.
HOSTILE = [
    "copy pairs to '{new}'",
    "copy pairs from '{out}'",
    "export database '{new}'",
    "attach '{new}' as other",
    "install httpfs",
    "load '{out}'",
    "select * from read_csv('{out}')",
    "select * from read_text('{out}')",
    "select * from read_blob('{out}')",
    "select * from read_parquet('{own}')",
    "select * from glob('{folder}/*')",
    "from '{out}'",
    "select * from query_table(['pairs', '{own}'])",
    "select * from query('select * from read_text(''{out}'')')",
    "select * from pairs, lateral (select * from read_text('{out}'))",
    "select 1 -- \n; copy pairs to '{new}'",
    "select /* */ * from /* */ system.main.READ_TEXT /* */ ('{out}')",
    "create table other as from pairs; copy other to '{new}'",
    "create persistent secret s (type http, bearer_token 'b')",
    "pragma profiling_output='{new}'",
    "prepare p as copy pairs to '{new}'",
    "select * from json_execute_serialized_sql(json_serialize_sql('from read_text(''{out}'')'))",
    "call enable_logging(storage = 'file', storage_path = '{new}')",
    "select * from 'https://example.org/x.parquet'",
]
#: Statements that would change the tables.
CHANGES = [
    "create or replace view pairs as select 1",
    "insert into pairs select * from pairs",
    "update ratings set rating = 1",
    "drop view pairs",
    "select 1; drop view pairs",
    "detach memory",
    "",
]
#: Statements that would unlock the connection.
SETTINGS = [
    "set enable_external_access = true",
    "set lock_configuration = false",
    "set allowed_directories = ['/']",
    "set memory_limit = '100GB'",
    "reset lock_configuration",
]


@pytest.fixture(scope="module")
def world(one_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a folder with a study and a secret."""
    folder = tmp_path_factory.mktemp("world")
    shutil.copytree(one_run, folder / "study")
    (folder / "secret.csv").write_text(f"a,b\n{SECRET},1\n")
    return folder


@pytest.fixture(scope="module")
def tables(world: Path) -> StudyTables:
    return study_tables(open_study(world / "study"))


@pytest.mark.parametrize("statement", HOSTILE)
def test_the_locked_connection_opens_no_file_and_writes_none(statement, world, tables):
    """`fetch` and `execute` do not check the kind of the statement; the lock holds for them too."""
    [run_dir] = list_runs(world / "study" / "ratings")
    for mark, path in {
        "{out}": world / "secret.csv",
        "{own}": shard_path(run_dir, 0),
        "{new}": world / "made.by-a-query",
        "{folder}": world,
    }.items():
        statement = statement.replace(mark, str(path))
    digest = digest_of_tree(world)
    with locked(tables) as database:
        for run in (database.select, database.fetch, database.execute):
            try:
                text = str(run(statement))
            except (EncoreError, AttributeError) as error:  # no rows, no table
                text = str(error)
                assert "\n" not in text
            assert SECRET not in text
    assert digest_of_tree(world) == digest


def test_statements_that_change_tables_or_settings_are_refused(tables):
    with locked(tables) as database:
        for statement in CHANGES + SETTINGS:
            with pytest.raises(InputError, match="expected one SELECT"):
                database.select(statement)
        for statement in SETTINGS:
            with pytest.raises(EncoreError):
                database.execute(statement)
        # The connection does not simply refuse everything.
        assert "hh question 0?" in str(database.fetch("from pairs"))
