"""What every command does on a terminal, in a pipe and with --json."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.worlds.judges import ScriptedJudge


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
