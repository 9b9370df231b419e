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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from encore.cli.sql import sql
from encore.data.study import open_study
from encore.errors import EncoreError, InputError
from encore.query.query_files import query_files
from encore.query.sql_query import named_query, run_query
from encore.query.study_database import locked_database
from encore.query.study_tables import TABLE_DOCS, study_tables
from encore.rating_runs import list_runs
from encore.runs import shard_path
from tests.cli.invoking import Command, Result
from tests.signals import hear_ctrl_c
from tests.sql.studies import NUM_PAIRS, NUM_RULES, ask, comparable

ROOT = Path(__file__).resolve().parents[2]
ALL_PAIRS = sum(NUM_PAIRS.values())
ENDLESS = "select count(*) from range(1e9::bigint) a, range(1e9::bigint) b where a < b"


def invoke(*arguments: object) -> Result:
    return Command(sql)(*arguments)


def as_json(*arguments: object) -> Any:
    result = invoke(*arguments, "--json")
    assert result.exit_code == 0, result.exception
    return json.loads(result.stdout)


def refusal(*arguments: object) -> str:
    """The one line that says what is wrong."""
    result = invoke(*arguments)
    assert isinstance(result.exception, EncoreError), result.stdout
    assert result.stdout == ""
    assert "\n" not in str(result.exception)
    return str(result.exception)


# --- answers --------------------------------------------------------------------------------------


def test_a_select_over_any_table_answers(one_run: Path) -> None:
    for name, doc in TABLE_DOCS.items():
        if name in ("head_scores", "benchmark_rows", "benchmark_pairs"):
            continue  # nothing is scored in this study
        with locked_database(study_tables(open_study(one_run))) as database:
            table = database.select(f"from {name}").read_all()
        assert table.num_rows > 0
        assert table.column_names == doc.schema.names


@pytest.mark.parametrize(
    "statement",
    [
        "select 1 as a",
        "values (1)",
        "from (select 1 as a)",
        "with mine as (select 1 as a) select a from mine",
        "with recursive n as (select 1 as i union all select i + 1 from n where i < 3) from n",
        "select 1 as a union all select 2",
        "select * from range(3)",
        "select unnest([1, 2]) as a",
        "select p.pair_id from pairs as p inner join ratings as r using (source, pair_id) limit 1",
        "select (select count(*) from pairs) as n",
        "describe pairs",
        "summarize ratings",
        "pivot runs on judge in ('one') using count(*)",
        "pivot runs on judge using count(*)",
        "explain select * from pairs",
        "select count(*) as n from rule_statistics where source is null;",
        "from weights_at(0.5) -- the macro",
        "/* a comment; with a semicolon */ select 1 as a",
        "select ';' as a",
    ],
)
def test_whatever_only_looks_at_the_tables_runs(one_run: Path, statement: str) -> None:
    assert ask(one_run, statement)


def test_every_query_of_the_library_runs_by_name_and_as_a_view(one_run: Path) -> None:
    for file in query_files():
        if file.is_macro:
            assert "call it in a query" in refusal("--query", file.name, "--study", one_run)
            continue
        by_name = ask(one_run, named_query(file.name))
        as_view = ask(one_run, f"from {file.name}")
        assert comparable(as_view) == comparable(by_name), file.name


def test_a_query_may_come_from_a_file_or_standard_input(
    one_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "q.sql"
    path.write_text("-- How many?\nselect count(*) as n\nfrom pairs;\n", encoding="utf-8")
    assert as_json("--file", path, "--study", one_run) == [{"n": ALL_PAIRS}]
    monkeypatch.setattr(sys, "stdin", io.StringIO(path.read_text()))
    result = invoke("--file", "-", "--json", "--study", one_run)
    assert json.loads(result.stdout) == [{"n": ALL_PAIRS}]
    assert "cannot be read" in refusal("--file", tmp_path / "none.sql", "--study", one_run)


def test_only_the_chosen_run_is_in_ratings(two_runs: Path) -> None:
    statement = "select distinct judge from ratings"
    assert as_json(statement, "--study", two_runs, "--judge", "two") == [{"judge": "two"}]
    for text in (statement, "from rule_statistics", "from weights_at(2)"):
        assert "choose one with --run" in refusal(text, "--study", two_runs)
    both = as_json("select distinct judge from all_ratings order by 1", "--study", two_runs)
    assert both == [{"judge": "one"}, {"judge": "two"}]
    compared = as_json("--query", "judge_comparison", "--study", two_runs)
    assert len(compared) == NUM_RULES


def test_ratings_of_shards_that_are_not_done_are_missed_aloud(
    one_run: Path, tmp_path: Path
) -> None:
    study = Path(shutil.copytree(one_run, tmp_path / "study"))
    shard_path(list_runs(study / "ratings")[0], 0).unlink()
    result = invoke("from rule_statistics", "--study", study)
    assert result.exit_code == 0
    assert "1 shards are missing" in result.stderr
    assert "missing" not in invoke("from pairs", "--study", study).stderr


# --- formats --------------------------------------------------------------------------------------


def test_csv_is_read_back_as_it_was(one_run: Path) -> None:
    statement = "select source, pair_id, chosen, null as nothing, prompt from pairs order by all"
    result = invoke(statement, "--study", one_run, "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    assert len(rows) == ALL_PAIRS
    expected = as_json(statement, "--study", one_run)
    for row, reference in zip(rows, expected, strict=True):
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
    statement = "select p.source, r.source from pairs as p, sources as r limit 1"
    assert "'source' names several columns" in refusal(statement, "--study", one_run, "--json")
    result = invoke(statement, "--study", one_run, "--format", "csv")
    assert result.stdout.splitlines()[0] == "source,source"


def test_no_rows_are_an_empty_list_a_header_and_a_word(one_run: Path) -> None:
    statement = "select pair_id from pairs where false"
    assert as_json(statement, "--study", one_run) == []
    assert invoke(statement, "--study", one_run, "--format", "csv").stdout == "pair_id\n"
    result = invoke(statement, "--study", one_run)
    assert "pair_id" in result.stdout
    assert "no rows" in result.stderr


def test_a_table_says_what_it_leaves_out(one_run: Path) -> None:
    result = invoke("select i, repeat('x', 500) as x from range(9) t(i)", "--study", one_run)
    assert result.stdout.count("…") == 9
    assert "long cells are cut" in result.stderr
    result = invoke("from range(100)", "--study", one_run, "--rows", "7")
    assert "the first 7 rows" in result.stderr
    assert " 6 " in result.stdout
    assert " 7 " not in result.stdout


def test_a_row_that_is_too_wide_for_a_table_is_shown_line_by_line(one_run: Path) -> None:
    columns = ", ".join(f"repeat('{n}', 60) as column_{n}" for n in range(9))
    lines = invoke(f"select {columns}", "--study", one_run).stdout.splitlines()
    assert lines[0] == "row 1"
    assert lines[-1] == f"  column_8  {'8' * 60}"


def test_numbers_stand_to_the_right_and_text_to_the_left(one_run: Path) -> None:
    shown = invoke("from (values ('a', 'b', 1), ('a', 'bb', 22)) t(x, y, z)", "--study", one_run)
    rows = [line.rstrip() for line in shown.stdout.splitlines()[-3:-1]]
    assert [row.split() for row in rows] == [["a", "b", "1"], ["a", "bb", "22"]]
    assert rows[0].index("b") == rows[1].index("bb")
    assert rows[0].index("1") == rows[1].index("22") + 1


def test_hostile_text_in_a_table_cannot_touch_the_terminal(one_run: Path) -> None:
    result = invoke("select chr(27) || '[31m' as a", "--study", one_run)
    assert "\x1b" not in result.stdout
    assert "\\x1b[31m" in result.stdout


def test_the_list_describes_tables_and_queries_without_a_study() -> None:
    listing = as_json("--list")
    assert [table["name"] for table in listing["tables"]] == list(TABLE_DOCS)
    assert [query["name"] for query in listing["queries"]] == [file.name for file in query_files()]
    shown = invoke("--list").stdout
    assert "weights_at(tau)" in shown
    assert "set_aside" in shown


# --- mistakes and limits --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("selec 1", "syntax error"),
        ("/* only a comment */", "expected one SELECT"),
        ("select no_such from pairs", "no_such"),
        ("select * from no_such_table", "no_such_table"),
        ("select * from pears", "pairs"),
        ("select no_such_function(1)", "no_such_function"),
        ("select 'x'::integer", "Conversion Error"),
        ("select $1", "parameter"),
        ("select error('my own words') from pairs", "my own words"),
        ("select " + "(" * 9000 + "1" + ")" * 9000, ""),
    ],
)
def test_a_mistake_is_one_line(one_run: Path, statement: str, said: str) -> None:
    with locked_database(study_tables(open_study(one_run))) as database:
        with pytest.raises(InputError) as refused:
            database.select(statement).read_all()
        assert said.casefold() in str(refused.value).casefold()
        assert "\n" not in str(refused.value)
        assert "Stack Trace" not in str(refused.value)


def test_a_mistake_in_a_late_row_is_one_line_too(one_run: Path) -> None:
    statement = (
        "select case when i = 90000 then error('late') else i end as i from range(100000) t(i)"
    )
    result = invoke(statement, "--study", one_run, "--format", "csv")
    assert isinstance(result.exception, InputError)
    assert "late" in str(result.exception)


@pytest.mark.parametrize(
    "arguments", [(), ("select 1", "--list"), ("select 1", "--query", "rule_ids")]
)
def test_one_way_to_say_what_to_run(arguments: tuple[str, ...]) -> None:
    assert invoke(*arguments).exit_code == 2


def test_a_query_that_takes_too_long_is_stopped(one_run: Path) -> None:
    started = time.monotonic()
    said = refusal(ENDLESS, "--study", one_run, "--timeout", "0.5")
    assert "limit of 0.5 s" in said
    assert time.monotonic() - started < 20


def test_endless_rows_are_stopped_too_however_slowly_they_are_printed(one_run: Path) -> None:
    started = time.monotonic()
    arguments = ("from range(1e15::bigint)", "--study", one_run, "--timeout", "0.5")
    result = invoke(*arguments, "--format", "csv")
    assert isinstance(result.exception, EncoreError)
    assert "limit of 0.5 s" in str(result.exception)
    assert time.monotonic() - started < 10


@pytest.fixture
def as_process() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """The command in a process of its own, as a shell starts it."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "encore.cli", "sql", *map(str, arguments)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        started.append(
            subprocess.Popen(
                command,
                cwd=ROOT,
                text=True,
                preexec_fn=hear_ctrl_c,  # noqa: PLW1509 - sets one signal
                **pipes,
            )
        )
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_ctrl_c_stops_a_query_at_once_and_nothing_is_drawn_on_stdout(
    one_run: Path, as_process: Callable[..., subprocess.Popen[str]]
) -> None:
    process = as_process(ENDLESS, "--study", one_run)
    with pytest.raises(subprocess.TimeoutExpired):  # long enough for a progress bar
        process.wait(timeout=6)
    workers = [child.pid for child in psutil.Process(process.pid).children()]
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=20)  # without Ctrl-C it would take years
    [worker_is_gone] = [not psutil.pid_exists(pid) for pid in workers]
    assert worker_is_gone
    assert (process.returncode, out) == (130, "")


def test_a_reader_that_has_seen_enough_is_no_error(
    one_run: Path, as_process: Callable[..., subprocess.Popen[str]]
) -> None:
    process = as_process("from range(1e9::bigint)", "--study", one_run, "--format", "csv")
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == "range\n"
    process.stdout.close()
    assert (process.wait(timeout=60), process.stderr.read()) == (0, "")


def test_a_query_that_needs_too_much_memory_is_stopped(one_run: Path) -> None:
    statement = "select list(i) from range(1e8::bigint) t(i)"
    said = refusal(statement, "--study", one_run, "--memory-limit", "64MB")
    assert "--memory-limit" in said


def test_one_large_value_is_stopped_by_both_limits(one_run: Path) -> None:
    """DuckDB allocates it outside of what its own limits see."""
    statement = "select length(repeat('x', 3000000000))"
    with (
        pytest.raises(EncoreError, match="memory limit of 200MB"),
        run_query(one_run, statement, memory="200MB") as result,
    ):
        list(result.rows())
    slow = "select max(length(repeat(i::varchar, 20000000))) from range(2000) t(i)"
    with (
        pytest.raises(EncoreError, match=r"limit of 0\.3 s"),
        run_query(one_run, slow, seconds=0.3, memory="4GB") as result,
    ):
        list(result.rows())


@pytest.mark.parametrize(
    "option",
    [("--timeout", "0"), ("--timeout", "-1"), ("--timeout", "nan"), ("--memory-limit", "lots")],
)
def test_an_impossible_limit_is_one_line(one_run: Path, option: tuple[str, str]) -> None:
    assert option[0] in refusal("select 1", "--study", one_run, *option)


def test_a_place_without_a_study_is_one_line(tmp_path: Path) -> None:
    assert "not a study" in refusal("select 1", "--study", tmp_path)
