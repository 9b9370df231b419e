"""`encore browse` prints its address and stops at signals."""

from __future__ import annotations

import signal
import subprocess
import sys

import httpx
import pytest

from tests.cli.conftest import NUM_PAIRS
from tests.signals import encore_process

PATIENCE = 60.0
LONG_QUERY = """
from encore.core.command_parser import run_main, single_command
from encore.tables.study_database import open_database
def ask() -> None:
    with open_database({}) as database:
        print("asked", flush=True)
        database.execute("select sum(hash(range)) from range(1_000_000_000_000)")
run_main(single_command(ask, name="ask"), [])
"""


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGTERM, 143), pytest.param(signal.SIGINT, 130, marks=pytest.mark.services)],
)
def test_it_prints_its_address_and_stops_at_a_signal(rated, number, code):
    with encore_process("browse", rated) as process:
        line = process.stderr.readline()
        assert line.startswith(f"browse {NUM_PAIRS} pairs, 1 run, on http://127.0.0.1:")
        url = line.split(" on ")[1].split(";")[0]
        with httpx.Client(timeout=PATIENCE) as client:  # keeps its connection
            assert client.get(f"{url}/api/pairs").json()["num_pairs"] == NUM_PAIRS
            process.send_signal(number)
            assert process.wait(PATIENCE) == code
        assert "Traceback" not in process.stderr.read()


def test_pairs_are_listed_before_anything_is_rated(study):
    with encore_process("browse", study) as process:
        line = process.stderr.readline()
        assert line.startswith(f"browse {NUM_PAIRS} pairs, 0 runs, on http://127.0.0.1:")
        assert process.stderr.readline() == f"next: encore rate {study} --judge JUDGE\n"
        url = line.split(" on ")[1].split(";")[0]
        rows = httpx.get(f"{url}/api/pairs", timeout=PATIENCE).json()["rows"]
        assert [row["runs"] for row in rows] == [[]] * NUM_PAIRS
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 143


def test_a_signal_during_a_query_is_one_line():
    """The same connection reads pairs and ratings before the page is up."""
    with subprocess.Popen(
        [sys.executable, "-c", LONG_QUERY],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout.readline() == "asked\n"
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE) == 143
            first_line, *error_lines = process.stderr.read().splitlines()
        finally:
            process.kill()
    assert first_line == "stopping …"
    assert [line.startswith("error: terminated") for line in error_lines] == [True]
