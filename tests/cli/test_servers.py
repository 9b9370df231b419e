"""`encore browse` and `encore serve` print their address and stop at signals."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.cli.conftest import NUM_PAIRS
from tests.signals import encore_process
from tests.worlds.models import WEIGHTS

pytestmark = pytest.mark.services

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


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
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


def test_a_signal_during_a_query_is_one_error_line():
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
    [error, following] = error_lines
    assert error.startswith("error: terminated")
    assert following.startswith("next: ")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_stops_it_after_the_requests_in_progress(reward_model, tmp_path, number, code):
    weights, log = tmp_path / "weights.json", tmp_path / "serve.log"
    rule_ids, values = list(WEIGHTS), list(WEIGHTS.values())
    weights.write_text(json.dumps({"scheme": "encore", "rule_ids": rule_ids, "weights": values}))
    options = ("--weights", weights, "--port", 0, "--max-batch-tokens", 600, "--json")
    with (
        log.open("w", encoding="utf-8") as stream,
        encore_process("serve", reward_model, *options, stderr=stream) as process,
        ThreadPoolExecutor(1) as pool,
    ):
        url = json.loads("".join(itertools.islice(process.stdout, 5)))["url"]
        assert url.startswith("http://127.0.0.1:")
        body = {"query": ["some words of a response " * 40] * 200}
        answer = pool.submit(httpx.post, url, json=body, timeout=PATIENCE)
        metrics = f"{url}/metrics"
        while "encore_queued_texts 0.0" in httpx.get(metrics, timeout=PATIENCE).text:
            assert not answer.done()
        process.send_signal(number)
        assert answer.result().status_code == 200
        assert len(answer.result().json()["rewards"]) == 200
        assert process.wait(PATIENCE) == code
    log_text = log.read_text()
    weights_text = "3 rules, weights of scheme encore"
    assert f"serving {reward_model.name} on {url}: {weights_text}" in log_text
    assert f"\nnext: curl {url}/score -H 'content-type: application/json' -d '{{" in log_text
    assert "INFO POST /: 200, 200 texts" in log_text
    assert "some words" not in log_text
    assert "Traceback" not in log_text


def test_an_address_that_others_reach_causes_a_warning(encore, tmp_path):
    """An empty folder is refused after the address is taken."""
    finished = encore("serve", tmp_path, "--port", 0, "--host", "0.0.0.0")  # noqa: S104
    assert "whoever reaches this machine's port can use this server" in finished.err
    assert "warning" not in encore("serve", tmp_path, "--port", 0).err
