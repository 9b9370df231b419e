"""`encore serve`: a server as a process, stopped by signals, and one clear line on bad input."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from encore.model.saved_model import save_model
from encore.serving.listening import listen
from tests.serving.models import PATIENCE, WEIGHTS, opened_model
from tests.signals import enable_ctrl_c


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model with three heads as a folder, its weights beside it."""
    folder = tmp_path_factory.mktemp("serve")
    opened = opened_model()
    save_model(folder / "model", opened.model, opened.tokenizer, metadata={})
    vector = {
        "scheme": "encore",
        "params": {"tau": 2.0},
        "rule_ids": list(WEIGHTS),
        "weights": list(WEIGHTS.values()),
    }
    (folder / "weights.json").write_text(json.dumps(vector))
    return folder / "model"


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGTERM, 143), pytest.param(signal.SIGINT, 130, marks=pytest.mark.services)],
)
def test_a_signal_stops_it_after_what_is_in_progress(model, tmp_path, number, code):
    log = tmp_path / "serve.log"
    command = [sys.executable, "-m", "encore.cli", "serve", model, "--weights"]
    with (
        log.open("w", encoding="utf-8") as stream,
        subprocess.Popen(
            [*map(str, command), str(model.parent / "weights.json"), "--port", "0", "--json"],
            stdout=subprocess.PIPE,
            stderr=stream,
            text=True,
            preexec_fn=enable_ctrl_c,  # noqa: PLW1509 - sets one signal
        ) as process,
    ):
        try:
            ready = json.loads("".join(itertools.islice(process.stdout, 5)))
            url = ready["url"]
            assert url.startswith("http://127.0.0.1:")
            body = {"query": ["some words of a response " * 40] * 60}
            with ThreadPoolExecutor(1) as pool:
                asked = pool.submit(httpx.post, url, json=body, timeout=PATIENCE)
                metrics = f"{url}/metrics"
                while "encore_queued_texts 0.0" in httpx.get(metrics, timeout=PATIENCE).text:
                    assert not asked.done()
                process.send_signal(number)
                answer = asked.result()
            assert process.wait(PATIENCE) == code
        finally:
            process.kill()
    assert answer.status_code == 200
    assert len(answer.json()["rewards"]) == 60
    logged = log.read_text()
    assert f"serving {model.name} on {ready['url']}: 3 rules, weights of scheme encore" in logged
    assert "INFO POST /: 200, 60 texts" in logged
    assert "some words" not in logged
    assert "Traceback" not in logged


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "the model has 3 heads and a reward is one number"),
        (("--weights", "other.json"), "kindness among the weights"),
        (("--port", "taken"), "Address already in use"),
        (("--host", "no.such.host.invalid"), "--host no.such.host.invalid --port 0: "),
        (("--rule", "kindness"), "the model has no such head"),
    ],
)
def test_what_cannot_be_served_is_one_line(encore, model, tmp_path, arguments, said):
    (tmp_path / "other.json").write_text('{"privacy": 0.5, "kindness": 0.5}')
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1] if "taken" in arguments else 0
        given = [tmp_path / one if one == "other.json" else one for one in arguments]
        given = ["--port", port, *(given if "taken" not in arguments else ())]
        # A port or host that cannot be had is known before a model is loaded.
        name = "no/such/model" if {"taken", "--host"} & set(arguments) else model
        found = encore("serve", name, *given)
    assert found.code == 1
    assert said in found.err
    assert found.err.startswith("error: ")


def test_a_missing_package_is_named_with_the_way_to_get_it(encore, monkeypatch):
    absent = "uvicorn"
    monkeypatch.setattr("encore.cli.output.find_spec", lambda name: name != absent or None)
    found = encore("serve", "model")
    assert "serving needs uvicorn, not installed here" in found.err
    assert "pip install 'encore-reward[train,serve]'" in found.err


def test_an_open_door_is_said_aloud(encore):
    found = encore("serve", "no/such/model", "--port", 0, "--host", "0.0.0.0")  # noqa: S104
    assert "whoever reaches this machine's port can use this server" in found.err
    assert "warning" not in encore("serve", "no/such/model", "--port", 0).err
