"""The flows as commands: exit codes, one line for an expected error, with and without a server."""

from __future__ import annotations

import http.server
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from encore.core.errors import EncoreError
from flows import command
from flows.command import check_server
from tests.mlflow_server import mlflow_server

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


@pytest.mark.services
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


def test_a_command_offers_what_people_give_and_nothing_that_a_parent_gives_its_engines() -> None:
    help_text = run("flows.score", "--help").stdout
    assert help_text.startswith("Usage: python -m flows.score ")
    assert "--engines" in help_text
    assert "--engine." not in help_text


@pytest.fixture
def plain_server(tmp_path: Path) -> Iterator[str]:
    """Start a web server that is not Prefect's and return its address."""
    with http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler
    ) as web_server:
        threading.Thread(target=web_server.serve_forever).start()
        yield f"http://127.0.0.1:{web_server.server_port}/api"
        web_server.shutdown()


def test_an_address_of_another_service_is_refused_in_one_line(
    tmp_path: Path, plain_server: str, with_server: dict[str, str]
) -> None:
    environ = {**with_server, "PREFECT_API_URL": plain_server}
    result = run("flows.rate_pairs", str(tmp_path), "--judge", "j", environ=environ)
    assert result.returncode == 1
    [line] = result.stderr.splitlines()
    assert line.startswith(
        f"error: PREFECT_API_URL {plain_server}: this is not the API of a Prefect server (Client "
        "error '404 Not Found' for url"
    )
    assert line.endswith("or unset it to run without a server")


def test_a_server_that_hangs_and_the_pages_of_prefect_are_no_api(
    prefect_api: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_server()
    pages = PREFECT_API_URL.value().removesuffix("/api")
    monkeypatch.setattr(command, "_ANSWER_SECONDS", 1)
    with socket.create_server(("127.0.0.1", 0)) as hangs:
        silent = f"http://me:secret@127.0.0.1:{hangs.getsockname()[1]}/api"
        for url, problem in (
            (pages, "this is not the API of a Prefect server (Expecting value"),
            (silent.replace("secret", "***"), "it does not answer"),
        ):
            setting = {PREFECT_API_URL: silent if url != pages else url}
            with temporary_settings(updates=setting), pytest.raises(EncoreError) as refused:
                check_server()
            assert f"{url}: {problem}" in str(refused.value)


@pytest.mark.services
def test_mlflow_is_not_taken_for_prefect(store_uri: str, tmp_path: Path) -> None:
    with mlflow_server(store_uri, tmp_path) as url:
        for path in ("", "/api"):
            setting = {PREFECT_API_URL: f"{url}{path}"}
            with (
                temporary_settings(updates=setting),
                pytest.raises(EncoreError, match="not the API"),
            ):
                check_server()
