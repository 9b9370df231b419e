"""`encore sql`: answers, formats, limits, and one clear line for a mistake."""

from __future__ import annotations

import csv
import io
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from encore.cli.sql import sql
from encore.core.errors import EncoreError, InputError
from encore.data.rating_runs import list_runs
from encore.data.study import open_study
from encore.tables.sql_query import run_query
from encore.tables.study_tables import StudyTables, study_tables
from tests.cli.invoking import Command
from tests.signals import enable_ctrl_c
from tests.tables.sql.studies import NUM_PAIRS, NUM_RULES, locked
from tests.worlds.studies import shard_path

ROOT = Path(__file__).resolve().parents[3]
ALL_PAIRS = sum(NUM_PAIRS.values())
ENDLESS = "select count(*) from range(1e9::bigint) a, range(1e9::bigint) b where a < b"

invoke = Command(sql)


@pytest.fixture(scope="module")
def found(one_run: Path) -> StudyTables:
    return study_tables(open_study(one_run))


def as_json(*arguments: object) -> Any:
    result = invoke(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def refusal(*arguments: object) -> str:
    """The one line that says what is wrong."""
    result = invoke(*arguments)
    assert result.stdout == ""
    return result.error


# --- answers --------------------------------------------------------------------------------------


def test_whatever_only_looks_at_the_tables_runs(found: StudyTables) -> None:
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
    with locked(found) as database:
        for statement in statements:
            assert database.select(statement).read_all().num_rows, statement


def test_a_query_may_come_from_the_library(one_run: Path) -> None:
    by_name = as_json("--query", "rule_ids", "--study", one_run)
    assert by_name == as_json("from rule_ids", "--study", one_run)
    assert len(by_name) == NUM_RULES
    assert "call it in a query" in refusal("--query", "weights_at", "--study", one_run)
    assert "expected one of" in refusal("--query", "nonsense", "--study", one_run)


def test_only_the_chosen_run_is_in_ratings(two_runs: Path) -> None:
    statement = "select distinct judge from ratings"
    assert as_json(statement, "--study", two_runs, "--judge", "two") == [{"judge": "two"}]
    for text in (statement, "from weights_at(2)"):
        assert "choose one with --run" in refusal(text, "--study", two_runs)
    compared = as_json("--query", "judge_comparison", "--study", two_runs)
    assert len(compared) == NUM_RULES


def test_ratings_of_shards_that_are_not_done_are_missed_aloud(
    one_run: Path, tmp_path: Path
) -> None:
    study = Path(shutil.copytree(one_run, tmp_path / "study"))
    shard_path(list_runs(study / "ratings")[0], 0).unlink()
    for statement in ("from rule_statistics", "from all_ratings"):
        result = invoke(statement, "--study", study)
        assert result.exit_code == 0
        assert "1 shard missing, damaged or failed" in result.stderr
    assert "missing" not in invoke("from pairs", "--study", study).stderr


# --- formats --------------------------------------------------------------------------------------


def test_csv_is_read_back_as_it_was(one_run: Path) -> None:
    statement = "select source, pair_id, chosen, null as nothing, prompt from pairs order by all"
    result = invoke(statement, "--study", one_run, "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    assert len(rows) == ALL_PAIRS
    for row, reference in zip(rows, as_json(statement, "--study", one_run), strict=True):
        assert row["chosen"] == reference["chosen"]
        assert row["nothing"] == ""
        assert json.loads(row["prompt"]) == reference["prompt"]


def test_values_keep_their_meaning_in_json(one_run: Path) -> None:
    [row] = as_json(
        "select sum(1)::hugeint as whole, 1.25::decimal(9, 2) as part, 'nan'::double as nan, "
        "date '2026-01-02' as day, null as nothing, [1, null] as list, {'a': 'b'} as struct, "
        "map {'k': 1} as map, '\\xff'::blob as bytes, true as yes, "
        "12345678901234567890123::hugeint as huge",
        "--study",
        one_run,
    )
    assert row == {
        "whole": 1,
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


def test_two_columns_of_one_name_are_not_lost(one_run: Path) -> None:
    statement = "select 1 as source, 2 as source"
    assert "'source' names several columns" in refusal(statement, "--study", one_run, "--json")
    result = invoke(statement, "--study", one_run, "--format", "csv")
    assert result.stdout == "source,source\n1,2\n"


def test_no_rows_are_an_empty_list_a_header_and_a_word(one_run: Path) -> None:
    statement = "select pair_id from pairs where false"
    assert as_json(statement, "--study", one_run) == []
    assert invoke(statement, "--study", one_run, "--format", "csv").stdout == "pair_id\n"
    result = invoke(statement, "--study", one_run)
    assert "pair_id" in result.stdout
    assert "no rows" in result.stderr


def test_a_table_says_what_it_leaves_out_and_aligns_numbers_right(one_run: Path) -> None:
    statement = "select i, i::varchar as t, repeat('x', 500) as x from range(5, 105) t(i)"
    result = invoke(statement, "--study", one_run, "--rows", "7")
    rows = [line.rstrip() for line in result.stdout.splitlines()[-8:-1]]
    assert [row.split()[:2] for row in rows] == [[str(n), str(n)] for n in range(5, 12)]
    short, long = rows[0], rows[-1]
    assert short.index("5") == long.index("11") + 1  # a number
    assert result.stdout.count("…") == 7
    assert "long cells are cut" in result.stderr
    assert "the first 7 rows" in result.stderr


def test_hostile_text_in_a_table_cannot_touch_the_terminal(one_run: Path) -> None:
    result = invoke("select chr(27) || '[31m' as a", "--study", one_run)
    assert "\x1b" not in result.stdout
    assert "\\x1b[31m" in result.stdout


# --- mistakes and limits --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statement", "said"),
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
def test_a_mistake_is_one_line(found: StudyTables, statement: str, said: str) -> None:
    with locked(found) as database:
        with pytest.raises(InputError) as refused:
            database.select(statement).read_all()
        assert said.casefold() in str(refused.value).casefold()
        assert "\n" not in str(refused.value)
        assert "Stack Trace" not in str(refused.value)


def test_a_mistake_in_a_late_row_is_one_line_too(one_run: Path) -> None:
    statement = (
        "select case when i = 999999 then error('too late') else 'x' end from range(1000000) t(i)"
    )
    result = invoke(statement, "--study", one_run, "--format", "csv")
    assert "too late" in result.error


def test_a_query_without_end_is_stopped_however_slowly_it_is_read(
    one_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    for statement in (ENDLESS, "from range(1e15::bigint)"):
        started = time.monotonic()
        arguments = (statement, "--study", one_run, "--timeout", "0.5")
        result = invoke(*arguments, "--format", "csv")
        assert "limit of 0.5 s" in result.error
        assert time.monotonic() - started < 30
    assert list(tmp_path.iterdir()) == []  # what it has put on disk is gone


def test_a_query_that_needs_too_much_memory_is_stopped(found: StudyTables) -> None:
    """DuckDB sees the first, but allocates the second outside of what its own limit sees."""
    cases = {
        "select list(i) from range(1e8::bigint) t(i)": "larger --memory-limit",
        "select length(repeat('x', 3000000000))": "memory limit of 200MB",
    }
    for statement, said in cases.items():
        with (
            pytest.raises(EncoreError, match=said),
            run_query(found, statement, memory="200MB") as result,
        ):
            list(result.rows())


# --- as a process ---------------------------------------------------------------------------------


@contextmanager
def as_process(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    """The command in a process of its own, as a shell starts it."""
    process = subprocess.Popen(
        [sys.executable, "-m", "encore.cli", "sql", *map(str, arguments)],
        cwd=ROOT,
        text=True,
        preexec_fn=enable_ctrl_c,  # noqa: PLW1509 - sets one signal
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def test_ctrl_c_stops_a_query_at_once_and_nothing_is_drawn_on_stdout(one_run: Path) -> None:
    with as_process(ENDLESS, "--study", one_run) as process:
        with pytest.raises(subprocess.TimeoutExpired):  # long enough for a progress bar
            process.wait(timeout=6)
        workers = [child.pid for child in psutil.Process(process.pid).children()]
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)  # without Ctrl-C it would take years
    assert [psutil.pid_exists(pid) for pid in workers] == [False]
    assert (process.returncode, out) == (130, "")


def test_a_reader_that_has_seen_enough_is_no_error(one_run: Path) -> None:
    endless = ("from range(1e9::bigint)", "--study", one_run, "--format", "csv")
    with as_process(*endless) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "range\n"
        process.stdout.close()
        assert (process.wait(timeout=60), process.stderr.read()) == (0, "")
