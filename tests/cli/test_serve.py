"""`encore serve`: a server as a process, stopped by signals, and one clear line on bad input."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer
from typer.testing import CliRunner, Result

from encore.cli.serve import serve
from encore.demo import judge_path
from encore.errors import EncoreError, InputError
from encore.model.config import BackboneConfig
from encore.model.folder import save_model
from encore.model.loading import load_reward_model, load_tokenizer
from encore.serving import server as server_module
from encore.serving.composer import Composer
from encore.serving.server import RewardServer, bind
from tests.serving.models import MEANS, PATIENCE, WEIGHTS, opened_model
from tests.signals import hear_ctrl_c

_CODE = "import typer; from encore.cli.serve import serve; typer.run(serve)"


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


def invoke(*arguments: object) -> Result:
    """The command in this process, up to where it would serve."""
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(serve)
    wide = {"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}
    return CliRunner(env=wide).invoke(app, [str(argument) for argument in arguments])


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A server's process, what it said when it was ready, and where its log goes."""

    process: subprocess.Popen[str]
    ready: dict[str, str]
    log: Path

    def ends_with(self, number: signal.Signals) -> int:
        """The exit code after a signal."""
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)


@contextlib.contextmanager
def served(tmp_path: Path, *arguments: object) -> Iterator[Served]:
    log = tmp_path / "serve.log"
    with log.open("w", encoding="utf-8") as stream:
        process = subprocess.Popen(
            [sys.executable, "-c", _CODE, *map(str, arguments), "--port", "0", "--json"],
            stdout=subprocess.PIPE,
            stderr=stream,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            preexec_fn=hear_ctrl_c,  # noqa: PLW1509 - sets one signal
        )
        try:
            assert process.stdout is not None
            lines = []
            for line in process.stdout:
                lines.append(line)
                if line == "}\n":
                    break
            assert lines, log.read_text()
            yield Served(process=process, ready=json.loads("".join(lines)), log=log)
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_stops_it_after_what_is_under_way(model, tmp_path, number, code):
    weights = model.parent / "weights.json"
    with served(tmp_path, model, "--weights", weights) as found:
        url = found.ready["url"]
        assert url.startswith("http://127.0.0.1:")
        about = httpx.get(f"{url}/model", timeout=PATIENCE).json()
        assert about["digest"] == found.ready["digest"]
        assert {rule["rule_id"]: rule["weight"] for rule in about["rules"]} == WEIGHTS
        assert about["weights"] == {"scheme": "encore", "params": {"tau": 2.0}, "provenance": None}
        answers: list[httpx.Response] = []
        body = {"query": ["some words of a response " * 40] * 120}
        ask = threading.Thread(
            target=lambda: answers.append(httpx.post(url, json=body, timeout=PATIENCE))
        )
        ask.start()
        name = "encore_queued_texts "
        while name + "0.0" in httpx.get(f"{url}/metrics", timeout=PATIENCE).text:
            assert ask.is_alive()
        assert found.ends_with(number) == code
        ask.join(PATIENCE)
        assert [answer.status_code for answer in answers] == [200]
        assert len(answers[0].json()["rewards"]) == 120
        log = found.log.read_text()
    assert f"serving {model.name} on {url}: 3 rules, weights of scheme encore, tau 2.0" in log
    assert "INFO POST /: 200, 120 texts" in log
    assert "some words" not in log
    assert "Traceback" not in log


@pytest.fixture
def composers(monkeypatch: pytest.MonkeyPatch) -> list[Composer]:
    """What servers of this process were made with; they end at once, as if told to."""
    found: list[Composer] = []

    class NotServing(RewardServer):
        def run(self) -> signal.Signals | None:
            found.append(self._composer)
            return signal.SIGTERM

    monkeypatch.setattr(server_module, "RewardServer", NotServing)
    return found


def test_one_rule_alone(model, composers):
    assert invoke(model, "--port", 0, "--rule", "privacy").exit_code == 0
    assert composers[0].weight_R.tolist() == [1.0, 0.0, 0.0]
    assert composers[0].mean_R.tolist() == list(MEANS)


def test_the_weights_of_a_scheme_on_ratings(model, composers, tmp_path):
    rows = [
        {
            "pair_id": f"pair-{pair}",
            "source": "hh",
            "response": response,
            "rule_id": rule_id,
            "rating": rating,
        }
        for pair in range(4)
        for response in ("chosen", "rejected")
        for rule_id, rating in (
            ("privacy", 0.5),  # one level: entropy 0
            ("no-violence", (0.2, 0.8)[pair % 2]),  # two equally often: ln 2
            ("honesty", 0.25 * pair),  # four: 2 ln 2
        )
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "ratings.parquet")
    result = invoke(
        *(model, "--port", 0, "--scheme", "encore", "--tau", 1),
        *("--ratings", tmp_path / "ratings.parquet"),
    )
    assert result.exit_code == 0, result.exception
    # softmax of -(0, ln 2, 2 ln 2): proportional to 1, 1/2, 1/4
    assert composers[0].weight_R == pytest.approx([4 / 7, 2 / 7, 1 / 7])
    assert composers[0].origin["scheme"] == "encore"


def test_several_heads_without_weights_are_refused(model):
    error = invoke(model, "--port", 0).exception
    assert isinstance(error, InputError)
    assert "the model has 3 heads" in str(error)
    assert "--weights FILE" in str(error)


def test_weights_for_other_rules_are_refused(model, tmp_path):
    (tmp_path / "weights.json").write_text('{"privacy": 0.5, "kindness": 0.5}')
    error = invoke(model, "--port", 0, "--weights", tmp_path / "weights.json").exception
    assert isinstance(error, InputError)
    assert "kindness" in str(error)
    assert "no-violence" in str(error)


def test_a_port_in_use_is_known_before_a_model_is_loaded():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        error = invoke("no/such/model", "--port", port).exception
    assert isinstance(error, EncoreError)
    assert f"port {port}: Address already in use" in str(error)
    assert "--port" in str(error)


def test_two_servers_that_start_together_do_not_both_load_a_model():
    with bind("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        error = invoke("no/such/model", "--port", port).exception
    assert isinstance(error, EncoreError)
    assert f"port {port}: Address already in use" in str(error)


def test_an_address_that_cannot_be_served_is_one_line(model, monkeypatch):
    def fails(*_, **__):
        raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))

    monkeypatch.setattr(asyncio.BaseEventLoop, "create_server", fails)
    error = invoke(model, "--port", 0, "--rule", "privacy").exception
    assert isinstance(error, EncoreError)
    assert "cannot go on: Address already in use" in str(error)


def test_a_missing_package_is_named_with_the_way_to_get_it(monkeypatch):
    monkeypatch.setattr("encore.cli.serve.find_spec", lambda name: None if name == "uvicorn" else 1)
    error = invoke("model").exception
    assert isinstance(error, EncoreError)
    assert "serving needs uvicorn, not installed here" in str(error)
    assert "pip install 'encore-reward[train,serve]'" in str(error)


def test_no_such_host_and_no_such_model():
    error = invoke("no/such/model", "--port", 0, "--host", "no.such.host.invalid").exception
    assert isinstance(error, InputError)
    assert "no such host" in str(error)
    error = invoke("no/such/model", "--port", 0).exception
    assert isinstance(error, EncoreError)
    assert "no/such/model" in str(error)


def test_an_open_door_is_said_aloud():
    result = invoke("no/such/model", "--port", 0, "--host", "0.0.0.0")  # noqa: S104 - its point
    assert "whoever reaches this machine's port can use this server" in result.stderr
    assert "warning" not in invoke("no/such/model", "--port", 0).stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--rule", "privacy", "--weights", "w.json"), "--weights and --rule contradict"),
        (("--scheme", "encore"), "name them with --ratings"),
        (("--tau", "1"), "--tau belongs to --scheme"),
        (("--port", "70000"), "'--port': Input should be less than or equal to 65535"),
        (("--max-queries", "0"), "'--max-queries': Input should be greater than or equal to 1"),
    ],
)
def test_options_that_make_no_sense_are_usage_errors(arguments, said):
    result = invoke("model", *arguments)
    assert result.exit_code == 2
    assert said in " ".join(result.stderr.replace("│", " ").split())


def test_a_single_head_needs_no_weights(composers, tmp_path):
    config = BackboneConfig(model=str(judge_path()), max_length=64)
    single = load_reward_model(config, head_ids=["reward"])
    save_model(tmp_path / "model", single, load_tokenizer(config), metadata={})
    assert invoke(tmp_path / "model", "--port", 0).exit_code == 0
    assert composers[0].weight_R.tolist() == [1.0]


def test_help_teaches_both_protocols():
    text = invoke("--help").stdout
    for word in ("/get_reward", "/score", "/health", "/metrics", "--weights", "--host", "OpenRLHF"):
        assert word in text
    said = " ".join(text.split())
    assert "Without weights a model of one head is served; one of several heads is refused" in said
