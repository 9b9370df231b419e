"""The flows as commands: exit codes, one line for an expected error, with and without a server."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from encore.core.errors import EncoreError
from flows import command
from flows.command import check_server
from tests.worlds.servers import mlflow_server

pytestmark = pytest.mark.services

ROOT = Path(__file__).resolve().parents[2]


def run(
    *arguments: str, environ: Mapping[str, str | None] = os.environ
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(
        command, env=dict(environ), cwd=ROOT, capture_output=True, text=True, check=False
    )


def last_line(result: subprocess.CompletedProcess[str]) -> str:
    return result.stderr.strip().splitlines()[-1]


def test_without_a_server_failed_shards_end_in_exit_code_3(
    study: Path, tiny_judge: Path, without_server: dict[str, str]
) -> None:
    result = run(
        *("flows.rate_pairs", str(study), "--judge", str(tiny_judge)),
        *("--backend", "transformers", "--shard-size", "2", "--shard", "1"),
        # Its time is over when the first batch of replies is there.
        *("--shard-timeout-seconds", "0.001", "--shard-retries", "0"),
        environ=without_server,
    )

    assert result.returncode == 3, result.stderr
    assert "\nerror: 0 rated, 0 reused, 1 failed" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_complete_pipeline_ends_in_exit_code_0(
    tmp_path: Path, pairs_file: Path, tiny_judge: Path, with_server: dict[str, str]
) -> None:
    result = run(
        *("flows.pipeline", f"small={pairs_file}", "--out", str(tmp_path / "study")),
        *("--judge", str(tiny_judge), "--backend", "transformers", "--shard-size", "3"),
        environ=with_server,
    )

    assert result.returncode == 0, result.stderr
    assert last_line(result) == "pipeline: 2 rated, 0 reused, 0 failed"


def test_an_expected_error_and_a_server_away_are_one_line_and_exit_code_1(
    tmp_path: Path, with_server: dict[str, str]
) -> None:
    result = run(
        *("flows.rate_pairs", str(tmp_path / "nowhere"), "--judge", "j"), environ=with_server
    )

    assert result.returncode == 1
    assert last_line(result).startswith("error: study ")
    assert "no such directory" in last_line(result)
    assert "Traceback" not in result.stderr

    environ = {**with_server, "PREFECT_API_URL": "http://127.0.0.1:9/api"}
    result = run("flows.rate_pairs", str(tmp_path), "--judge", "j", environ=environ)
    assert result.returncode == 1
    assert result.stderr.startswith("error: Prefect server http://127.0.0.1:9/api: ")


def test_an_address_without_a_prefect_api_is_refused_without_its_password(
    prefect_api: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_server()
    pages = PREFECT_API_URL.value().removesuffix("/api")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "_ANSWER_SECONDS", 1)
    with (
        socket.create_server(("127.0.0.1", 0)) as hanging,
        ThreadingHTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler) as files,
    ):
        threading.Thread(target=files.serve_forever, daemon=True).start()
        no_api = "this is not the API of a Prefect server"
        for url, problem in (
            (pages, f"{no_api} (Expecting value"),
            (f"http://127.0.0.1:{files.server_port}/api", f"{no_api} (Client error '404 "),
            (f"http://me:secret@127.0.0.1:{hanging.getsockname()[1]}/api", "it does not answer"),
        ):
            setting = {PREFECT_API_URL: url}
            with temporary_settings(updates=setting), pytest.raises(EncoreError) as refused:
                check_server()
            assert f"{url.replace('secret', '***')}: {problem}" in str(refused.value)
        files.shutdown()


@pytest.mark.full
def test_an_mlflow_server_is_no_prefect_server(store_uri: str, tmp_path: Path) -> None:
    with mlflow_server(store_uri, tmp_path) as url:
        for path in ("", "/api"):
            setting = {PREFECT_API_URL: f"{url}{path}"}
            with (
                temporary_settings(updates=setting),
                pytest.raises(EncoreError, match="not the API"),
            ):
                check_server()
