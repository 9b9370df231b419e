"""What every command does on a terminal, in a pipe and with --json."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from encore.cli import status
from encore.cli.app import COMMANDS, GROUPS
from encore.cli.output import compact_table
from encore.core import terminal
from encore.data.pairs import read_pairs
from encore.data.rating_runs import run_status
from encore.data.study import open_study
from encore.runs.shard_files import ShardState
from tests.cli.conftest import NUM_PAIRS
from tests.golden.command_line import ENVIRONMENT
from tests.worlds.judges import ScriptedJudge
from tests.worlds.studies import numbered_pairs, rate_study, write_lines


@pytest.mark.services
def test_a_closed_pipe_is_no_error(rated):
    """`encore analyze STUDY | head -1`: the reader has gone before the first table is written."""
    command = [sys.executable, "-m", "encore.cli", "analyze", str(rated)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        messages = process.stderr.read()
    assert (process.returncode, messages.count(b"Error")) == (0, 0), messages


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        ("analyze nowhere", 1, "nowhere"),
        ("status", 2, "STUDY is missing: the study directory"),
        ("rate nowhere", 2, "--judge is missing: folder with a model"),
        ("rate nowhere --judge", 2, "--judge requires an argument"),
    ],
)
def test_with_json_an_error_is_a_json_document_and_a_line(encore, arguments, code, text):
    finished = encore(*arguments.split(), "--json")
    error = json.loads(finished.out)["error"]
    assert (finished.code, error["exit_code"]) == (code, code)
    assert text in error["message"]
    assert finished.err.startswith("error: ")


def test_a_result_that_ends_with_an_error_is_one_json_document(encore, tmp_path):
    """A study is written, and then a source of which too much is set aside is named."""
    write_lines(tmp_path / "pairs.jsonl", [*numbered_pairs(2), {"prompt": "", "chosen": "a"}])
    options = ("--max-set-aside-share", 0, "--json")
    finished = encore("ingest", tmp_path / "study", f"mine={tmp_path / 'pairs.jsonl'}", *options)
    assert finished.code == 3
    assert "error" not in json.loads(finished.out)


def test_the_negative_of_a_flag_is_accepted_and_not_listed(encore, rated):
    assert "--no-by-source" not in encore("analyze", "--help").out
    finished = encore("analyze", rated, "--by-source", "--no-by-source", "--json")
    assert {rule["source"] for rule in finished.json["rules"]} == {"all"}


def test_missing_shards_are_one_line_of_ranges(encore, study, monkeypatch):
    """Six pairs, a pair a shard: shards 0 to 5, of which 1 and 4 are rated."""
    monkeypatch.setattr("encore.rating.rating_run.open_judge", lambda *_: ScriptedJudge())
    options = ("--judge", "scripted", "--shard-size", 1, "--shard", 1, "--shard", 4)
    encore("rate", study, *options)
    finished = encore("status", study)
    assert finished.code == 3
    assert "  missing: shards 0, 2 to 3, 5 (4 shards)\n" in finished.out


def test_of_many_failed_shards_a_few_errors_and_ranges_are_listed(study):
    """Every second of 100 shards is missing; the others failed, each with an error of its own."""
    run = rate_study(study, shard_size=1, limit=1)
    shards = [
        ShardState(index=i, state="failed", detail=f"error {i}")
        if i % 2
        else ShardState(index=i, state="missing")
        for i in range(100)
    ]
    whole = run_status(run.run_dir)
    _, *lines = status._output_of(dataclasses.replace(whole, shards=tuple(shards)))
    first = ", ".join(map(str, range(0, 24, 2)))
    assert lines[0] == f"  missing: shards {first} and 38 more (50 shards)"
    assert lines[1:6] == [f"  failed: shard {i}: error {i}" for i in (1, 3, 5, 7, 9)]
    assert lines[6:] == ["  45 shards with 45 further errors; --json lists each shard"]


def test_inside_of_a_study_its_name_may_be_left_out(encore, rated, monkeypatch):
    monkeypatch.chdir(rated)
    assert encore("sql", "select 7 // 2 as three", "--json").json == [{"three": 3}]
    pair_id = read_pairs(open_study(rated))["pair_id"][0].as_py()
    assert encore("show", pair_id, "--json").json["pair_id"] == pair_id
    assert "PAIR is missing" in encore("show", ".").err


def test_the_help_lists_every_command_in_a_group(encore):
    """The panels have the names of `GROUPS`, in its order; two of them are the paper's."""
    panels = re.split(r"╭─ (.+?) ─+╮", encore("--help").out)[1:]
    text_by_title = dict(zip(panels[::2], panels[1::2], strict=True))
    assert [*text_by_title] == [*GROUPS, "Flags"]
    for title, names in GROUPS.items():
        for name in names:
            assert re.search(rf"│ {name.split()[0]} ", text_by_title[title])


def test_completion_is_installed_for_the_shell_of_the_user(encore, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    script = tmp_path / "encore.bash"
    assert encore("--install-completion", "--shell", "bash", "--output", script).code == 0
    assert "--until-weights-within" in script.read_text(encoding="utf-8")


#: Arguments of every command that takes a study, its exit code on a study without ratings, and a
#: part of what it says. EMPTY is a folder without files. `encore browse` has a test of its own.
WITHOUT_RATINGS = {
    "ingest": ("STUDY PAIRS", 0, "next: encore rate STUDY --judge JUDGE"),
    "status": ("STUDY", 0, "next: encore rate STUDY --judge JUDGE"),
    "show": ("STUDY PAIR", 0, "next: encore rate STUDY --judge JUDGE"),
    "sql": ("STUDY --query tie_rates", 0, "no rows"),
    "plan train": ("STUDY", 0, "Memory"),
    "compare": ("STUDY", 1, "encore benchmark"),
    "check": ("STUDY --floor 0.8", 1, "run `encore rate STUDY --judge JUDGE` first"),
    "train": ("STUDY --backbone EMPTY", 1, "config.json"),
    "benchmark": ("STUDY --model EMPTY --benchmark nosuch", 1, "nosuch"),
    "export": ("EMPTY --out NEW --scheme encore --ratings STUDY", 1, "EMPTY"),
    "serve": ("EMPTY --port 0 --scheme encore --ratings STUDY", 1, "EMPTY"),
    **dict.fromkeys(("gate", "score"), ("STUDY --model EMPTY", 1, "EMPTY")),
    **dict.fromkeys(("annotate import", "labels"), ("STUDY PAIRS", 1, "PAIRS")),
    **dict.fromkeys(
        ("rate", "plan rate", "rules probe"), ("STUDY --judge EMPTY", 1, "config.json")
    ),
    **dict.fromkeys(
        ("analyze", "weights", "report", "publish", "annotate export", "paper"),
        ("STUDY", 1, "run `encore rate STUDY --judge JUDGE` first"),
    ),
}


@pytest.mark.parametrize("command", WITHOUT_RATINGS)
def test_every_command_copes_with_a_study_without_ratings(encore, study, monkeypatch, command):
    """It ends with its result or with one line that names the next command."""
    arguments, code, text = WITHOUT_RATINGS[command]
    monkeypatch.chdir(study.parent)
    (study.parent / "EMPTY").mkdir()
    write_lines(study.parent / "PAIRS.jsonl", numbered_pairs(NUM_PAIRS))
    pair_id = read_pairs(open_study(study))["pair_id"][0].as_py()
    values = {"STUDY": study.name, "PAIR": pair_id, "PAIRS": "PAIRS.jsonl"}
    call = [values.get(argument, argument) for argument in arguments.split()]
    finished = encore(*command.split(), *call)
    assert finished.code == code, finished.err
    assert text.replace("STUDY", study.name) in finished.out + finished.err
    assert finished.err.count("error: ") == code
    assert "Traceback" not in finished.err


def test_a_folder_without_a_table_of_labels_lacks_the_table(encore, study):
    assert "FILE is missing: a table of labels" in encore("labels", study).err


def test_a_run_that_ended_before_its_first_shard_is_not_chosen(encore, rated):
    [run_dir] = (rated / "ratings").iterdir()
    unfinished_dir = run_dir.with_name("0" * 16)
    unfinished_dir.mkdir()
    shutil.copy(run_dir / "run.json", unfinished_dir)
    assert encore("analyze", rated).code == 0


def test_no_command_is_left_out_of_those_that_are_called_without_ratings():
    others = {"demo", "doctor", "guard", "judge", "paper", "browse"}
    assert {name for name in COMMANDS if "rules" not in name} == (
        {*WITHOUT_RATINGS} - {"rules probe"} | others
    )


@pytest.mark.services
def test_no_line_is_wider_than_eighty_columns(encore, rated, monkeypatch):
    """Help texts and results; a path stays whole, so the study has a short one."""
    monkeypatch.setitem(ENVIRONMENT, "COLUMNS", "80")
    for stream in (terminal.console, terminal.out):
        monkeypatch.setattr(stream, "_width", 80)
    monkeypatch.chdir(rated.parent)
    write_lines(rated.parent / "pairs.jsonl", numbered_pairs(NUM_PAIRS))
    pair_id = read_pairs(open_study(rated))["pair_id"][0].as_py()
    calls = f"""
        ingest rated more=pairs.jsonl
        status rated
        show rated {pair_id}
        sql --list
        sql rated --query rule_accuracy
        analyze rated --by-source
        weights rated
        weights rated --compare
        weights rated --sweep
        report rated
        paper rated
        publish rated --out rated.duckdb
        plan train rated
        annotate export rated
        labels labels.csv
    """
    (rated.parent / "labels.csv").write_text("response,rule,label,rating\nYes.,kind,1,0.9\n")
    arguments = [*map(str.split, calls.strip().splitlines())]
    arguments += [["--help"], *([*name.split(), "--help"] for name in COMMANDS)]
    for call in arguments:
        finished = encore(*call)
        assert finished.code == 0, (call, finished.err)
        wide = [line for line in (finished.out + finished.err).splitlines() if len(line) > 80]
        assert not wide, call
        is_step = call[0] not in ("show", "sql", "paper", "labels") and "--help" not in call
        assert is_step == ("\nnext: " in f"\n{finished.err}"), call
        headings = re.findall(r"^(.*)\n ?─", finished.out, re.MULTILINE)
        assert not [heading for heading in headings if "…" in heading], call


def test_progress_is_a_short_line_and_verbose_names_the_files(encore, study, monkeypatch):
    """Six pairs in two shards: 2 responses x 10 rules x 3 pairs = 60 of 120 ratings a shard."""
    monkeypatch.setattr("encore.rating.rating_run.open_judge", lambda *_: ScriptedJudge())
    call = ("rate", study, "--judge", "scripted", "--shard-size", 3)
    messages = encore(*call, "--shard", 0).err
    assert "\nrating 60 of 60  ████████████████████" in messages
    assert ".parquet" not in messages
    messages = encore(*call, "--verbose").err
    assert "\nshard 1 rated (2 of 2): " in messages
    assert messages.count(".parquet\n") == 1
    assert "\nrating 120 of 120  " in messages


def test_a_log_file_keeps_its_lines_whole(monkeypatch):
    long_line = "word " * 40 + "end"
    monkeypatch.delenv("COLUMNS", raising=False)
    assert terminal.wrapped(long_line) == long_line
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(terminal.out, "_width", 80)
    assert max(map(len, terminal.wrapped(long_line).splitlines())) <= 80


def test_a_bar_is_as_long_as_the_share_that_is_done(capsys):
    """3 of 12 is a quarter of the bar's 20 characters."""
    with terminal.terminal_reporter() as reporter:
        reporter.started("scoring (1 of 4 shards was done before)", total=12, done=1)
        reporter.advanced(2, note="5 responses/s")
        reporter.saved(Path("shard"), kind="shard 1")
    last_line = capsys.readouterr().err.splitlines()[-1]
    assert last_line == "scoring 3 of 12  █████░░░░░░░░░░░░░░░  5 responses/s"


def test_long_work_without_a_terminal_has_a_line_a_minute(capsys, monkeypatch):
    """One reply a second, of 500: at each full minute as many replies and so much time left."""
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(terminal, "time", clock)
    with terminal.terminal_reporter() as reporter:
        reporter.started("rating", total=500)
        for second in range(131):
            clock.now = float(second)
            reporter.advanced(note="1 rating/s" if second % 2 else "")
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition("  ")[0] for line in lines] == [
        "rating",
        "rating 61 of 500",
        "rating 121 of 500",
    ]
    assert lines[1].endswith("1 rating/s  0:07:19 left")


def test_slow_work_that_is_continued_says_how_long_it_takes(capsys, monkeypatch):
    """400 replies are there, then one comes in 40 s: 98 more after 80 s take 3,920 s."""
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(terminal, "time", clock)
    with terminal.terminal_reporter() as reporter:
        reporter.started("rating", total=500)
        for count in (400, 1, 1):
            reporter.advanced(count)
            clock.now += 40.0
    assert capsys.readouterr().err.endswith(
        "rating 402 of 500  ████████████████░░░░  1:05:20 left\n"
    )


def test_show_has_a_row_a_rule_with_the_difference(encore, rated):
    """Each row has the ratings of --json, and chosen minus rejected with its sign."""
    pair_id = read_pairs(open_study(rated))["pair_id"][0].as_py()
    [run] = encore("show", rated, pair_id, "--json").json["runs"]
    ratings = {(row["rule_id"], row["response"]): row["rating"] for row in run["ratings"]}
    rule_ids = [*dict.fromkeys(rule_id for rule_id, _ in ratings)]
    output = encore("show", rated, pair_id).out.replace("\N{MINUS SIGN}", "-")
    differences = set()
    for position, rule_id in enumerate(rule_ids, start=1):
        row = re.search(rf"(?m)^ +{position} {rule_id} +(\S+) +(\S+) +(\S+) *$", output)
        assert row is not None, rule_id
        chosen, rejected = (ratings[rule_id, response] for response in ("chosen", "rejected"))
        if chosen is not None and rejected is not None:
            assert [*map(float, row.groups())] == [
                pytest.approx(value, abs=5e-4) for value in (chosen, rejected, chosen - rejected)
            ]
            differences.add(chosen - rejected)
    assert len(differences) > 1, "the tiny judge rates the responses of this pair alike"


def test_an_unknown_command_gets_a_similar_one_and_a_whole_sentence(encore):
    assert encore("analyse").err.endswith(
        'Unknown command "analyse". Did you mean "analyze"? `--help` lists the commands\n'
    )
    assert encore("frobnicate").err.endswith(
        'Unknown command "frobnicate"; `--help` lists the commands\n'
    )


def test_names_of_columns_that_are_wider_than_their_figures_are_broken(monkeypatch):
    monkeypatch.setattr("encore.core.terminal.out._width", 40)
    columns = ("#", "labels", "a label is worth", "by people alone")
    table = compact_table(columns, [(1, 20, "1.0 (1.0…1.4)", "80 (58…92)")])
    with terminal.out.capture() as printed:
        terminal.out.print(table)
    text = printed.get()
    assert "…1.4)" in text
    assert "…92)" in text
    assert "a label is worth" not in text
    assert all(part in text for name in columns for part in name.split())


def test_no_tag_in_a_help_text_is_lost(encore):
    """Help texts are Markdown, which shows nothing of a tag that is not set as code."""
    help_text = " ".join(encore("rate", "--help").out.replace("│", "").split())
    assert "between <think> and </think>, also where only </think> is" in help_text
