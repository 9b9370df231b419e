"""`encore sql`: answers, formats, limits, and one clear line for each mistake."""

from __future__ import annotations

import csv
import io
import json
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from encore.core.errors import EncoreError, InputError
from encore.data.rating_runs import list_runs
from encore.data.study import open_study
from encore.tables.sql_query import run_query
from encore.tables.study_tables import StudyTables, study_tables
from tests.golden.command_line import encore
from tests.signals import encore_process
from tests.tables.sql.studies import NUM_PAIRS, NUM_RULES, locked
from tests.worlds.servers import wait_until
from tests.worlds.studies import shard_path

pytestmark = pytest.mark.services

ALL_PAIRS = sum(NUM_PAIRS.values())
ENDLESS = "select count(*) from range(1e9::bigint) a, range(1e9::bigint) b where a < b"


@pytest.fixture(scope="module")
def tables(one_run: Path) -> StudyTables:
    return study_tables(open_study(one_run))


def as_json(*arguments: object) -> Any:
    return encore("sql", *arguments, "--json").json


# --- answers --------------------------------------------------------------------------------------


def test_every_kind_of_select_runs(tables):
    statements = [
        "values (1)",
        "from (select 1 as a)",
        "with recursive n as (select 1 as i union all select i + 1 from n where i < 3) from n",
        "select unnest([1, 2]) as a",
        "select p.pair_id from pairs as p inner join ratings as r using (source, pair_id) limit 1",
        "describe pairs",
        "summarize ratings",
        "pivot runs on judge in ('one') using count(*)",
        "pivot runs on judge using count(*)",
        "explain select * from pairs",
        "select count(*) as n from rule_statistics where source is null;",
        "from weights_at(0.5) -- the macro",
        "/* a comment; with a semicolon */ select ';' as a",
    ]
    with locked(tables) as database:
        for statement in statements:
            assert database.select(statement).read_all().num_rows, statement


def test_a_query_may_come_from_the_library(one_run):
    by_name = as_json(one_run, "--query", "rule_ids")
    assert by_name == as_json(one_run, "from rule_ids")
    assert len(by_name) == NUM_RULES


def test_a_query_may_be_longer_than_a_path(one_run, monkeypatch):
    statement = f"select 1 as one -- {'long ' * 100}"
    assert as_json(one_run, statement) == [{"one": 1}]
    assert "the study comes first" in encore("sql", statement, one_run).error
    monkeypatch.chdir(one_run)
    assert as_json(statement) == [{"one": 1}]


def test_only_the_chosen_run_is_in_ratings(two_runs):
    statement = "select distinct judge from ratings"
    assert as_json(two_runs, statement, "--judge-name", "two") == [{"judge": "two"}]
    for text in (statement, "from weights_at(2)"):
        assert "choose one with --run" in encore("sql", two_runs, text).error
    compared = as_json(two_runs, "--query", "judge_comparison")
    assert len(compared) == NUM_RULES


def test_unfinished_shards_of_the_read_tables_cause_a_warning(one_run, tmp_path):
    study = Path(shutil.copytree(one_run, tmp_path / "study"))
    shard_path(list_runs(study / "ratings")[0], 0).unlink()
    for statement in ("from rule_statistics", "from all_ratings"):
        result = encore("sql", study, statement)
        assert result.code == 0
        assert "1 shard missing, damaged or failed" in result.err
    assert "missing" not in encore("sql", study, "from pairs").err


# --- formats --------------------------------------------------------------------------------------


def test_csv_keeps_texts_nulls_and_nested_values(one_run):
    statement = "select source, pair_id, chosen, null as nothing, prompt from pairs order by all"
    result = encore("sql", one_run, statement, "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(result.out)))
    assert len(rows) == ALL_PAIRS
    for row, reference in zip(rows, as_json(one_run, statement), strict=True):
        assert row["chosen"] == reference["chosen"]
        assert row["nothing"] == ""
        assert json.loads(row["prompt"]) == reference["prompt"]


def test_values_keep_their_meaning_in_json(one_run):
    [row] = as_json(
        one_run,
        "select sum(1)::hugeint as integer, 1.25::decimal(9, 2) as part, 'nan'::double as nan, "
        "date '2026-01-02' as day, null as nothing, [1, null] as list, {'a': 'b'} as struct, "
        "map {'k': 1} as map, '\\xff'::blob as bytes, true as yes, "
        "12345678901234567890123::hugeint as huge",
    )
    assert row == {
        "integer": 1,
        "part": 1.25,
        "nan": "nan",
        "day": "2026-01-02",
        "nothing": None,
        "list": [1, None],
        "struct": {"a": "b"},
        "map": [["k", 1]],
        "bytes": "ff",
        "yes": True,
        "huge": 12345678901234567890123,
    }


def test_columns_of_the_same_name_are_refused_in_json_and_kept_in_csv(one_run):
    statement = "select 1 as source, 2 as source"
    error = encore("sql", one_run, statement, "--json").error
    assert "'source' names several columns" in error
    result = encore("sql", one_run, statement, "--format", "csv")
    assert result.out == "source,source\n1,2\n"


def test_a_result_without_rows_is_valid_in_every_format(one_run):
    statement = "select pair_id from pairs where false"
    assert as_json(one_run, statement) == []
    assert encore("sql", one_run, statement, "--format", "csv").out == "pair_id\n"
    result = encore("sql", one_run, statement)
    assert "pair_id" in result.out
    assert "no rows" in result.err


def test_a_table_reports_cut_rows_and_cells_and_aligns_numbers_right(one_run):
    statement = "select i, i::varchar as t, repeat('x', 500) as x from range(5, 105) t(i)"
    result = encore("sql", one_run, statement, "--rows", "7")
    rows = [line.rstrip() for line in result.out.splitlines()[-8:-1]]
    assert [row.split()[:2] for row in rows] == [[str(n), str(n)] for n in range(5, 12)]
    short, long = rows[0], rows[-1]
    assert short.index("5") == long.index("11") + 1  # a number
    assert result.out.count("…") == 7
    assert "long cells are cut" in result.err
    assert "the first 7 rows" in result.err


def test_control_characters_in_a_table_are_escaped(one_run):
    result = encore("sql", one_run, "select chr(27) || '[31m' as a")
    assert "\x1b" not in result.out
    assert "\\x1b[31m" in result.out


# --- mistakes and limits --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("selec 1", "syntax error"),
        ("/* only a comment */", "expected one SELECT"),
        ("select no_such from pairs", "no_such"),
        ("select * from pears", "pairs"),
        ("select 'x'::integer", "Conversion Error"),
        ("select $1", "parameter"),
        ("select error('my own words') from pairs", "my own words"),
        ("select " + "(" * 9000 + "1" + ")" * 9000, ""),
    ],
)
def test_a_mistake_is_one_line(tables, statement, message):
    with locked(tables) as database, pytest.raises(InputError) as caught:
        database.select(statement).read_all()
    assert message.casefold() in str(caught.value).casefold()
    assert "\n" not in str(caught.value)
    assert "Stack Trace" not in str(caught.value)


def test_an_error_in_a_late_row_is_one_line(one_run):
    statement = (
        "select case when i = 999999 then error('too late') else 'x' end from range(1000000) t(i)"
    )
    assert "too late" in encore("sql", one_run, statement, "--format", "csv").error


def test_an_endless_query_is_stopped_at_its_time_limit_and_leaves_no_file(
    one_run, tmp_path, monkeypatch
):
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    for statement in (ENDLESS, "from range(1e15::bigint)"):
        started = time.monotonic()
        arguments = (one_run, statement, "--timeout", "0.5", "--format", "csv")
        assert "limit of 0.5 s" in encore("sql", *arguments).error
        assert time.monotonic() - started < 30
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("select list(i) from range(1e8::bigint) t(i)", "larger --memory-limit"),
        # DuckDB's own limit does not count this value.
        ("select length(repeat('x', 3000000000))", "memory limit of 200MB"),
    ],
)
def test_a_query_that_needs_too_much_memory_is_stopped(tables, statement, message):
    with (
        pytest.raises(EncoreError, match=message),
        run_query(tables, statement, memory="200MB") as result,
    ):
        list(result.rows())


# --- as a process ---------------------------------------------------------------------------------


def test_ctrl_c_stops_a_query_at_once_and_stdout_stays_empty(one_run):
    with encore_process("sql", one_run, ENDLESS) as process:
        workers = wait_until(psutil.Process(process.pid).children, seconds=60)
        with pytest.raises(subprocess.TimeoutExpired):  # long enough for a progress bar
            process.wait(timeout=6)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)  # the query itself would take years
    assert not any(worker.is_running() for worker in workers)
    assert (process.returncode, out) == (130, "")


def test_a_reader_that_closes_the_pipe_early_is_no_error(one_run):
    endless = (one_run, "from range(1e9::bigint)", "--format", "csv")
    with encore_process("sql", *endless) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "range\n"
        process.stdout.close()
        assert (process.wait(timeout=60), process.stderr.read()) == (0, "")
