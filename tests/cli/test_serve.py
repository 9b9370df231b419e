"""`encore serve` answers the requests in progress before it stops, and warns of an open address."""

from __future__ import annotations

import itertools
import json
import signal
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.signals import encore_process
from tests.worlds.models import WEIGHTS

PATIENCE = 60.0


@pytest.mark.services
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
    assert f"\nnext: curl {url}/score -d '{{" in log_text
    assert "INFO POST /: 200, 200 texts" in log_text
    assert "some words" not in log_text
    assert "Traceback" not in log_text


def test_an_address_that_others_reach_causes_a_warning(encore, tmp_path):
    """An empty folder is refused after the address is taken."""
    finished = encore("serve", tmp_path, "--port", 0, "--host", "0.0.0.0")  # noqa: S104
    assert "whoever reaches this machine's port can use this server" in finished.err
    assert "warning" not in encore("serve", tmp_path, "--port", 0).err
