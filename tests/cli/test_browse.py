"""`encore browse`: one line with the address, stopped by signals, one clear line on bad input."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from encore.serving.listening import listen
from tests.signals import enable_ctrl_c

PATIENCE = 60.0
LONG_QUERY = """
from encore.core.options import run_main, single_command
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
def test_it_says_its_address_and_stops_at_a_signal(rated: Path, number, code):
    with subprocess.Popen(
        [sys.executable, "-m", "encore.cli", "browse", str(rated)],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=enable_ctrl_c,  # noqa: PLW1509 - sets one signal
    ) as process:
        try:
            said = process.stderr.readline()
            assert said.startswith("browse 6 pairs, 1 run, on http://127.0.0.1:")
            url = said.split(" on ")[1].split(";")[0]
            with httpx.Client(timeout=PATIENCE) as client:  # keeps its connection
                assert client.get(f"{url}/api/pairs").json()["num_pairs"] == 6
                process.send_signal(number)
                assert process.wait(PATIENCE) == code
            assert "Traceback" not in process.stderr.read()
        finally:
            process.kill()


def test_a_signal_during_a_query_is_one_line():
    """As in another one, while pairs and ratings are read."""
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
            said = process.stderr.read().splitlines()
        finally:
            process.kill()
    assert said[0] == "stopping …"
    assert said[1].startswith("error: terminated")
    assert len(said) == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("fresh",), "fresh: no ratings yet"),
        (("nowhere",), "nowhere: no such directory"),
        (("rated", "--run", "ffff"), "ffff"),
        (("rated", "--port", "taken"), "Address already in use"),
        (("rated", "--host", "no.such.host.invalid"), "--host no.such.host.invalid"),
    ],
)
def test_what_cannot_be_browsed_is_one_line(encore, study, rated, tmp_path, arguments, said):
    study.rename(tmp_path / "fresh")
    with listen("127.0.0.1", 0) as taken:
        values = {"taken": taken.getsockname()[1], **{n: tmp_path / n for n in ("fresh", "rated")}}
        found = encore("browse", *(values.get(one, one) for one in arguments))
    assert found.code == 1
    assert found.err.startswith("error: ")
    assert said in found.err
    assert found.err.count("\n") == 1
