"""What every command does on a terminal, in a pipe and with --json."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from encore.cli.app import GROUPS
from encore.data.pairs import read_pairs
from encore.data.study import open_study
from tests.cli.conftest import NUM_PAIRS
from tests.worlds.judges import ScriptedJudge
from tests.worlds.studies import numbered_pairs, write_lines


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


def test_a_result_that_ends_with_an_error_is_one_json_document(encore):
    """A plan that does not fit is printed, then refused."""
    options = "--pairs 9 --tokens-per-response 9 --gpu a100-40 --recipe full-float32 --json"
    finished = encore("plan", "train", *options.split())
    assert finished.code == 1
    assert "error" not in json.loads(finished.out)


def test_the_negative_of_a_flag_is_accepted_and_not_listed(encore, rated):
    assert "--no-by-source" not in encore("analyze", "--help").out
    finished = encore("analyze", rated, "--by-source", "--no-by-source", "--json")
    assert {rule["source"] for rule in finished.json["rules"]} == {"all"}


def test_missing_shards_are_one_line_of_ranges(encore, study, monkeypatch):
    """Six pairs, a pair a shard: shards 0 to 5, of which 1 and 4 are rated."""
    monkeypatch.setattr("encore.rating.rating_run.open_judge", lambda _: ScriptedJudge())
    options = ("--judge", "scripted", "--shard-size", 1, "--shard", 1, "--shard", 4)
    encore("rate", study, *options)
    finished = encore("status", study)
    assert finished.code == 3
    assert "  missing: shards 0, 2 to 3, 5\n" in finished.out


@pytest.mark.parametrize(
    ("call", "earlier_call"),
    [
        ("show STUDY PAIR --json", "show PAIR --json --study STUDY"),
        ("show STUDY PAIR --json", "show --study=STUDY PAIR --json"),
        ("sql STUDY QUERY --json", "sql QUERY --study STUDY --json"),
        ("sql STUDY --query tie_rates", "sql --query tie_rates --study STUDY"),
        ("ingest STUDY PAIRS --json", "ingest PAIRS --out STUDY --json"),
    ],
)
def test_the_study_comes_first_and_earlier_spellings_are_read(encore, rated, call, earlier_call):
    pair_id = read_pairs(open_study(rated))["pair_id"][0].as_py()
    pairs = f"mine={rated.parent / 'pairs.jsonl'}"
    write_lines(rated.parent / "pairs.jsonl", numbered_pairs(NUM_PAIRS))
    # A path would turn the two slashes into one, and 7 // 2 = 3 into 3.5.
    values = {"STUDY": rated, "PAIR": pair_id, "PAIRS": pairs, "QUERY": "select 7 // 2 as three"}

    def arguments(text: str) -> list[str]:
        names = "|".join(sorted(values, reverse=True))
        return [re.sub(names, lambda name: str(values[name[0]]), word) for word in text.split()]

    finished = encore(*arguments(call))
    assert finished.code == 0, finished.err
    assert encore(*arguments(earlier_call)) == finished
    if "QUERY" in call:
        assert finished.json == [{"three": 3}]


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
