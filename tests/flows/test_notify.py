"""ENCORE_NOTIFY_BLOCK: failures are told through a block of the server; by default they are not."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prefect.blocks.notifications import CustomWebhookNotificationBlock

from encore.data.study_options import RatingsConfig
from flows.analyze import analyze
from tasks.notify import BLOCK_VARIABLE
from tests.worlds.servers import PrefectServer, free_port

pytestmark = pytest.mark.services

PRIVATE = "nobodys-business"


@pytest.fixture
def webhook() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Start a receiver of messages; return its address and the list of received messages."""
    received: list[dict[str, Any]] = []

    class Receiver(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_port}", received
        server.shutdown()


def save_block(url: str) -> None:
    CustomWebhookNotificationBlock(
        name="encore",
        url=f"{url}/{PRIVATE}",
        json_data={"subject": "{{subject}}", "body": "{{body}}", "token": "{{token}}"},
        secrets={"token": PRIVATE},
    ).save("encore", overwrite=True)


@pytest.mark.usefixtures("prefect_api")
def test_a_failure_sends_a_message_and_a_message_that_fails_logs_one_line(
    prefect_server: PrefectServer,
    webhook: tuple[str, list[dict[str, Any]]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    url, received = webhook
    config = RatingsConfig(ratings=tmp_path / "my-study")
    save_block(url)
    monkeypatch.delenv(BLOCK_VARIABLE, raising=False)
    assert analyze(config, return_state=True).is_failed()
    assert not received

    monkeypatch.setenv(BLOCK_VARIABLE, "custom-webhook/encore")
    state = analyze(config, return_state=True)
    [message] = received
    assert message["subject"] == "ENCORE my-study: analyze"
    assert message["body"].startswith(f"Failed: {state.message}\n{prefect_server.url}/")
    assert message["body"].endswith(str(state.state_details.flow_run_id))
    assert message["token"] == PRIVATE

    save_block(f"http://127.0.0.1:{free_port()}")
    for name in ("custom-webhook/encore", "custom-webhook/nowhere"):
        monkeypatch.setenv(BLOCK_VARIABLE, name)
        caplog.clear()
        assert analyze(config, return_state=True).is_failed()
        assert caplog.text.count(f"No message was sent: block {name}") == 1
        assert PRIVATE not in caplog.text
